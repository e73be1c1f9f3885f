package rlock

import (
	"context"
	"math"
	"time"

	"github.com/go-rlock/rlock/internal/engine"
	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/internal/tenure"
)

// Mutex is a handle on a lock in Redis: exclusive, and re-entrant under a ctx that carries a hold of it. All handles of one Client on a name are
// the same lock, whatever their options.
//
// In the terminology of the Go memory model, and as long as Redis keeps its data, the last unlock of a hold is synchronized before the return of
// the next Lock that gets the lock, in any process.
type Mutex struct {
	client *Client
	lock   *tenure.Lock
}

// UnlockFunc ends the level that its Lock opened; the last level ends the hold. It cancels the section's ctx first. It acts once, and may be
// called from any goroutine, even after [Client.Close].
//
// The unlock of an inner level does not wait. The last one returns when Redis has answered, when the lease has ended, or after
// [Options].UnlockTimeout. Its error satisfies errors.Is for
//
//   - [ErrNotHeld], if it was called before,
//   - [ErrNotHeld] and [ErrLost], if the hold was lost before (while levels remain open: as far as is known),
//   - [ErrUnreachable] and [ErrPending], if Redis did not answer,
//   - [ErrPending] alone, if Redis refused; the error has its reply.
//
// After the last two the hold is released in the background, but others may have to wait until its lease expires.
type UnlockFunc func() error

// Mutex returns a handle on the lock called name.
func (c *Client) Mutex(name string, options ...Option) *Mutex {
	return c.handle(kinds.Mutex, name, options)
}

// FencedMutex is [Client.Mutex] with a fencing token: a number that grows with every acquire of that name, from 1 to 2^53-1. Send the section's
// [Mutex.FencingToken] along with writes to a store that refuses smaller numbers than it has seen (docs/fencing.md). A [Client.Mutex] of the
// same name is the same lock, but does not count.
func (c *Client) FencedMutex(name string, options ...Option) *Mutex {
	return c.handle(kinds.Fenced, name, options)
}

// FairMutex is [Client.Mutex] with one queue over all processes: the lock goes to the longest waiter, Redisson's getFairLock of that name
// included. A [Client.Mutex] of the same name is the same lock, but does not queue: use one kind for one name.
func (c *Client) FairMutex(name string, options ...Option) *Mutex {
	return c.handle(kinds.Fair, name, options)
}

func (c *Client) handle(k *kinds.Kind, name string, options []Option) *Mutex {
	c.check()
	return &Mutex{c, c.engine.NewLock(c.prefix+name, k, name, c.terms(k, name, options))}
}

// Name returns the name of the lock.
func (m *Mutex) Name() string {
	if m == nil || m.lock == nil {
		panic("rlock: a Mutex that was not made by a Client")
	}
	return m.lock.Name
}

// Lock waits until the lock is held or ctx is done. If ctx carries an open hold of this lock, Lock re-enters it, and asks Redis only for a
// longer lease or a token that the hold lacks. It returns the section's ctx, a child of ctx that carries the hold: use it for everything inside.
// It is cancelled when the hold ends, by unlock or loss. After a loss, [context.Cause] is [ErrLost] or [ErrClosed], and the code in the section
// should stop.
//
// Lock returns when ctx is done, whether or not Redis answers. If Redis cannot be reached or is not ready, it retries for three seconds after
// the first failure, at least three times, and then fails, unless the handle has [WithWaitForRedis].
//
// Waiters of one process get the lock in the order of their calls; processes take turns in the order in which they began to wait. A free lock
// goes to the first to ask, even ahead of waiters.
//
// On error Lock returns the given ctx and an unlock that returns [ErrNotHeld], and leaves nothing in Redis, if that can be reached. The error
// satisfies errors.Is for
//
//   - [ErrNotAcquired] and ctx.Err(), if ctx was done first; for [ErrUnreachable] as well, if Redis had not answered by then,
//   - [ErrUnreachable], if Redis did not answer, or was not ready,
//   - [ErrLost], if ctx carries a hold of this lock that was lost and not unlocked yet, or if Redis took longer than the lease to answer,
//   - [ErrNotReplicated], [ErrReentry], [ErrUpgrade] or [ErrDeadlock],
//   - [ErrClosed], if the Client is closed,
//
// or is Redis's error reply.
func (m *Mutex) Lock(ctx context.Context) (context.Context, UnlockFunc, error) {
	m.check(ctx)
	return m.lockTraced(m.lock.Caller(ctx), engine.Lock)
}

// TryLock is Lock with a bound on the waiting, not on the section: after wait it returns [ErrNotAcquired]. If wait is 0 or less, it makes
// one attempt, or none if other goroutines of this process already wait.
//
// Redis gets one second for its first answer, even if wait is shorter, plus [Options].ReplicaTimeout if replicas are asked.
func (m *Mutex) TryLock(ctx context.Context, wait time.Duration) (context.Context, UnlockFunc, error) {
	m.check(ctx)
	return m.lockTraced(m.lock.CallerUpTo(ctx, wait), engine.Lock)
}

func (m *Mutex) lockTraced(who tenure.Caller, lock func(*tenure.Lock, tenure.Caller) (*tenure.Level, error)) (context.Context, UnlockFunc, error) {
	return lockTraced(m.client.trace, m.lock, who, lock)
}

// lockTraced runs an attempt as a Lock, and reports it and its unlock to the Trace.
func lockTraced(
	to *Trace, m *tenure.Lock, who tenure.Caller, lock func(*tenure.Lock, tenure.Caller) (*tenure.Level, error),
) (context.Context, UnlockFunc, error) {
	var trace *tracing
	if to != nil {
		trace = to.follow(&who, m.Name, m.Kind.Name)
		who.Trace = trace
	}
	var l *tenure.Level
	var err error
	if who.Persists {
		l, err = throughOutages(who, m, func(who tenure.Caller) (*tenure.Level, error) { return lock(m, who) })
	} else {
		l, err = lock(m, who)
	}
	if err != nil {
		trace.ended(who.Ctx, err, nil, nil)
		return who.Ctx, func() error { return notLocked(m) }, err
	}
	if trace != nil {
		trace.ended(l, nil, func() { l.Released = trace.released }, func() {
			l.NeverReturned()
			_ = engine.Unlock(l)
		})
	}
	return l, func() error { return engine.Unlock(l) }, nil
}

// without is the lock function of what is more than one Lock.
func without(lock func(tenure.Caller) (*tenure.Level, error)) func(*tenure.Lock, tenure.Caller) (*tenure.Level, error) {
	return func(_ *tenure.Lock, who tenure.Caller) (*tenure.Level, error) { return lock(who) }
}

func notLocked(m *tenure.Lock) error { return m.Fail(ErrNotHeld, errLockFailed) }

// check panics for what can only be a mistake in the program.
func (m *Mutex) check(ctx context.Context) {
	switch {
	case m == nil || m.lock == nil:
		panic("rlock: a Mutex that was not made by a Client")
	case ctx == nil:
		panic("rlock: the ctx is nil")
	}
}

// IsLocked reports whether anybody holds the lock: whether its key exists; of a side of a read/write lock, whether that side is held.
// Like the other queries it asks Redis once, and returns ctx.Err() when ctx is done, and [ErrUnreachable] without an answer.
func (m *Mutex) IsLocked(ctx context.Context) (bool, error) {
	m.check(ctx)
	return m.lock.IsLocked(ctx)
}

// IsHeld reports whether ctx carries an open hold of the lock that Redis has, too.
func (m *Mutex) IsHeld(ctx context.Context) (bool, error) {
	n, err := m.HoldCount(ctx)
	return n > 0, err
}

// HoldCount returns the number of open levels of ctx's hold, in all goroutines inside; 0 if ctx carries none, or Redis does not have it.
func (m *Mutex) HoldCount(ctx context.Context) (int, error) {
	m.check(ctx)
	return m.lock.HoldCount(ctx)
}

// NoExpiry is the [Mutex.TTL] of a lock without an expiry, which this library and Redisson never make.
const NoExpiry = time.Duration(-1)

// TTL returns the remaining lease of the lock's holder, in whole milliseconds; 0 if nobody holds it, or [NoExpiry]. Both sides of a read/write
// lock share one expiry, the longest.
func (m *Mutex) TTL(ctx context.Context) (time.Duration, error) {
	m.check(ctx)
	n, err := m.lock.PTTL(ctx)
	switch n {
	case -2:
		return 0, err
	case -1:
		return NoExpiry, err
	}
	return time.Duration(min(n, math.MaxInt64/int64(time.Millisecond))) * time.Millisecond, err // 292 years
}

// ForceUnlock frees the lock, whoever holds it, and reports whether it was held. Until the holder notices, two owners can be in the section:
// renewed holds and readers within a third of the watchdog time, others at their unlock or the end of their lease. On a side of a read/write
// lock it does nothing if the other side has it. It asks Redis once; with [ErrPending] it may yet act.
func (m *Mutex) ForceUnlock(ctx context.Context) (bool, error) {
	m.check(ctx)
	return m.lock.Force(ctx)
}

// ForceUnlockOwners is [Mutex.ForceUnlock] of a lock that only these owners hold, as [Owner] and [NotAcquiredError] name them: whoever took it
// since you looked keeps it.
func (m *Mutex) ForceUnlockOwners(ctx context.Context, owners ...string) (bool, error) {
	m.check(ctx)
	if len(owners) == 0 {
		return false, nil
	}
	return m.lock.Force(ctx, owners...)
}
