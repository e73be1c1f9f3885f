package rlock

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/lua"
)

// Mutex is a handle on a lock in Redis: exclusive, and re-entrant for the owner that a ctx carries.
// It has no state of its own: any number of handles on one name are the same lock. Its methods are
// safe for concurrent use.
//
// In the terminology of the Go memory model, and as far as one Redis keeps its data, the unlock of
// a hold is synchronized before the return of the Lock that gets the lock next, in whichever
// process.
type Mutex struct {
	client  *Client
	kind    *kind
	name    string
	channel string        // unlocks are published there
	lease   time.Duration // 0: the watchdog renews
	invalid error         // what is wrong with the handle; returned by Lock
}

// UnlockFunc ends one hold: the level that its Lock opened, no more. It may be called from any
// goroutine, and after the ctx of the hold was cancelled: it is bounded by what is left of the
// lease, not by a ctx. (If more than 18 s of it are left, and the time-outs of rueidis are longer than its
// defaults, it may take as long as they say.)
//
// It acts once. A second call returns [ErrNotHeld], and changes nothing. If the hold was lost
// before, the error satisfies errors.Is for [ErrLost] and ErrNotHeld: then somebody else may have
// been in the section. Any other error is what Redis or the connection to it said, for some seconds if
// that might have passed: the hold is over, and no longer renewed, but others may have to wait for
// the end of its lease.
type UnlockFunc func() error

// Mutex returns a handle on the lock called name. It does no I/O. An empty name and bad options are
// reported by Lock.
//
// Names may be any bytes. The lock is the Redis key of that name, so locks share the name space of
// all other keys. On a cluster, a part in braces decides on the slot, as usual.
func (c *Client) Mutex(name string, options ...Option) *Mutex {
	return c.mutex(plain, name, options)
}

// FencedMutex is Mutex with a fencing token: a number that grows with every acquire of that name,
// to be found with [FencingToken] in the ctx of the hold, and to be sent along with writes to a
// store that refuses smaller numbers than it has seen. The counter is a second Redis key, which
// never expires. A Mutex of the same name is the same lock, but does not count.
func (c *Client) FencedMutex(name string, options ...Option) *Mutex {
	return c.mutex(fenced, name, options)
}

func (c *Client) mutex(k *kind, name string, options []Option) *Mutex {
	m := &Mutex{client: c, kind: k, name: name, channel: k.channel(name)}
	for _, o := range options {
		if o == nil {
			m.invalid = m.fail("lock", errors.New("an option is nil"))
			break
		}
		o.apply(m)
	}
	if name == "" {
		m.invalid = m.fail("lock", errors.New("the name is empty"))
	}
	return m
}

// Name returns the name of the lock.
func (m *Mutex) Name() string { return m.name }

// Lock waits until the lock is held or ctx is done. It returns a ctx that carries the hold: a Lock
// under it re-enters. That ctx is cancelled when the hold ends: by unlock, or because it was lost;
// then [context.Cause] is [ErrLost], or [ErrClosed], and the code in the section should stop. It
// is never safe to assume that a lock is held until unlock: heed the ctx.
//
// If Redis can not be reached, or is not ready, for three seconds, Lock fails even if ctx leaves more
// time. If it falls silent while Lock is asking it, Lock may return up to two seconds after ctx is done, or when rueidis
// has dialled.
//
// The lock is renewed in the background until unlock, unless the handle has a lease (see
// [WithLease]). Waiters of one process get it in the order of their calls; between processes there
// is no order.
//
// On error the given ctx comes back, and an unlock that returns [ErrNotHeld]. The error satisfies
// errors.Is for
//
//   - [ErrNotAcquired] and ctx.Err(), if ctx was done before the lock was free,
//   - [ErrLost], if ctx carries a hold on this lock that was lost, or if Redis took longer than the
//     lease to answer,
//   - [ErrNotReplicated], if replicas were asked for and too few confirmed,
//   - [ErrClosed], if the Client is closed,
//
// or is what Redis or the connection to it said. Nothing is left in Redis by a Lock that failed, if
// Redis can be reached.
func (m *Mutex) Lock(ctx context.Context) (context.Context, UnlockFunc, error) {
	s, err := m.lock(ctx, bounds{})
	return m.result(ctx, s, err)
}

// TryLock is Lock with a bound on the waiting: after wait it returns [ErrNotAcquired]. If wait is 0
// or less it makes one attempt, and none if other goroutines of this process wait for the lock
// already. A first attempt is given a second to be answered, also if wait is shorter. The section
// that follows is not bounded by wait.
func (m *Mutex) TryLock(ctx context.Context, wait time.Duration) (context.Context, UnlockFunc, error) {
	b := bounds{once: wait <= 0}
	if !b.once {
		now := time.Now()
		b.wait, b.attempt = now.Add(wait), now.Add(max(wait, minAttempt))
	}
	s, err := m.lock(ctx, b)
	return m.result(ctx, s, err)
}

func (m *Mutex) result(ctx context.Context, s *scope, err error) (context.Context, UnlockFunc, error) {
	if err != nil {
		return ctx, func() error { return m.fail("unlock", ErrNotHeld) }, err
	}
	return s, s.unlock, nil
}

// Do runs fn while it holds the lock: Lock, fn with the ctx of the hold, unlock. It returns the
// error of Lock, or else the joined errors of fn and unlock; so it satisfies errors.Is for
// [ErrLost] if the hold was lost, whatever fn returned. If fn panics, or calls runtime.Goexit, the
// lock is released and the panic goes on.
func (m *Mutex) Do(ctx context.Context, fn func(ctx context.Context) error) (err error) {
	ctx, unlock, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	return fn(ctx)
}

// IsLocked reports whether anybody holds the lock.
func (m *Mutex) IsLocked(ctx context.Context) (bool, error) {
	n, err := m.query(ctx, func(ctx context.Context) (int64, error) {
		return m.client.rdb.Do(ctx, m.client.rdb.B().Exists().Key(m.name).Build()).AsInt64()
	})
	return n == 1, err
}

// IsHeld reports whether the owner that ctx carries holds the lock, as Redis has it.
func (m *Mutex) IsHeld(ctx context.Context) (bool, error) {
	n, err := m.HoldCount(ctx)
	return n > 0, err
}

// HoldCount returns how many levels deep the owner that ctx carries holds the lock, as Redis has
// it; 0 if it does not.
func (m *Mutex) HoldCount(ctx context.Context) (int, error) {
	if m.invalid != nil {
		return 0, m.invalid
	}
	s := scopeOf(ctx)
	if s == nil {
		return 0, nil
	}
	field, held := s.hold.owner.heldField(m)
	if !held {
		return 0, nil
	}
	n, err := m.query(ctx, func(ctx context.Context) (int64, error) {
		n, err := m.client.rdb.Do(ctx, m.client.rdb.B().Hget().Key(m.name).Field(field).Build()).AsInt64()
		if rueidis.IsRedisNil(err) {
			return 0, nil
		}
		return n, err
	})
	return int(n), err
}

// NoExpiry is what [Mutex.TTL] returns for a lock that is held without an expiry. Locks of this
// library and of Redisson always have one.
const NoExpiry = time.Duration(-1)

// TTL returns the remaining time of the hold that somebody has on the lock, in whole milliseconds;
// 0 if nobody has, or [NoExpiry].
func (m *Mutex) TTL(ctx context.Context) (time.Duration, error) {
	n, err := m.query(ctx, func(ctx context.Context) (int64, error) {
		return m.client.rdb.Do(ctx, m.client.rdb.B().Pttl().Key(m.name).Build()).AsInt64()
	})
	switch n {
	case -2:
		return 0, err
	case -1:
		return NoExpiry, err
	}
	return time.Duration(min(n, math.MaxInt64/int64(time.Millisecond))) * time.Millisecond, err // 292 years
}

// ForceUnlock frees the lock whoever holds it, and reports whether it was held. Its holder is told
// by the next renewal: until then two owners can be in the section. It is meant for operators.
func (m *Mutex) ForceUnlock(ctx context.Context) (bool, error) {
	if m.invalid != nil {
		return false, m.invalid
	}
	ch, err := m.client.channel(ctx, m)
	if err != nil {
		return false, m.fail("force unlock", err)
	}
	ok, err := await(ctx, m.client, func(ctx context.Context) (bool, error) {
		return lua.Force(ctx, m.client.rdb, m.name, lua.Publish(ch))
	})
	if err != nil {
		return false, m.fail("force unlock", err)
	}
	return ok, nil
}

func (m *Mutex) query(ctx context.Context, command func(context.Context) (int64, error)) (int64, error) {
	if m.invalid != nil {
		return 0, m.invalid
	}
	n, err := await(ctx, m.client, command)
	if err != nil {
		return 0, m.fail("query", err)
	}
	return n, nil
}

func (m *Mutex) key() holdKey {
	return holdKey{client: m.client, name: m.name, suffix: m.kind.suffix}
}

// ttl is the lease that an acquire through this handle asks for.
func (m *Mutex) ttl() time.Duration {
	if m.lease == 0 {
		return m.client.options.WatchdogTimeout
	}
	return m.lease
}
