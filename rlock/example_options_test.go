package rlock_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-rlock/rlock/rlock"
)

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

// Code whose caller takes a failed Lock for the end waits for Redis as well as for the lock.
func ExampleWithWaitForRedis() {
	client, closeAll := connect()
	defer closeAll()
	certificate := client.Mutex("certificate:example.org", rlock.WithWaitForRedis())

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // bounds the wait for both
	defer cancel()
	err := certificate.Do(rlock.WaitOnly(ctx), func(context.Context) error { return nil })
	fmt.Println(err)
	// Output: <nil>
}
