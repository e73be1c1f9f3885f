package waitonly

import (
	"context"
	"time"

	"github.com/go-rlock/rlock/rlock"
)

func work(ctx context.Context) error { return ctx.Err() }

func lock(ctx context.Context, m *rlock.Mutex) error {
	held, unlock, err := m.Lock(rlock.WaitOnly(ctx))
	if err != nil {
		return err
	}
	defer unlock()
	if err := work(ctx); err != nil { // want `^ctx is from before the Lock in line \d+, and does not end when the lock is lost: pass held$`
		return err
	}
	return work(held)
}

func do(ctx context.Context, m *rlock.Mutex) error {
	wait := rlock.WaitOnly(ctx)
	return m.Do(wait, func(held context.Context) error {
		if err := work(wait); err != nil { // want `^wait is from outside of this Do, .*: pass held$`
			return err
		}
		_, err := rlock.TryDoValue(held, m, time.Second, func(context.Context) (int, error) {
			return 1, work(held) // want `held is from outside of this TryDoValue`
		})
		return err
	})
}

// Correct code, without findings.

func shadowed(ctx context.Context, m *rlock.Mutex) error {
	ctx, unlock, err := m.Lock(rlock.WaitOnly(ctx))
	if err != nil {
		return err
	}
	defer unlock()
	return work(ctx)
}

func bounded(ctx context.Context, m *rlock.Mutex) error {
	wait, cancel := context.WithTimeout(rlock.WaitOnly(ctx), time.Second)
	held, unlock, err := m.Lock(wait)
	cancel()
	if err != nil {
		return err
	}
	defer unlock()
	return work(held)
}
