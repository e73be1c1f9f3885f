package rlocktest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/go-rlock/rlock/rlock"
	"github.com/go-rlock/rlock/rlocktest"
)

// printer replaces *testing.T in the examples: it prints errors.
type printer struct {
	testing.TB
	cleanup func()
}

func (p *printer) Helper()                           {}
func (p *printer) Cleanup(f func())                  { p.cleanup = f }
func (p *printer) Errorf(format string, args ...any) { fmt.Printf(format+"\n", args...) }

// end ends the test.
func (p *printer) end() { p.cleanup() }

func Example() {
	t := new(printer) // in a test: its t
	defer t.end()

	locks := rlocktest.New(t)
	err := locks.Mutex("order:42").Do(context.Background(), func(ctx context.Context) error {
		locks.AssertHeld(ctx, "order:42")
		fmt.Println("shipping")
		return nil
	})
	fmt.Println(err)
	// Output:
	// shipping
	// <nil>
}

func ExampleNewWith() {
	t := new(printer)
	defer t.end()

	// As in the program.
	locks := rlocktest.NewWith(t, rlock.Options{Prefix: "shop:"})
	fmt.Println(locks.Mutex("order:42").Do(context.Background(), func(context.Context) error {
		keys, err := locks.Redis().Do(context.Background(), locks.Redis().B().Keys().Pattern("*").Build()).AsStrSlice()
		fmt.Println(keys)
		return err
	}))
	// Output:
	// [shop:order:42]
	// <nil>
}

// A holder notices the loss of its lock at its next renewal, due in a third of a second here. In a testing/synctest bubble the default
// watchdog time works as well.
func ExampleClient_Lose() {
	t := new(printer)
	defer t.end()

	locks := rlocktest.NewWith(t, rlock.Options{WatchdogTimeout: time.Second})
	err := locks.Mutex("order:42").Do(context.Background(), func(ctx context.Context) error {
		locks.Lose("order:42")
		<-ctx.Done()
		return ctx.Err()
	})
	fmt.Println(errors.Is(err, rlock.ErrLost))
	// Output: true
}

func ExampleClient_HoldElsewhere() {
	t := new(printer)
	defer t.end()

	locks := rlocktest.New(t)
	release := locks.HoldElsewhere("order:42")
	_, _, err := locks.Mutex("order:42").TryLock(context.Background(), 0)
	fmt.Println(errors.Is(err, rlock.ErrNotAcquired))

	time.AfterFunc(10*time.Millisecond, release)
	fmt.Println(locks.Mutex("order:42").Do(context.Background(), func(context.Context) error { return nil }))
	// Output:
	// true
	// <nil>
}

// Permits of a Semaphore have no owner: permits held elsewhere only reduce the number left.
func ExampleClient_HoldPermitsElsewhere() {
	t := new(printer)
	defer t.end()

	locks := rlocktest.New(t)
	gpus := locks.Semaphore("gpus")
	_, err := gpus.TrySetPermits(context.Background(), 4)
	fmt.Println(err)
	release := locks.HoldPermitsElsewhere("gpus", 3)
	fmt.Println(errors.Is(gpus.TryAcquire(context.Background(), 2, 0), rlock.ErrNotAcquired))

	time.AfterFunc(10*time.Millisecond, release)
	fmt.Println(gpus.Do(context.Background(), 2, func(context.Context) error { return nil }))
	// Output:
	// <nil>
	// true
	// <nil>
}

// The permits of a PermitSemaphore have ids and slots, and are renewed.
func ExampleClient_HoldExpiringPermitsElsewhere() {
	t := new(printer)
	defer t.end()

	locks := rlocktest.New(t)
	workers := locks.PermitSemaphore("workers")
	fmt.Println(workers.SetPermits(context.Background(), 3))
	other := locks.HoldExpiringPermitsElsewhere("workers", 2)
	fmt.Println(other.Slots())
	fmt.Println(workers.Do(context.Background(), func(_ context.Context, p *rlock.Permit) error {
		fmt.Println("slot", p.Slot())
		return nil
	}))
	fmt.Println(other.Release())
	// Output:
	// <nil>
	// [0 1]
	// slot 2
	// <nil>
	// <nil>
}

// A holder notices the loss of its permit at its next renewal.
func ExampleClient_LosePermit() {
	t := new(printer)
	defer t.end()

	locks := rlocktest.NewWith(t, rlock.Options{WatchdogTimeout: time.Second})
	workers := locks.PermitSemaphore("workers")
	fmt.Println(workers.SetPermits(context.Background(), 1))
	err := workers.Do(context.Background(), func(ctx context.Context, _ *rlock.Permit) error {
		locks.LosePermit("workers")
		<-ctx.Done()
		return ctx.Err()
	})
	fmt.Println(errors.Is(err, rlock.ErrLost))
	// Output:
	// <nil>
	// true
}

func ExampleClient_CountDownElsewhere() {
	t := new(printer)
	defer t.end()

	locks := rlocktest.New(t)
	parts := locks.CountDownLatch("parts")
	_, err := parts.TrySetCount(context.Background(), 2)
	fmt.Println(err)
	locks.CountDownElsewhere("parts")
	fmt.Println(errors.Is(parts.TryAwait(context.Background(), 0), rlock.ErrNotAcquired))
	locks.CountDownElsewhere("parts")
	fmt.Println(parts.Await(context.Background()))
	// Output:
	// <nil>
	// true
	// <nil>
}

// For locks of other kinds, use another process's Client.
func ExampleClient_Elsewhere() {
	t := new(printer)
	defer t.end()

	locks := rlocktest.New(t)
	_, unlock, err := locks.Elsewhere().RWMutex("config").Read().Lock(context.Background())
	fmt.Println(err)

	config := locks.RWMutex("config")
	fmt.Println(config.Read().Do(context.Background(), func(context.Context) error { return nil }))
	err = config.Write().TryDo(context.Background(), 0, func(context.Context) error { return nil })
	fmt.Println(errors.Is(err, rlock.ErrNotAcquired))
	fmt.Println(unlock())
	// Output:
	// <nil>
	// <nil>
	// true
	// <nil>
}

func ExampleClient_FailRedis() {
	t := new(printer)
	defer t.end()

	locks := rlocktest.NewWith(t, rlock.Options{WatchdogTimeout: time.Second})
	err := locks.Mutex("order:42").Do(context.Background(), func(ctx context.Context) error {
		restore := locks.FailRedis()
		defer restore()
		<-ctx.Done() // not renewed in time
		return nil
	})
	fmt.Println(errors.Is(err, rlock.ErrLost))
	// Output: true
}

func ExampleClient_Crash() {
	t := new(printer)
	defer t.end()

	locks := rlocktest.NewWith(t, rlock.Options{WatchdogTimeout: time.Second})
	other := locks.Elsewhere()
	_, _, err := other.Mutex("order:42").Lock(context.Background())
	fmt.Println(err)
	locks.Crash(other)
	order := locks.Mutex("order:42")
	err = order.TryDo(context.Background(), 0, func(context.Context) error { return nil })
	fmt.Println(errors.Is(err, rlock.ErrNotAcquired))
	fmt.Println(order.Do(context.Background(), func(context.Context) error { return nil })) // a second later
	// Output:
	// <nil>
	// true
	// <nil>
}

func ExampleClient_AssertHeld() {
	t := new(printer)
	defer t.end()

	locks := rlocktest.New(t)
	// A fake store that must be called inside the lock.
	save := func(ctx context.Context) error {
		locks.AssertHeld(ctx, "order:42")
		return nil
	}
	fmt.Println(locks.Mutex("order:42").Do(context.Background(), save))
	fmt.Println(save(context.Background()))
	// Output:
	// <nil>
	// rlocktest: the ctx carries no hold of "order:42": the lock is free
	// <nil>
}

func ExampleClient_Redis() {
	t := new(printer)
	defer t.end()

	// Code that makes its own Client.
	own, err := rlock.New(rlocktest.New(t).Redis(), rlock.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer own.Close()
	fmt.Println(own.Mutex("order:42").Do(context.Background(), func(context.Context) error { return nil }))
	// Output: <nil>
}
