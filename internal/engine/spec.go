package engine

import (
	"cmp"
	"context"
	"math"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/kinds"
)

// Spec is what a lock is, and on which terms a handle takes it. It does not change once the handle is made.
type Spec struct {
	Engine    *Engine
	Kind      *kinds.Kind
	Name      string        // for users
	Key       string        // in Redis: Options.Prefix and the name
	channel   string        // unlocks are published there
	queue     string        // of the processes that wait
	Slot      uint16        // of the cluster; 0 without one
	Lease     time.Duration // 0: the watchdog renews
	Watchdog  time.Duration // see WithWatchdog; 0: Options.WatchdogTimeout of the Client
	MaxHold   time.Duration // see WithMaxHold; 0: no such bound
	MaxWait   time.Duration // of a Lock; 0: only its ctx ends it
	MinHold   time.Duration // see WithMinHold
	Grace     time.Duration // see WithGrace
	Linger    time.Duration // see WithLinger; 0: it does not
	NoReentry bool          // see WithoutReentry
	Mark      kinds.Mark    // what its owners say of their Client; 0: nothing
	beside    bool          // it is for the one reader that may upgrade, beside the lock of that name
	alone     bool          // it has a tenure of its own, though its kind shares one
	Invalid   error         // what is wrong with the handle; returned by Lock
}

// NewSpec is that of the lock with that key, which users call name.
func (c *Engine) NewSpec(key string, k *kinds.Kind, name string) *Spec {
	m := &Spec{Engine: c, Kind: k, Name: name, Key: key, channel: k.Channel(key), queue: k.Queue(key)}
	if c.Cluster != nil {
		m.Slot = c.slot(key)
	}
	return m
}

// Fail makes an error about the lock.
func (m *Spec) Fail(causes ...error) error { return m.Engine.errs.Failed(m.Name, causes...) }

func (m *Spec) closed() error { return m.Fail(m.Engine.errs.Closed) }

func (m *Spec) notHeld(why error) error { return m.Fail(m.Engine.errs.NotHeld, why) }

func (m *Spec) unreachable(err error) error { return m.Fail(m.Engine.errs.Unreachable(err)) }

// Leavable is [calls.Leavable] for a call about m.
func Leavable[T any](
	ctx context.Context, m *Spec, limit time.Time, f func(left <-chan struct{}) (T, error), rollBack func(T, error),
) (value T, left bool, err error) {
	return calls.Leavable(ctx, m.Engine.Calls, m.Slot, limit, f, rollBack)
}

// TTL is for how long a hold is trusted that was acquired through this handle, unless it is renewed.
func (m *Spec) TTL() time.Duration {
	if m.Lease == 0 {
		return m.upToMax(m.WatchdogIn(m.Engine))
	}
	return m.upToMax(m.Lease)
}

// WatchdogIn is the lease of a hold that the watchdog of c renews.
func (m *Spec) WatchdogIn(c *Engine) time.Duration {
	return cmp.Or(m.Watchdog, c.Options.WatchdogTimeout)
}

// RenewedFor is for how long the watchdog of c renews a level; 0: it does not.
func (m *Spec) RenewedFor(c *Engine) time.Duration {
	if m.Lease > 0 {
		return 0
	}
	return m.WatchdogIn(c)
}

// expiry is what Redis is told for a hold that this handle took, so that it can be trusted for ttl.
func (m *Spec) expiry(ttl time.Duration) time.Duration { return longer(m.upToMax(ttl), m.Grace) }

// longer is the sum of a and b, or the longest time that there is.
func longer(a, b time.Duration) time.Duration {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// upToMax is the lease ttl, or the longest hold if that is less.
func (m *Spec) upToMax(ttl time.Duration) time.Duration {
	if m.MaxHold > 0 {
		return min(ttl, m.MaxHold)
	}
	return ttl
}

// fenceOf is the key of the fencing counter, "" if there is none.
func (m *Spec) fenceOf() string {
	if m.Kind.Fence == nil {
		return ""
	}
	return m.Kind.Fence(m.Key)
}

// mayPassOn reports whether a Lock wants of Redis what others do, so that it can have the tenure of another one, and another one
// its (canHave): it is renewed, and has no bound of its own.
func (m *Spec) mayPassOn() bool {
	return m.Kind.PassesOn && m.Engine.handsOff() && m.usesGrants() && m.MaxHold == 0
}

// usesGrants reports whether a grant is what a Lock asks for: it is renewed, for no shorter time, and has no grace.
func (m *Spec) usesGrants() bool {
	w := m.WatchdogIn(m.Engine)
	return m.Lease == 0 && m.Grace == 0 && m.TTL() == w && w >= m.Engine.grantLease()
}

// isShort reports whether a Lock is to last for less than a grant may. So its field must not be trusted to be a hold when it is
// granted: the Lock asks, and has its own lease from then on.
func (m *Spec) isShort() bool { return !m.usesGrants() && m.expiry(m.TTL()) < maxGrantLease }
