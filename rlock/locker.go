package rlock

import (
	"context"
	"errors"
	"time"
)

// Locker is what the locks of all kinds have in common.
type Locker interface {
	Name() string
	Lock(ctx context.Context) (context.Context, UnlockFunc, error)
	TryLock(ctx context.Context, wait time.Duration) (context.Context, UnlockFunc, error)
}

// within makes a Lock of a TryLock.
func within(l Locker, wait time.Duration) func(context.Context) (context.Context, UnlockFunc, error) {
	return func(ctx context.Context) (context.Context, UnlockFunc, error) { return l.TryLock(ctx, wait) }
}

// inside runs fn between a Lock and its unlock: it is the Do of every kind.
func inside(
	ctx context.Context, lock func(context.Context) (context.Context, UnlockFunc, error), fn func(context.Context) error,
) (err error) {
	if fn == nil {
		panic("rlock: Do of a nil function")
	}
	ctx, unlock, err := lock(ctx)
	if err != nil {
		return err
	}
	defer func() {
		lockErr := unlock()
		var loss *LostError
		if lockErr == nil && err != nil && errors.As(context.Cause(ctx), &loss) && loss.Reason == LostClosed {
			lockErr = loss
		}
		err = joinErrors(lockErr, err)
	}()
	return fn(ctx)
}
