package rlock

import (
	"context"
	"errors"
	"time"
)

// Locker is what the locks of all kinds have in common. It is small so that tests can fake it. The methods do what
// those of [Mutex] do, and so must a fake: on error Lock and TryLock return the ctx that they were given, and an unlock
// that returns [ErrNotHeld].
type Locker interface {
	// Name returns the name of the lock.
	Name() string
	// Lock waits until the lock is held or ctx is done, see [Mutex.Lock].
	Lock(ctx context.Context) (context.Context, UnlockFunc, error)
	// TryLock waits for at most that time, see [Mutex.TryLock].
	TryLock(ctx context.Context, wait time.Duration) (context.Context, UnlockFunc, error)
}

var _ Locker = (*Mutex)(nil)

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
