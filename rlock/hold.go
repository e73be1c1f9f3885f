package rlock

import (
	"context"
	"errors"
	"time"
)

// Hold is a held lock for code that is not one function, see [Acquire]. Its methods are safe for concurrent use.
type Hold struct {
	ctx    context.Context //nolint:containedctx // the section's, which carries the hold
	unlock UnlockFunc
}

// Acquire waits for a lock of any kind as [Mutex.Lock] does, with its errors, and returns the hold. ctx bounds only the wait: the hold keeps its
// values, and lasts until Unlock or a loss. Acquire never re-enters: that of a lock which ctx holds waits for itself (see [Detach]).
// [Client.Shutdown] waits for the Unlock, and [Client.Close] ends the hold as a loss. With a Locker of another package, the hold may end with
// ctx.
func Acquire(ctx context.Context, l Locker) (*Hold, error) {
	if l == nil {
		panic("rlock: Acquire of a nil Locker")
	}
	return acquire(ctx, l.Lock)
}

// TryAcquire is [Acquire] with the bound of [Mutex.TryLock].
func TryAcquire(ctx context.Context, l Locker, wait time.Duration) (*Hold, error) {
	if l == nil {
		panic("rlock: TryAcquire of a nil Locker")
	}
	return acquire(ctx, within(l, wait))
}

func acquire(ctx context.Context, lock lockFunc) (*Hold, error) {
	section, unlock, err := lock(WaitOnly(Detach(ctx)))
	if err != nil {
		return nil, err
	}
	return &Hold{section, unlock}, nil
}

// Done returns a channel that is closed when the hold ends: by Unlock, by a loss, or by [Client.Close]. [Hold.Err]
// tells them apart.
func (h *Hold) Done() <-chan struct{} { return h.ctx.Done() }

// Err returns nil while the hold lasts, and after an Unlock that ended it. After a loss it is the [*LostError]: the code that relies on the lock
// should stop. After [Client.Close] it satisfies [ErrClosed].
func (h *Hold) Err() error {
	var loss *LostError
	switch cause := context.Cause(h.ctx); {
	case cause == nil:
		return nil
	case errors.As(cause, &loss):
		return loss
	case isOurs(cause): // its unlock, or Export
		return nil
	default: // of a Locker of another package
		return cause
	}
}

// Asked returns the channel of the function [Asked] for this hold.
func (h *Hold) Asked() <-chan struct{} { return Asked(h.ctx) }

// Context returns the ctx of the hold, done when [Hold.Done] is, with the loss as its [context.Cause]. A Lock under it re-enters the hold.
func (h *Hold) Context() context.Context { return h.ctx }

// Unlock ends the hold, as an [UnlockFunc], whatever the ctx given to Acquire.
func (h *Hold) Unlock() error { return h.unlock() }
