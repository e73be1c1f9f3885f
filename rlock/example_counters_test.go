package rlock_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-rlock/rlock/rlock"
)

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
