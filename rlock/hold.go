package rlock

import (
	"context"
	"errors"
	"time"
)

// Hold is a held lock for code that is not one function: a method that locks and another that unlocks, or an interface of another library.
// [Acquire] and [TryAcquire] return it. Its methods are safe for concurrent use.
type Hold struct {
	ctx    context.Context //nolint:containedctx // the section's, which carries the hold
	unlock UnlockFunc
}

// Acquire waits for l as [Mutex.Lock] does, and returns the hold. It works with locks of every kind. ctx bounds only the wait: the hold
// keeps the values of ctx, and lasts until Unlock or a loss, whatever becomes of ctx (see [WaitOnly]). Acquire never re-enters: it
// competes with all other holds, those in ctx included, so Acquire of a lock that ctx holds waits for itself (see [Detach]).
//
// The hold is renewed until Unlock, unless the handle bounds it ([WithLease], [WithMaxHold]). [Client.Shutdown] waits for the Unlock, and
// [Client.Close] ends the hold as a loss.
//
// On error there is no hold, and nothing to unlock. The errors are those of [Mutex.Lock]; [IsBusy] tells a lock that others hold from a
// failure. With a Locker of another package, the hold may end with ctx. Acquire panics if ctx or l is nil.
func Acquire(ctx context.Context, l Locker) (*Hold, error) {
	if l == nil {
		panic("rlock: Acquire of a nil Locker")
	}
	return acquire(ctx, l.Lock)
}

// TryAcquire is [Acquire] with a bound on the wait, as of [Mutex.TryLock]. If wait is 0 or less, it makes one attempt.
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

// Done returns a channel that is closed when the hold ends: by Unlock, by a loss, or by [Client.Close]. [Hold.Err] tells them apart.
func (h *Hold) Done() <-chan struct{} { return h.ctx.Done() }

// Err returns nil while the hold lasts, and after an Unlock that ended it. After a loss it is the [*LostError], before and after Unlock:
// the code that relies on the lock should stop. After [Client.Close] the error satisfies [ErrClosed].
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

// Asked returns a channel that is closed when somebody waits for the lock, see [Asked]. Without [WithAsked] it is nil, so never ready.
func (h *Hold) Asked() <-chan struct{} { return Asked(h.ctx) }

// Context returns the ctx of the hold: done when [Hold.Done] is, with the loss as its [context.Cause]. A Lock under it re-enters the hold.
// Use it for calls that the lock protects, and for [FencingToken], [TrustedUntil], [Owner] and [Export].
func (h *Hold) Context() context.Context { return h.ctx }

// Unlock ends the hold. It may be called from any goroutine, and does not depend on the ctx given to Acquire. It waits for Redis for up to
// [Options].UnlockTimeout. Its errors are those of an [UnlockFunc]: after a loss [ErrNotHeld] and [ErrLost], without an answer from Redis
// [ErrUnreachable] and [ErrPending]. It acts once: a further call changes nothing, and returns ErrNotHeld.
func (h *Hold) Unlock() error { return h.unlock() }
