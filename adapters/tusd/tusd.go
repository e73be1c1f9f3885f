// Package rlocktusd locks the uploads of tusd (github.com/tus/tusd/v2) in several processes: a client that resumes an upload elsewhere
// gets it at once. docs/adapters.md has what tusd itself does with the locks.
package rlocktusd

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/tus/tusd/v2/pkg/handler"

	"github.com/go-rlock/rlock/rlock"
)

// settle is how long a request goes on before it is asked for its lock. tusd forgets one that comes before it reads the body, and all later ones.
const settle = 200 * time.Millisecond

// ErrUnavailable is tusd's answer if Redis refuses a lock: 503, after which clients try again.
var ErrUnavailable = handler.NewError("ERR_LOCK_UNAVAILABLE", "the upload cannot be locked now", http.StatusServiceUnavailable)

// Locker is a handler.Locker: each request holds the lock that is named as its upload. Its methods are safe for concurrent use.
type Locker struct {
	client  *rlock.Client
	options []rlock.Option
}

// New returns a Locker. The options are for each lock: with [rlock.WithWatchdog], an upload goes on elsewhere that long after the death of
// the process that had it, and [rlock.WithAskedAfter] is for a store that takes more than 200 ms to find an upload. A Lock waits for Redis as
// for the lock, until handler.Config.AcquireLockTimeout is over.
func New(client *rlock.Client, options ...rlock.Option) *Locker {
	return &Locker{client, append([]rlock.Option{rlock.WithAskedAfter(settle), rlock.WithWaitForRedis()}, options...)}
}

// UseIn makes the composer use the Locker.
func (l *Locker) UseIn(composer *handler.StoreComposer) { composer.UseLocker(l) }

// NewLock returns the lock of an upload, for one request.
func (l *Locker) NewLock(id string) (handler.Lock, error) {
	return &lock{mutex: l.client.Mutex(id, l.options...)}, nil
}

// lock is that of one request. tusd calls Lock and Unlock one after the other.
type lock struct {
	mutex *rlock.Mutex
	hold  *rlock.Hold // nil: not locked
}

// Lock waits until ctx is done, which ends when Lock returns, and the hold does not. requestUnlock is called when another request waits for
// the lock, or when it is lost: then the request must not write any more.
func (l *lock) Lock(ctx context.Context, requestUnlock func()) error {
	hold, err := rlock.Acquire(ctx, l.mutex)
	switch {
	case err == nil:
	case errors.Is(err, rlock.ErrNotAcquired):
		return errors.Join(handler.ErrLockTimeout, err)
	case errors.Is(err, rlock.ErrClosed):
		return errors.Join(handler.ErrServerShutdown, err)
	default:
		return errors.Join(ErrUnavailable, err)
	}
	l.hold = hold
	settled := time.After(settle)
	go func() { // ends with the hold, or when the request was asked for it
		select {
		case <-hold.Asked():
		case <-hold.Done():
			if hold.Err() == nil { // unlocked
				return
			}
			<-settled
		}
		requestUnlock()
	}()
	return nil
}

// Unlock ends the hold. After a loss, its error is [rlock.ErrLost].
func (l *lock) Unlock() error {
	if l.hold == nil {
		return rlock.ErrNotHeld
	}
	return l.hold.Unlock()
}
