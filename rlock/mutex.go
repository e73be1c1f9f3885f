package rlock

import (
	"context"
	"math"
	"time"

	"github.com/go-rlock/rlock/internal/engine"
	"github.com/go-rlock/rlock/internal/kinds"
)

// Mutex is a handle on a lock in Redis: exclusive, and re-entrant under a ctx that carries a hold of
// it. It has no state of its own: all handles that one Client gives on a name are the same lock, with
// whichever options. Its methods are safe for concurrent use. They panic if the Mutex is nil or was not
// made by a Client, and if ctx is nil.
//
// In the terminology of the Go memory model, and as long as Redis keeps its data, the last unlock of
// a hold is synchronized before the return of the Lock that gets the lock next, in whichever
// process.
type Mutex struct {
	client *Client
	spec   *engine.Spec
}

// UnlockFunc ends the level that its Lock opened, and the hold with the last of them. It cancels the
// ctx of the section first. It may be called from any goroutine, also after that ctx was cancelled and after
// [Client.Close].
//
// The unlock of an inner level waits for nothing. The last one returns when Redis has answered, or when the lease has ended, or after
// [Options].UnlockTimeout: then it goes on in the background. It acts once. Its error satisfies errors.Is for
//
//   - [ErrNotHeld], if it was called before; nothing is changed,
//   - [ErrNotHeld] and [ErrLost], if the hold was lost before, as far as is known if levels are left: somebody else may have been in
//     the section,
//   - [ErrUnreachable], if Redis did not answer,
//
// or is what Redis said. After the last two the level is closed all the same. If it was the last one, the hold is
// not renewed any more and is released in the background, but others may have to wait for the end of its lease.
type UnlockFunc func() error

// Mutex returns a handle on the lock called name. It does no I/O. An empty name and bad options are
// reported by the methods of the handle. It panics if the Client is nil.
//
// Names may be any bytes. The lock is the Redis key of that name, behind [Options].Prefix, so locks share the name space of
// all other keys. A key that holds something else is an error of Lock and [Mutex.ForceUnlock], and stays
// as it is. On a cluster, a part in braces decides on the slot, as usual.
func (c *Client) Mutex(name string, options ...Option) *Mutex {
	return c.handle(kinds.Mutex, name, options)
}

// FencedMutex is Mutex with a fencing token: a number that grows with every acquire of that name. Get
// it with [Mutex.FencingToken] from the ctx of the section, and send it along with writes to a
// store that refuses smaller numbers than it has seen. The counter is a second Redis key, which
// never expires. Its tokens are from 1 to 2^53-1, which scripts count exactly: one that somebody set below 0, or beyond, is an error of
// Lock. A Mutex of the same name is the same lock, but does not count.
func (c *Client) FencedMutex(name string, options ...Option) *Mutex {
	return c.handle(kinds.Fenced, name, options)
}

// FairMutex is Mutex with an order over all processes: the lock goes to whoever has waited longest, a goroutine of whichever
// process, or a thread of Redisson's that waits for getFairLock of that name. Nobody who asks gets in before those that wait.
//
// Each waiter has a place in Redisson's queue, which lasts for five seconds, or the watchdog time if that is less. To keep the
// places, a process sends one command for each hundred of its waiters, every third of that time. A waiter whose process was
// stopped or cut off keeps the others waiting until its place ends; one whose process died is passed over at once.
//
// A Mutex of the same name is the same lock, but has no place in that order: the unlock of each kind serves the waiters of its own
// first. So use one kind for one name.
func (c *Client) FairMutex(name string, options ...Option) *Mutex {
	return c.handle(kinds.Fair, name, options)
}

func (c *Client) handle(k *kinds.Kind, name string, options []Option) *Mutex {
	c.check()
	return &Mutex{c, withOptions(c.engine.NewSpec(c.prefix+name, k, name), options)}
}

// Name returns the name of the lock.
func (m *Mutex) Name() string {
	if m == nil || m.spec == nil {
		panic("rlock: a Mutex that was not made by a Client")
	}
	return m.spec.Name
}

// Lock waits until the lock is held or ctx is done. If ctx carries an open hold of this lock it re-enters that hold, and asks Redis only for
// a longer lease or a token that the hold does not have; otherwise it competes. It returns the ctx of the section, a child of ctx that
// carries the hold: use it for everything inside. It is cancelled when the hold ends: by unlock, or because it was lost;
// then [context.Cause] is [ErrLost], or [ErrClosed], and the code in the section should stop. It
// is never safe to assume that a lock is held until unlock: heed the ctx.
//
// Lock returns when ctx is done, whether or not Redis answers. If Redis cannot be reached, or is not ready, it
// tries for three seconds after the first failure, three times at least, and fails even if ctx leaves more time.
//
// The lock is renewed in the background until unlock, unless the handle has a lease (see
// [WithLease]). Waiters of one process get it in the order of their calls. Processes take turns in the order in which
// they began to wait, see [HandOff]; whoever asks while the lock is free gets it, also before them.
//
// On error the given ctx comes back, and an unlock that returns [ErrNotHeld]. The error satisfies
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
// or is what Redis said. If Redis can be reached, a Lock that failed leaves nothing there.
func (m *Mutex) Lock(ctx context.Context) (context.Context, UnlockFunc, error) {
	m.check(ctx)
	return m.lockTraced(m.spec.Caller(ctx), m.spec.Lock)
}

// TryLock is Lock with a bound on the waiting: after wait it returns [ErrNotAcquired]. If wait is 0
// or less it makes one attempt, and none if other goroutines of this process wait for the lock
// already. The first attempt is given a second to be answered, also if wait is shorter (and [Options].ReplicaTimeout more
// where replicas are asked); if it was not answered, the error satisfies errors.Is for [ErrUnreachable] as well. If it was refused by a
// Client with an [Options].Label that this Client does not know yet, TryLock asks Redis for the label, for up to 200 ms of that second. The
// section that follows is not bounded by wait.
func (m *Mutex) TryLock(ctx context.Context, wait time.Duration) (context.Context, UnlockFunc, error) {
	m.check(ctx)
	return m.lockTraced(engine.CallerNow(ctx).UpTo(wait, m.spec.Engine.MinAttempt()), m.spec.Lock)
}

func (m *Mutex) lockTraced(who engine.Caller, lock func(engine.Caller) (*engine.Level, error)) (context.Context, UnlockFunc, error) {
	return lockTraced(m.client.trace, m.spec, who, lock)
}

// lockTraced makes a Lock of an attempt, and tells of it and of its unlock.
func lockTraced(
	to *Trace, m *engine.Spec, who engine.Caller, lock func(engine.Caller) (*engine.Level, error),
) (context.Context, UnlockFunc, error) {
	trace := to.follow(&who, m.Name, m.Kind.Name)
	who.Trace = trace.tracer()
	l, err := lock(who)
	if err != nil {
		err = labelled(who, err)
		trace.ended(who.Ctx, err, nil)
		return who.Ctx, func() error { return notLocked(m) }, err
	}
	trace.ended(l, nil, func() { l.GiveBack() })
	if trace != nil {
		l.Released = trace.released
	}
	return l, l.Unlock, nil
}

// notLocked is the unlock of a Lock that failed.
func notLocked(m *engine.Spec) error { return m.Fail(ErrNotHeld, errLockFailed) }

// check panics for what can only be a mistake in the program.
func (m *Mutex) check(ctx context.Context) {
	switch {
	case m == nil || m.spec == nil:
		panic("rlock: a Mutex that was not made by a Client")
	case ctx == nil:
		panic("rlock: the ctx is nil")
	}
}

// IsLocked reports whether anybody holds the lock, that is whether its key exists. Like the other queries it asks Redis once,
// and returns when ctx is done, with ctx.Err(). Without an answer the error is [ErrUnreachable].
//
// A side of a read/write lock is asked for that side alone: the write side is locked if a writer holds the lock, and the read side if
// readers do, those in the section of a writer included.
func (m *Mutex) IsLocked(ctx context.Context) (bool, error) {
	m.check(ctx)
	return m.spec.IsLocked(ctx)
}

// IsHeld reports whether ctx carries an open hold of the lock, and Redis has it, too.
func (m *Mutex) IsHeld(ctx context.Context) (bool, error) {
	n, err := m.HoldCount(ctx)
	return n > 0, err
}

// HoldCount returns how many open levels the hold of the lock has that ctx carries; 0 if there is no such hold, or Redis does not have it.
// It counts those of all goroutines inside. The count in Redis, see [Mutex.Info], may be that of a moment ago.
func (m *Mutex) HoldCount(ctx context.Context) (int, error) {
	m.check(ctx)
	return m.spec.HoldCount(ctx)
}

// NoExpiry is what [Mutex.TTL] returns for a lock that is held without an expiry. Locks of this
// library and of Redisson always have one.
const NoExpiry = time.Duration(-1)

// TTL returns the remaining time of the hold that somebody has on the lock, in whole milliseconds;
// 0 if nobody has, or [NoExpiry]. The sides of a read/write lock have one expiry, that of whoever holds it longest.
func (m *Mutex) TTL(ctx context.Context) (time.Duration, error) {
	m.check(ctx)
	n, err := m.spec.PTTL(ctx)
	switch n {
	case -2:
		return 0, err
	case -1:
		return NoExpiry, err
	}
	return time.Duration(min(n, math.MaxInt64/int64(time.Millisecond))) * time.Millisecond, err // 292 years
}

// ForceUnlock frees the lock whoever holds it, and reports whether it was held. It is meant for operators: until the holder is
// told, two owners can be in the section. A hold that is renewed, and a reader, is told within a third of the watchdog time, another one
// with a fixed lease ([WithLease]) by its unlock or at the end of its lease. On a side of a read/write lock it does nothing if the other
// side has the lock.
func (m *Mutex) ForceUnlock(ctx context.Context) (bool, error) {
	m.check(ctx)
	return m.spec.Force(ctx)
}
