package rlock

import (
	"context"
	"math"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/lua"
)

// spec is what a lock is, and on which terms a handle takes it. It does not change once the handle is made.
type spec struct {
	engine    *engine
	kind      *kinds.Kind
	name      string        // for users
	key       string        // in Redis: Options.Prefix and the name
	channel   string        // unlocks are published there
	queue     string        // of the processes that wait
	slot      uint16        // of the cluster; 0 without one
	lease     time.Duration // 0: the watchdog renews
	maxHold   time.Duration // see WithMaxHold; 0: no such bound
	minHold   time.Duration // see WithMinHold
	grace     time.Duration // see WithGrace
	noReentry bool          // see WithoutReentry
	alone     bool          // it has a tenure of its own, though its kind shares one
	invalid   error         // what is wrong with the handle; returned by Lock
}

// newSpec is that of the lock with that key, which users call name.
func (c *engine) newSpec(key string, k *kinds.Kind, name string) *spec {
	m := &spec{engine: c, kind: k, name: name, key: key, channel: k.Channel(key), queue: k.Queue(key)}
	if c.cluster != nil {
		m.slot = c.slot(key)
	}
	return m
}

// fail makes an error about the lock.
func (m *spec) fail(causes ...error) error { return m.engine.errs.Failed(m.name, causes...) }

func (m *spec) closed() error { return m.fail(m.engine.errs.Closed) }

func (m *spec) notHeld(why error) error { return m.fail(m.engine.errs.NotHeld, why) }

func (m *spec) unreachable(err error) error { return m.fail(m.engine.errs.Unreachable(err)) }

// leavable is [calls.Leavable] for a call about m.
func leavable[T any](
	ctx context.Context, m *spec, limit time.Time, f func(left <-chan struct{}) (T, error), rollBack func(T, error),
) (value T, left bool, err error) {
	return calls.Leavable(ctx, m.engine.calls, m.slot, limit, f, rollBack)
}

// ttl is for how long a hold is trusted that was acquired through this handle, unless it is renewed.
func (m *spec) ttl() time.Duration {
	if m.lease == 0 {
		return m.upToMax(m.engine.options.WatchdogTimeout)
	}
	return m.upToMax(m.lease)
}

// expiry is what Redis is told for a hold that this handle took, so that it can be trusted for ttl.
func (m *spec) expiry(ttl time.Duration) time.Duration { return longer(m.upToMax(ttl), m.grace) }

// longer is the sum of a and b, or the longest time that there is.
func longer(a, b time.Duration) time.Duration {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// upToMax is the lease ttl, or the longest hold if that is less.
func (m *spec) upToMax(ttl time.Duration) time.Duration {
	if m.maxHold > 0 {
		return min(ttl, m.maxHold)
	}
	return ttl
}

// fair is what the scripts have to know of the queue, if each waiter has a place in it. On a cluster with plain channels no script
// can tell whether a process still listens; then the head is told, and asks.
func (m *spec) fair() lua.Fair {
	c, k := m.engine, m.kind
	if k.Queueing != kinds.PerWaiter {
		return lua.Fair{}
	}
	f := lua.Fair{
		List: m.queue, Times: k.Timeouts(m.key), Place: c.placeLease(),
		Counts: c.cluster == nil || c.knownChannel(m).Sharded,
	}
	if f.Counts && c.handsOff() {
		f.GrantLease = c.grantLease()
	}
	return f
}

// fenceOf is the key of the fencing counter, "" if there is none.
func (m *spec) fenceOf() string {
	if m.kind.Fence == nil {
		return ""
	}
	return m.kind.Fence(m.key)
}
