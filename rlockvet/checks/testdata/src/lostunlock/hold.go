package lostunlock

import (
	"context"
	"log"
	"sync"
	"time"

	"github.com/go-rlock/rlock/rlock"
)

func holdNever(ctx context.Context, m *rlock.Mutex) error {
	hold, err := rlock.Acquire(ctx, m) // want `^hold\.Unlock is not called on every path, and the lock stays held after the return in line \d+: defer it when err is checked, or use Do$`
	if err != nil {
		return err
	}
	return work(hold.Context())
}

func holdDropped(ctx context.Context, m *rlock.Mutex) error {
	_, err := rlock.TryAcquire(ctx, m, time.Second) // want `^the hold of this TryAcquire is dropped, so the lock stays held: assign it and defer its Unlock, or use Do$`
	return err
}

func holdOnOnePath(ctx context.Context, m *rlock.Mutex) error {
	hold, err := rlock.Acquire(ctx, m) // want `hold\.Unlock is not called on every path`
	if err != nil {
		return err
	}
	if err := work(ctx); err != nil {
		log.Print(hold.Err())
		return err
	}
	return hold.Unlock()
}

func holdOverwritten(ctx context.Context, a, b *rlock.Mutex) error {
	hold, err := rlock.Acquire(ctx, a) // want `^hold is overwritten in line \d+ before its Unlock is called`
	if err != nil {
		return err
	}
	hold, err = rlock.Acquire(ctx, b)
	if err != nil {
		return err
	}
	return hold.Unlock()
}

func holdNotDeferred(ctx context.Context, m *rlock.Mutex) error {
	hold, err := rlock.Acquire(ctx, m) // want `^hold\.Unlock is not deferred, so a panic in line \d+ leaves the lock held`
	if err != nil {
		return err
	}
	check(work(hold.Context()))
	return hold.Unlock()
}

func holdArgument(ctx context.Context, m *rlock.Mutex) error {
	hold, err := rlock.Acquire(ctx, m)
	if err != nil {
		return err
	}
	defer check(hold.Unlock()) // want `^hold\.Unlock is called at once`
	return work(hold.Context())
}

func holdOfHelper(ctx context.Context, d *door) error {
	hold, err := d.enter(ctx) // want `hold\.Unlock is not called on every path`
	if err != nil {
		return err
	}
	return work(hold.Context())
}

func holdDeferredInLoop(ctx context.Context, client *rlock.Client, names []string) error {
	for _, name := range names {
		hold, err := rlock.Acquire(ctx, client.Mutex(name)) // want `^hold\.Unlock is deferred in a loop, so the lock stays held in all later rounds: use Do, or a function for each round that defers it$`
		if err != nil {
			return err
		}
		defer hold.Unlock()
		held := hold.Context()
		if err := work(held); err != nil {
			return err
		}
	}
	return nil
}

// Correct code, without findings.

func holdCollected(ctx context.Context, client *rlock.Client, names []string) error {
	for _, name := range names {
		hold, err := rlock.Acquire(ctx, client.Mutex(name))
		if err != nil {
			return err
		}
		defer hold.Unlock()
	}
	return work(ctx)
}

type door struct {
	lock *rlock.Mutex
	mu   sync.Mutex
	hold *rlock.Hold
	all  map[string]*rlock.Hold
}

func (d *door) enter(ctx context.Context) (*rlock.Hold, error) {
	hold, err := rlock.Acquire(ctx, d.lock)
	if err != nil {
		return nil, err
	}
	if err := work(hold.Context()); err != nil {
		check(hold.Unlock())
		return nil, err
	}
	return hold, nil
}

func (d *door) open(ctx context.Context) (err error) {
	d.hold, err = rlock.Acquire(ctx, d.lock)
	return err
}

func (d *door) keep(ctx context.Context, id string) error {
	hold, err := rlock.TryAcquire(ctx, d.lock, 0)
	if rlock.IsBusy(err) {
		return nil
	}
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.all[id] = hold
	return nil
}

func (d *door) of(id string) *rlock.Hold { return d.all[id] }

func (d *door) ask(id string) error {
	hold := d.of(id)
	return hold.Err()
}

func holdDeferred(ctx context.Context, m *rlock.Mutex) error {
	hold, err := rlock.Acquire(ctx, m)
	if err != nil {
		return err
	}
	defer hold.Unlock()
	select {
	case <-hold.Done():
		return hold.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

func holdInGoroutine(ctx context.Context, m *rlock.Mutex) error {
	hold, err := rlock.Acquire(ctx, m)
	if err != nil {
		return err
	}
	go func() {
		defer hold.Unlock()
		<-hold.Asked()
	}()
	return nil
}

func holdMethod(ctx context.Context, m *rlock.Mutex) (func() error, error) {
	hold, err := rlock.Acquire(ctx, m)
	if err != nil {
		return nil, err
	}
	return hold.Unlock, nil
}

func holdLeased(ctx context.Context, client *rlock.Client) error {
	_, err := rlock.Acquire(ctx, client.Mutex("mails", rlock.WithLease(time.Minute)))
	return err
}
