package rlock

import (
	"context"
	"math"
	"time"

	"github.com/go-rlock/rlock/internal/engine"
	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/internal/tenure"
)

// Mutex is a handle on a lock in Redis: exclusive, and re-entrant under a ctx that carries a hold of
// it. It has no state of its own: all handles of one Client on a name are the same lock, whatever their
// options. Its methods are safe for concurrent use. They panic if the Mutex is nil or was not
// made by a Client, or if ctx is nil.
//
// In the terminology of the Go memory model, and as long as Redis keeps its data, the last unlock of
// a hold is synchronized before the return of the next Lock that gets the lock, in any process.
type Mutex struct {
	client *Client
	lock   *tenure.Lock
}

// UnlockFunc ends the level that its Lock opened; the last level ends the hold. It cancels the
// section's ctx first. It may be called from any goroutine, even after that ctx was cancelled or after
// [Client.Close].
//
// The unlock of an inner level does not wait. The last unlock returns when Redis has answered, when the lease has ended, or after
// [Options].UnlockTimeout; in the last case it continues in the background. It acts once. Its error satisfies errors.Is for
//
//   - [ErrNotHeld], if it was called before; nothing changes,
//   - [ErrNotHeld] and [ErrLost], if the hold was lost before (while levels remain open: as far as is known): somebody
//     else may have been in the section,
//   - [ErrUnreachable] and [ErrPending], if Redis did not answer,
//   - ErrPending alone, if Redis refused; the error has its reply.
//
// After the last two the level is closed all the same. If it was the last level, the hold is
// no longer renewed and is released in the background, but others may have to wait until its lease expires.
type UnlockFunc func() error

// Mutex returns a handle on the lock called name. It does no I/O. The methods of the handle report an empty name and
// invalid options. Mutex panics if the Client is nil.
//
// Names may be any bytes. The lock's Redis key is [Options].Prefix followed by the name, so locks share the name space of
// all other keys. If the key holds something else, Lock and [Mutex.ForceUnlock] return an error and leave it
// unchanged. On a cluster, a hash tag in braces determines the slot, as usual.
func (c *Client) Mutex(name string, options ...Option) *Mutex {
	return c.handle(kinds.Mutex, name, options)
}

// FencedMutex is Mutex with a fencing token: a number that grows with every acquire of that name. Get
// it with [Mutex.FencingToken] from the section's ctx, and send it along with writes to a
// store that refuses smaller numbers than it has seen. The counter is a second Redis key, which
// never expires. Tokens range from 1 to 2^53-1, which scripts count exactly; Lock returns an error if somebody set the
// counter below 0 or beyond that range. A Mutex of the same name is the same lock, but does not count.
func (c *Client) FencedMutex(name string, options ...Option) *Mutex {
	return c.handle(kinds.Fenced, name, options)
}

// FairMutex is Mutex with one queue over all processes: the lock goes to the longest waiter, which is a goroutine of any
// process or a thread waiting for Redisson's getFairLock of that name. Nobody overtakes a waiter.
//
// Each waiter has a place in Redisson's queue, which lasts for five seconds, or the watchdog time if that is less, and is renewed. A waiter
// in a stopped or disconnected process delays the others until its place expires; a waiter in a dead process is passed over at once.
//
// A Mutex of the same name is the same lock, but has no place in the queue: each kind's unlock serves waiters of its own
// kind first. So use one kind for one name.
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

// Lock waits until the lock is held or ctx is done. If ctx carries an open hold of this lock, Lock re-enters it, and asks Redis only
// for a longer lease or a token that the hold lacks; otherwise it competes. It returns the section's ctx, a child of ctx that
// carries the hold: use it for everything inside. That ctx is cancelled when the hold ends by unlock or loss. After a loss,
// [context.Cause] is [ErrLost] or [ErrClosed], and the code in the section should stop. It
// is never safe to assume that a lock is held until unlock: heed the ctx.
//
// Lock returns when ctx is done, whether or not Redis answers. If Redis cannot be reached or is not ready, Lock
// retries for three seconds after the first failure, at least three times, and then fails even if ctx leaves more time, unless the handle
// has [WithWaitForRedis].
//
// The lock is renewed in the background until unlock, unless the handle has a fixed lease (see
// [WithLease]). Waiters of one process get it in the order of their calls. Processes take turns in the order in which
// they began to wait, see [HandOff]. A Lock that finds the lock free gets it, even ahead of waiters.
//
// On error Lock returns the given ctx and an unlock that returns [ErrNotHeld]. The error satisfies
// errors.Is for
//
//   - [ErrNotAcquired] and ctx.Err(), if ctx was done first; for [ErrUnreachable] as well, if Redis had not answered
//     by then,
//   - [ErrUnreachable], if Redis did not answer, or was not ready,
//   - [ErrLost], if ctx carries a hold of this lock that was lost and not unlocked yet, or if Redis took longer
//     than the lease to answer,
//   - [ErrNotReplicated], see [Options].Replicas,
//   - [ErrDeadlock] and ErrNotAcquired, see [Options].Deadlock,
//   - [ErrReentry], see [WithoutReentry],
//   - [ErrUpgrade], if this is the write side of a read/write lock, and ctx carries a read hold of it,
//   - [ErrClosed], if the Client is closed,
//
// or is Redis's error reply. If Redis can be reached, a failed Lock leaves nothing there.
func (m *Mutex) Lock(ctx context.Context) (context.Context, UnlockFunc, error) {
	m.check(ctx)
	return m.lockTraced(m.lock.Caller(ctx), engine.Lock)
}

// TryLock is Lock with a bound on the waiting: after wait it returns [ErrNotAcquired]. If wait is 0
// or less, it makes one attempt, or none if other goroutines of this process already wait for the lock.
// The wait does not bound the section.
//
// Redis has one second for its first answer, even if wait is shorter, plus [Options].ReplicaTimeout
// if replicas are asked. Without an answer, the error satisfies errors.Is for [ErrUnreachable] as well.
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
	trace := to.follow(&who, m.Name, m.Kind.Name)
	who.Trace = trace.tracer()
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
	trace.ended(l, nil, func() { l.Released = trace.released }, func() { engine.GiveBack(l) })
	return l, func() error { return engine.Unlock(l) }, nil
}

// without is the lock function of what is more than one Lock.
func without(lock func(tenure.Caller) (*tenure.Level, error)) func(*tenure.Lock, tenure.Caller) (*tenure.Level, error) {
	return func(_ *tenure.Lock, who tenure.Caller) (*tenure.Level, error) { return lock(who) }
}

// notLocked is the unlock returned by a failed Lock.
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

// IsLocked reports whether anybody holds the lock: whether its key exists. Like the other queries it asks Redis once,
// and returns ctx.Err() when ctx is done. Without an answer the error is [ErrUnreachable].
//
// On a side of a read/write lock it reports that side only: the write side is locked if a writer holds the lock, the read
// side if readers do, including those in a writer's section.
func (m *Mutex) IsLocked(ctx context.Context) (bool, error) {
	m.check(ctx)
	return m.lock.IsLocked(ctx)
}

// IsHeld reports whether ctx carries an open hold of the lock that Redis has, too.
func (m *Mutex) IsHeld(ctx context.Context) (bool, error) {
	n, err := m.HoldCount(ctx)
	return n > 0, err
}

// HoldCount returns the number of open levels of ctx's hold of the lock; 0 if ctx carries none, or Redis does not have it.
// It counts the levels of all goroutines inside. The count in Redis, see [Mutex.Info], may lag behind.
func (m *Mutex) HoldCount(ctx context.Context) (int, error) {
	m.check(ctx)
	return m.lock.HoldCount(ctx)
}

// NoExpiry is the [Mutex.TTL] of a lock held without an expiry. Locks of this
// library and of Redisson always have one.
const NoExpiry = time.Duration(-1)

// TTL returns the remaining lease of the lock's holder, in whole milliseconds;
// 0 if nobody holds it, or [NoExpiry]. Both sides of a read/write lock share one expiry, the longest of all holders.
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

// ForceUnlock frees the lock, whoever holds it, and reports whether it was held. It is meant for operators: until the
// holder notices, two owners can be in the section. Renewed holds and readers notice within a third of the watchdog time.
// Other holds with a fixed lease ([WithLease]) notice at their unlock or when the lease ends. On a side of a read/write lock
// ForceUnlock does nothing if the other side has the lock. It asks Redis once; an error that satisfies [ErrPending] means that the lock may
// be freed all the same.
func (m *Mutex) ForceUnlock(ctx context.Context) (bool, error) {
	m.check(ctx)
	return m.lock.Force(ctx)
}

// ForceUnlockOwners is [Mutex.ForceUnlock] of a lock that nobody but these owners holds: whoever took it since you looked keeps it. Owners
// are what [Owner] and [NotAcquiredError] say, those of a read lock all of its readers. Without owners it frees nothing.
func (m *Mutex) ForceUnlockOwners(ctx context.Context, owners ...string) (bool, error) {
	m.check(ctx)
	if len(owners) == 0 {
		return false, nil
	}
	return m.lock.Force(ctx, owners...)
}
