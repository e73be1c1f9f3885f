package outerctx

import (
	"context"
	"time"

	"github.com/go-rlock/rlock/rlock"
)

func holdIgnored(ctx context.Context, m *rlock.Mutex) error {
	hold, err := rlock.Acquire(ctx, m)
	if err != nil {
		return err
	}
	defer hold.Unlock()
	return work(ctx) // want `^ctx is from before the Acquire in line \d+, and does not end when the lock is lost: pass hold\.Context\(\)$`
}

func acquiredAgain(ctx context.Context, m *rlock.Mutex) error {
	return m.Do(ctx, func(ctx context.Context) error {
		hold, err := rlock.TryAcquire(ctx, m, time.Second) // want `^TryAcquire never re-enters, so that in the section of this Do it waits for itself: use Lock, or end the section first$`
		if err != nil {
			return err
		}
		return hold.Unlock()
	})
}

func trusted(ctx context.Context, m *rlock.Mutex) error {
	return m.Do(ctx, func(context.Context) error {
		_, ok := rlock.TrustedUntil(ctx) // want `^ctx is from outside of this Do, and does not carry the hold`
		_ = ok
		return nil
	})
}

// Correct code, without findings.

func holdSeen(ctx context.Context, m *rlock.Mutex) error {
	hold, err := rlock.Acquire(ctx, m)
	if err != nil {
		return err
	}
	defer hold.Unlock()
	context.AfterFunc(hold.Context(), func() {})
	return work(ctx)
}

func holdForLater(ctx context.Context, m *rlock.Mutex) (*rlock.Hold, error) {
	hold, err := rlock.Acquire(ctx, m)
	if err != nil {
		return nil, err
	}
	return hold, work(ctx)
}

func acquiredAnother(ctx context.Context, a, b *rlock.Mutex) error {
	return a.Do(ctx, func(ctx context.Context) error {
		hold, err := rlock.Acquire(ctx, b)
		if err != nil {
			return err
		}
		return hold.Unlock()
	})
}
