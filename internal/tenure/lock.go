package tenure

import (
	"cmp"
	"context"
	"math"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/kinds"
)

// A Lock is what every call about a lock begins with. It is made once, so that no call works out again what follows from kind, name and
// terms. The errors of calls are made here too, because each names the lock.

// Terms are those on which a handle takes its lock. The zero value has the Client's own.
type Terms struct {
	Lease      time.Duration    // 0: the watchdog renews
	Watchdog   time.Duration    // see WithWatchdog; 0: Options.WatchdogTimeout of the Client
	MaxHold    time.Duration    // see WithMaxHold; 0: no bound
	MaxWait    time.Duration    // of a Lock; 0: only its ctx ends it
	MinHold    time.Duration    // see WithMinHold
	Grace      time.Duration    // see WithGrace
	Linger     time.Duration    // for how long the Cache keeps its tenure after the last unlock; 0: it does not
	NoReentry  bool             // see WithoutReentry
	Persists   bool             // see WithWaitForRedis
	AskedAfter time.Duration    // see WithAskedAfter; 0: at once
	Wants      kinds.Capability // of the handle's owners, see Observer.Mark; 0: nothing
	Invalid    error            // why there can be no such handle, returned by Lock
}

// Lock is a handle on a lock: what that is in Redis, and the terms on which it is taken. It does not change once it is made.
type Lock struct {
	Terms

	Client    *Client
	Kind      *kinds.Kind
	Name      string     // for users
	Key       string     // in Redis: Options.Prefix and the name
	Channel   string     // unlocks are published there
	Queue     string     // of waiting processes
	slot      uint16     // on a cluster
	Observers []Observer // of its holds

	// What follows from the terms.
	TTL     time.Duration // for how long a hold is trusted unless it is renewed
	renews  time.Duration // the lease to which the watchdog renews; 0: it does not
	Expires time.Duration // see Expiry, of TTL
	Fence   string        // the key of the fencing counter; "": there is none
	// grants: a grant gives a Lock what it asks for. It is renewed, for no shorter time, and has no grace.
	Grants bool
	// passes: a Lock asks Redis for the same as others with its watchdog time. It can take over another Lock's tenure, and pass on its own (canHave).
	Passes bool
	// shares: a reader asks for the same as others do.
	Shares bool
	// short: the lease is shorter than a grant may last. Such a Lock does not trust a grant: it asks Redis, and has its own lease from then on.
	Short         bool
	IsUpgradeGate bool // the gate of the one reader that may upgrade, beside the lock of that name
}

// NewLock returns a handle on the lock with that key. name is the user's name for it.
func (c *Client) NewLock(key string, k *kinds.Kind, name string, t Terms) *Lock {
	m := &Lock{Terms: t, Client: c, Kind: k, Name: name, Key: key, Channel: k.Channel(key), Queue: k.Queue(key)}
	if c.Cluster.MayBeOne() {
		m.slot = c.slot(key)
	}
	if t.Invalid != nil {
		m.Invalid = m.Fail(t.Invalid)
	}
	if k.Fence != nil {
		m.Fence = k.Fence(key)
	}
	m.follows()
	return m
}

func (m *Lock) follows() {
	c, w := m.Client, m.WatchdogIn(m.Client)
	m.Observers = c.observersOf(&m.Terms)
	if m.TTL = m.upToMax(cmp.Or(m.Lease, w)); m.Lease == 0 {
		m.renews = w
	}
	m.Expires = m.Expiry(m.TTL)
	m.Grants = m.Lease == 0 && m.Grace == 0 && m.TTL == w && w >= c.GrantLease
	alike := c.HandsOff && m.Lease == 0 && m.Grace == 0 && m.MaxHold == 0
	m.Passes, m.Shares = alike && m.Kind.PlainScripts, alike && m.Grants && m.Kind.Shares
	m.Short = !m.Grants && m.Expires < maxGrantLease
}

// Fail makes an error about the lock.
func (m *Lock) Fail(causes ...error) error { return m.Client.Errors.Failed(m.Name, causes...) }

// StartCall starts a public call, which Close waits for. If it returns no error, the caller must call Calls.Ended.
func (m *Lock) StartCall() error {
	if m.Invalid != nil {
		return m.Invalid
	}
	if !m.Client.Calls.Start() {
		return m.FailClosed()
	}
	return nil
}

// FailClosed is the error of a call after Close.
func (m *Lock) FailClosed() error { return m.Fail(m.Client.Errors.Closed) }

// FailNotHeld is the error of an end without a hold, and says why there is none.
func (m *Lock) FailNotHeld(why error) error { return m.Fail(m.Client.Errors.NotHeld, why) }

// FailUnreachable is the error of a call that Redis did not answer, or refused.
func (m *Lock) FailUnreachable(err error) error { return m.Fail(m.Client.Errors.Unreachable(err)) }

// FailPending is the error of a change that may have been made, or may yet be.
func (m *Lock) FailPending(err error) error {
	return m.Fail(m.Client.Errors.Pending, m.Client.Errors.Unreachable(err))
}

// Leavable is [calls.Leavable] for a call about m.
func Leavable[T any](
	ctx context.Context, m *Lock, limit time.Time, f func(left <-chan struct{}) (T, error), rollBack func(T, error),
) (value T, left bool, err error) {
	return calls.Leavable(ctx, m.Client.Calls, m.Slot(), limit, f, rollBack)
}

// WatchdogIn returns the lease of holds that c's watchdog renews.
func (m *Lock) WatchdogIn(c *Client) time.Duration {
	return cmp.Or(m.Watchdog, c.Options.WatchdogTimeout)
}

// RenewedFor returns the lease to which c's watchdog renews a level; 0: it does not.
func (m *Lock) RenewedFor(c *Client) time.Duration {
	if m.Lease > 0 {
		return 0
	}
	return m.WatchdogIn(c)
}

// Renewal groups the holds that one call can renew: those with the same script, the same grace, and on a cluster the same slot.
type Renewal struct {
	Kind  *kinds.Kind
	grace time.Duration
	Slot  uint16
}

// Group returns what the tenures of one renewal call have in common.
func (m *Lock) Group() any { return Renewal{Kind: m.Kind, grace: m.Grace, Slot: m.Slot()} }

// Expiry returns the lease to set in Redis so that a hold can be trusted for ttl.
func (m *Lock) Expiry(ttl time.Duration) time.Duration { return Longer(m.upToMax(ttl), m.Grace) }

// Longer returns a + b, or the longest Duration if that overflows.
func Longer(a, b time.Duration) time.Duration {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// upToMax returns ttl, or MaxHold if that is less.
func (m *Lock) upToMax(ttl time.Duration) time.Duration {
	if m.MaxHold > 0 {
		return min(ttl, m.MaxHold)
	}
	return ttl
}

// Owner returns the owner field of a tenure with that tag.
func (m *Lock) Owner(tag uint64) string { return m.Kind.Owner(m.Client.ID, tag, m.Short) }

// Caller returns the Caller of a Lock of m called now.
func (m *Lock) Caller(ctx context.Context) Caller {
	if m.MaxWait > 0 {
		return m.CallerUpTo(ctx, m.MaxWait)
	}
	who := CallerNow(ctx)
	who.Persists = m.Persists
	return who
}

// CallerUpTo returns the Caller of a TryLock of m called now.
func (m *Lock) CallerUpTo(ctx context.Context, wait time.Duration) Caller {
	return CallerNow(ctx).UpTo(wait, m.Client.MinAttempt()).Persistent(m.Persists)
}
