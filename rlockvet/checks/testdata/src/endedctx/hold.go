package endedctx

import (
	"context"

	"github.com/go-rlock/rlock/rlock"
)

func holdOutlivesItsWait(ctx context.Context, m *rlock.Mutex) error {
	wait, leave := context.WithCancel(ctx)
	hold, err := rlock.Acquire(wait, m)
	leave()
	if err != nil {
		return err
	}
	defer hold.Unlock()
	return work(hold.Context())
}

func afterHold(ctx context.Context, m *rlock.Mutex) error {
	hold, err := rlock.Acquire(ctx, m)
	if err != nil {
		return err
	}
	held := hold.Context()
	if err := hold.Unlock(); err != nil {
		return err
	}
	if err := work(hold.Context()); err != nil { // want `^hold\.Context\(\) was cancelled by the unlock of the Acquire in line \d+`
		return err
	}
	if err := work(held); err != nil { // want `^held was cancelled by the unlock of the Acquire in line \d+`
		return err
	}
	return work(ctx)
}

func holdEscapes(ctx context.Context, m *rlock.Mutex, bare bool) (context.Context, error) {
	hold, err := rlock.Acquire(ctx, m)
	if err != nil {
		return nil, err
	}
	defer hold.Unlock()
	held := context.WithValue(hold.Context(), keeper{}, 1)
	if bare {
		return hold.Context(), nil // want `^hold\.Context\(\) is cancelled by the unlock of the Acquire in line \d+, which is deferred, so the caller gets a ctx that has ended`
	}
	return held, nil // want `^held is cancelled by the unlock of the Acquire in line \d+, which is deferred`
}

// Correct code, without findings.

func holdHandedOn(ctx context.Context, m *rlock.Mutex) (context.Context, *rlock.Hold, error) {
	hold, err := rlock.Acquire(ctx, m)
	if err != nil {
		return nil, nil, err
	}
	return hold.Context(), hold, nil
}

func holdOver(ctx context.Context, m *rlock.Mutex) (context.Context, error, error) {
	hold, err := rlock.Acquire(ctx, m)
	if err != nil {
		return nil, nil, err
	}
	defer hold.Unlock()
	return context.WithoutCancel(hold.Context()), context.Cause(hold.Context()), hold.Context().Err()
}
