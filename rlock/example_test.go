package rlock_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// connect stands for the set-up of a service. Each example starts a server of its own.
func connect() (client *rlock.Client, closeAll func()) {
	addr, stop := redistest.ForExample()
	client, err := rlock.Open("redis://"+addr, rlock.Options{})
	if err != nil {
		panic(err)
	}
	return client, func() {
		client.Close()
		stop()
	}
}

func ExampleMutex_Do() {
	client, closeAll := connect()
	defer closeAll()

	err := client.Mutex("order:42").Do(context.Background(), func(ctx context.Context) error {
		fmt.Println("shipping order 42")
		return nil
	})
	fmt.Println(err)
	// Output:
	// shipping order 42
	// <nil>
}

// Layers lock what they need. The order is held already when charge locks it: its ctx carries the
// hold, so it re-enters.
func ExampleMutex_Do_nested() {
	client, closeAll := connect()
	defer closeAll()
	order := client.Mutex("order:42")

	charge := func(ctx context.Context) error {
		return order.Do(ctx, func(ctx context.Context) error {
			depth, err := order.HoldCount(ctx)
			fmt.Println("charging, depth", depth)
			return err
		})
	}
	ship := func(ctx context.Context) error {
		return order.Do(ctx, func(ctx context.Context) error {
			fmt.Println("shipping")
			return charge(ctx)
		})
	}
	if err := ship(context.Background()); err != nil {
		fmt.Println(err)
	}
	// Output:
	// shipping
	// charging, depth 2
}

func ExampleMutex_Lock() {
	client, closeAll := connect()
	defer closeAll()

	section := func(ctx context.Context) (err error) {
		ctx, unlock, err := client.Mutex("order:42").Lock(ctx)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, unlock()) }()
		fmt.Println("in the section:", ctx.Err() == nil)
		return nil
	}
	fmt.Println(section(context.Background()))
	// Output:
	// in the section: true
	// <nil>
}

// Hand over hand: each lock is taken with the ctx from before the first one. Its section then outlives the one before it,
// with whose ctx it would have ended.
func ExampleMutex_Lock_handOverHand() {
	client, closeAll := connect()
	defer closeAll()
	ctx := context.Background()

	first, unlockFirst, err := client.Mutex("page:1").Lock(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	second, unlockSecond, err := client.Mutex("page:2").Lock(ctx) // not with first
	if err != nil {
		fmt.Println(errors.Join(err, unlockFirst()))
		return
	}
	fmt.Println(unlockFirst())
	fmt.Println("first:", first.Err())
	fmt.Println("second:", second.Err())
	fmt.Println(unlockSecond())
	// Output:
	// <nil>
	// first: context canceled
	// second: <nil>
	// <nil>
}

func ExampleMutex_TryLock() {
	client, closeAll := connect()
	defer closeAll()
	ctx := context.Background()

	_, unlock, err := client.Mutex("nightly-report").TryLock(ctx, 0)
	fmt.Println("first:", err)
	_, _, err = client.Mutex("nightly-report").TryLock(ctx, 10*time.Millisecond)
	fmt.Println("second:", errors.Is(err, rlock.ErrNotAcquired))
	fmt.Println(unlock())
	// Output:
	// first: <nil>
	// second: true
	// <nil>
}

func ExampleMutex_TryDo() {
	client, closeAll := connect()
	defer closeAll()
	report := client.Mutex("nightly-report")

	_ = report.Do(context.Background(), func(context.Context) error {
		err := report.TryDo(context.Background(), 0, func(context.Context) error {
			fmt.Println("not reached: another one is at it")
			return nil
		})
		fmt.Println("skipped:", errors.Is(err, rlock.ErrNotAcquired))
		return nil
	})
	// Output: skipped: true
}

func ExampleDoValue() {
	client, closeAll := connect()
	defer closeAll()

	total, err := rlock.DoValue(context.Background(), client.Mutex("order:42"), func(ctx context.Context) (int, error) {
		return 40 + 2, nil // read and changed under the lock
	})
	fmt.Println(total, err)
	// Output: 42 <nil>
}

// Code that takes a Locker works with locks of every kind, and can be tested with a fake.
func ExampleLocker() {
	client, closeAll := connect()
	defer closeAll()

	next := func(ctx context.Context, l rlock.Locker) (string, error) {
		return rlock.DoValue(ctx, l, func(context.Context) (string, error) { return "number 1 of " + l.Name(), nil })
	}
	for _, l := range []rlock.Locker{client.Mutex("invoices"), client.FencedMutex("orders")} {
		fmt.Println(next(context.Background(), l))
	}
	// Output:
	// number 1 of invoices <nil>
	// number 1 of orders <nil>
}

func ExampleClient_FencedMutex() {
	client, closeAll := connect()
	defer closeAll()

	ledger := client.FencedMutex("ledger")
	for range 2 {
		_ = ledger.Do(context.Background(), func(ctx context.Context) error {
			token, _ := ledger.FencingToken(ctx)
			fmt.Println("write with token", token)
			return nil
		})
	}
	// Output:
	// write with token 1
	// write with token 2
}

// A transfer needs both accounts. It does not matter in which order its callers name them.
func ExampleAll() {
	client, closeAll := connect()
	defer closeAll()
	from, to := client.Mutex("account:1"), client.Mutex("account:2")

	err := rlock.All(from, to).Do(context.Background(), func(ctx context.Context) error {
		_, _, err := from.TryLock(rlock.Detach(ctx), 0)
		fmt.Println("others get the one:", err == nil)
		_, _, err = rlock.All(to, from).TryLock(rlock.Detach(ctx), 0)
		fmt.Println("or both:", err == nil)
		return nil
	})
	fmt.Println(err)
	// Output:
	// others get the one: false
	// or both: false
	// <nil>
}

// Whoever has waited longest is next, also if others ask at the moment of the unlock.
func ExampleClient_FairMutex() {
	client, closeAll := connect()
	defer closeAll()
	m := client.FairMutex("printer")

	_, unlock, _ := m.Lock(context.Background())
	waited := make(chan error)
	go func() { waited <- m.Do(context.Background(), func(context.Context) error { return nil }) }()
	_, _, err := m.TryLock(context.Background(), 0)
	fmt.Println("asked in between:", errors.Is(err, rlock.ErrNotAcquired))
	_ = unlock()
	fmt.Println("waited:", <-waited)
	// Output:
	// asked in between: true
	// waited: <nil>
}

// The section's goroutines are inside of it. One that must compete gets a detached ctx.
func ExampleDetach() {
	client, closeAll := connect()
	defer closeAll()
	m := client.Mutex("order:42")

	_ = m.Do(context.Background(), func(ctx context.Context) error {
		_, _, err := m.TryLock(rlock.Detach(ctx), 0)
		fmt.Println("competes:", errors.Is(err, rlock.ErrNotAcquired))
		return nil
	})
	// Output: competes: true
}

// A section that must not nest says so to whoever calls it from inside.
func ExampleWithoutReentry() {
	client, closeAll := connect()
	defer closeAll()
	migration := client.Mutex("migration", rlock.WithoutReentry())

	err := migration.Do(context.Background(), func(ctx context.Context) error {
		return migration.Do(ctx, func(context.Context) error { return nil })
	})
	fmt.Println(errors.Is(err, rlock.ErrReentry))
	// Output: true
}

// A job that one of many processes is to run once an hour. The job takes no time, so without the shortest hold a process whose
// clock is a second behind would run it again.
func ExampleWithMinHold() {
	client, closeAll := connect()
	defer closeAll()
	hourly := client.Mutex("hourly-report", rlock.WithMinHold(time.Minute))

	for _, process := range []string{"first", "second"} {
		err := hourly.TryDo(context.Background(), 0, func(context.Context) error {
			fmt.Println(process, "writes the report")
			return nil
		})
		fmt.Println(process, "skipped:", errors.Is(err, rlock.ErrNotAcquired))
	}
	// Output:
	// first writes the report
	// first skipped: false
	// second skipped: true
}

// Requests of one tenant mostly come to the same process, which keeps the lock until another one wants it. The first unlocks release it, until
// others can ask for it.
func ExampleWithLinger() {
	client, closeAll := connect()
	defer closeAll()
	tenant := client.Mutex("tenant:7", rlock.WithLinger(time.Minute))

	for client.Stats().Kept < 10 {
		err := tenant.Do(context.Background(), func(context.Context) error { return nil })
		if err != nil {
			fmt.Println(err)
			return
		}
	}
	fmt.Println("ten times without a command")
	// Output: ten times without a command
}

// One process of many does the leader's work. It is the leader again after each end of its hold: here its longest hold was
// reached, elsewhere Redis may have been gone.
func ExampleLead() {
	client, closeAll := connect()
	defer closeAll()
	ctx, stop := context.WithCancel(context.Background()) // a service has signal.NotifyContext
	leader := client.Mutex("leader", rlock.WithMaxHold(100*time.Millisecond))

	term := 0
	err := rlock.Lead(ctx, leader, func(ctx context.Context) error {
		term++
		fmt.Println("leader, term", term)
		if term == 2 {
			stop()
		}
		<-ctx.Done() // the leader's work, until it is over
		fmt.Println("over:", context.Cause(ctx))
		return nil
	})
	fmt.Println(err)
	// Output:
	// leader, term 1
	// over: rlock: "leader": lost: the longest hold was reached, 100ms
	// leader, term 2
	// over: context canceled
	// rlock: "leader": led until its ctx was done: context canceled
}

// The ctx of a section ends when its lock is lost, and Do reports the loss.
func ExampleWithLease() {
	client, closeAll := connect()
	defer closeAll()

	err := client.Mutex("order:42", rlock.WithLease(time.Second)).Do(context.Background(),
		func(ctx context.Context) error {
			<-ctx.Done() // work that takes too long
			fmt.Println("told:", errors.Is(context.Cause(ctx), rlock.ErrLost))
			return nil
		})
	fmt.Println("reported:", errors.Is(err, rlock.ErrLost))
	// Output:
	// told: true
	// reported: true
}

// One Client for each of three independent servers. The lock outlives the death of any one of them.
func ExampleQuorum() {
	one, closeOne := connect()
	defer closeOne()
	two, closeTwo := connect()
	defer closeTwo()
	three, closeThree := connect()
	defer closeThree()

	const name = "nightly-report"
	report := rlock.Quorum(one.Mutex(name), two.Mutex(name), three.Mutex(name))
	err := report.Do(context.Background(), func(ctx context.Context) error {
		fmt.Println("a majority of the servers has the lock")
		return nil
	})
	fmt.Println(err)
	// Output:
	// a majority of the servers has the lock
	// <nil>
}

// Many may read at a time, and one may write. A writer that has written can go on as a reader, without letting another writer in.
func ExampleRWMutex() {
	client, closeAll := connect()
	defer closeAll()
	prices := client.RWMutex("prices")
	ctx := context.Background()

	err := prices.Read().Do(ctx, func(ctx context.Context) error {
		fmt.Println("read the prices")
		return nil
	})
	fmt.Println(err)

	writer, unlockWriter, err := prices.Write().Lock(ctx)
	if err != nil {
		panic(err)
	}
	defer func() { fmt.Println(unlockWriter()) }() // for a downgrade that fails; after one it has nothing left to do
	fmt.Println("write the prices")
	reader, unlock, err := prices.Downgrade(writer)
	if err != nil {
		panic(err)
	}
	fmt.Println("read them again:", reader.Err())
	fmt.Println(unlock())
	// Output:
	// read the prices
	// <nil>
	// write the prices
	// read them again: <nil>
	// <nil>
	// <nil>
}

// One reader at a time may become the writer: it decides as a reader, and writes only if it has to.
func ExampleUpgradeable() {
	client, closeAll := connect()
	defer closeAll()
	cache := client.RWMutex("cache").Upgradeable()
	stale := true

	err := cache.Do(context.Background(), func(ctx context.Context) error {
		if !stale {
			return nil
		}
		return cache.UpgradeDo(ctx, func(context.Context) error { // waits for the other readers to leave
			fmt.Println("renew the cache")
			return nil
		})
	})
	fmt.Println(err)
	// Output:
	// renew the cache
	// <nil>
}

// A batch waits until all of its parts are done, by whichever process.
func ExampleCountDownLatch() {
	client, closeAll := connect()
	defer closeAll()
	ctx := context.Background()
	parts := client.CountDownLatch("import:2026-11-24")
	if _, err := parts.TrySetCount(ctx, 3); err != nil {
		panic(err)
	}
	for range 3 {
		go func() { // mostly in another process; ends with its part
			if err := client.CountDownLatch("import:2026-11-24").CountDown(ctx); err != nil {
				panic(err)
			}
		}()
	}
	fmt.Println(parts.Await(ctx))
	fmt.Println(parts.Count(ctx))
	// Output:
	// <nil>
	// 0 <nil>
}

// At most two jobs run at a time, in all processes together.
func ExampleSemaphore() {
	client, closeAll := connect()
	defer closeAll()
	ctx := context.Background()
	jobs := client.Semaphore("jobs")
	if _, err := jobs.TrySetPermits(ctx, 2); err != nil {
		panic(err)
	}
	err := jobs.Do(ctx, 1, func(ctx context.Context) error {
		free, err := jobs.Available(ctx)
		fmt.Println("free while it runs:", free)
		return err
	})
	fmt.Println(err)
	var not *rlock.NotAcquiredError
	if errors.As(jobs.TryAcquire(ctx, 3, 0), &not) {
		fmt.Println("not acquired,", not.Count, "are free")
	}
	// Output:
	// free while it runs: 1
	// <nil>
	// not acquired, 2 are free
}

// At most two workers at a time, each with a number of its own.
func ExamplePermitSemaphore() {
	client, closeAll := connect()
	defer closeAll()
	ctx := context.Background()
	workers := client.PermitSemaphore("workers")
	if err := workers.SetPermits(ctx, 2); err != nil {
		panic(err)
	}
	work := func(ctx context.Context, p *rlock.Permit) error { // stops when ctx is done
		fmt.Println("worker", p.Slot())
		return nil
	}
	err := workers.Do(ctx, func(ctx context.Context, p *rlock.Permit) error {
		fmt.Println("worker", p.Slot())
		return workers.Do(ctx, work) // mostly in another process
	})
	fmt.Println(err)
	fmt.Println(workers.Available(ctx))
	// Output:
	// worker 0
	// worker 1
	// <nil>
	// 2 <nil>
}

// A long upload makes room as soon as somebody else wants the file.
func ExampleAsked() {
	client, closeAll := connect()
	defer closeAll()
	upload := client.Mutex("upload:7", rlock.WithAsked())

	began, ended := make(chan struct{}), make(chan error)
	go func() { // ends with the upload
		ended <- upload.Do(context.Background(), func(ctx context.Context) error {
			close(began)
			for part := 1; ; part++ {
				select {
				case <-rlock.Asked(ctx):
					fmt.Println("somebody waits: the rest comes later")
					return nil
				case <-ctx.Done():
					return ctx.Err()
				case <-time.After(time.Millisecond): // sends the next part
				}
			}
		})
	}()
	<-began
	err := upload.Do(context.Background(), func(context.Context) error {
		fmt.Println("the file is ours")
		return nil
	})
	fmt.Println(err, <-ended)
	// Output:
	// somebody waits: the rest comes later
	// the file is ours
	// <nil> <nil>
}

// A leader steps down in order when another candidate waits, and it has led for its term.
func ExampleResignWhenAsked() {
	client, closeAll := connect()
	defer closeAll()
	ctx, stop := context.WithCancel(context.Background())
	leader := client.Mutex("leader", rlock.WithAsked())

	began, over := make(chan string, 1000), make(chan error)
	for range 2 { // as two processes would
		go func() { // ends with ctx
			over <- rlock.Lead(ctx, leader, func(ctx context.Context) error {
				began <- "a term begins"
				<-ctx.Done()
				return ctx.Err()
			}, rlock.ResignWhenAsked(50*time.Millisecond))
		}()
	}
	for range 3 {
		fmt.Println(<-began)
	}
	stop()
	for range 2 {
		fmt.Println(errors.Is(<-over, context.Canceled))
	}
	// Output:
	// a term begins
	// a term begins
	// a term begins
	// true
	// true
}

// A section goes on in another process: the ticket is sent there with the job.
func ExampleExport() {
	client, closeAll := connect()
	defer closeAll()

	var ticket string
	err := client.Mutex("order:42").Do(context.Background(), func(ctx context.Context) (err error) {
		fmt.Println("accepting order 42")
		ticket, err = rlock.Export(ctx, rlock.WithTicketTime(time.Minute))
		return err
	})
	if err != nil {
		panic(err)
	}

	// In the worker, with a Client of its own.
	ctx, unlock, err := client.Adopt(context.Background(), ticket)
	if err != nil {
		panic(err)
	}
	fmt.Println("shipping order 42", ctx.Err())
	fmt.Println(unlock())
	_, _, err = client.Adopt(context.Background(), ticket)
	fmt.Println("again:", errors.Is(err, rlock.ErrTicket))
	// Output:
	// accepting order 42
	// shipping order 42 <nil>
	// <nil>
	// again: true
}
