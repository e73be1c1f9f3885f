package rlock_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-rlock/rlock/internal/testing/redistest"
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

// A type of another library that locks in one method and unlocks in another. The lock outlasts the ctx of its request.
func ExampleAcquire() {
	client, closeAll := connect()
	defer closeAll()
	upload := client.Mutex("upload:7")

	request, done := context.WithTimeout(context.Background(), 5*time.Second)
	hold, err := rlock.Acquire(request, upload)
	done()
	fmt.Println(err, hold.Err())

	_, err = rlock.TryAcquire(context.Background(), upload, 10*time.Millisecond)
	fmt.Println("busy:", rlock.IsBusy(err))

	select {
	case <-hold.Done():
		fmt.Println("stop:", hold.Err()) // the lock is lost
	default:
	}
	fmt.Println(hold.Unlock())
	// Output:
	// <nil> <nil>
	// busy: true
	// <nil>
}

// A program that starts before its Redis. The first Lock connects.
func ExampleOptions_connectOnUse() {
	client, err := rlock.Open("redis://127.0.0.1:1", rlock.Options{ConnectOnUse: true})
	if err != nil {
		panic(err) // not a URL, or an option out of range
	}
	defer client.Close()

	err = client.Mutex("order:42").TryDo(context.Background(), 0, func(context.Context) error { return nil })
	fmt.Println(errors.Is(err, rlock.ErrUnreachable), rlock.IsBusy(err))
	// Output: true false
}
