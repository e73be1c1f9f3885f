package rlock

import (
	"context"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/lua"
)

// kind is what tells one kind of lock from another; the engine is the same for all of them.
type kind struct {
	// channel names where unlocks of a lock are published.
	channel func(name string) string
	// queue names the key of the queue of the processes that wait for a lock; or, with times, that of the waiters.
	queue func(name string) string
	// times names the key of the times at which waiters give up, if each has a place in the queue; otherwise nil.
	times func(name string) string
	// fence names the key of the fencing counter; nil for a kind without one.
	fence func(name string) string
	// ordinary says that the scripts are those of acquire and release: many locks can be taken or released by one call, and a
	// lock can stay taken after its unlock.
	ordinary bool
	// prefix and suffix are what the owner field has before the tag and behind it.
	prefix, suffix string

	acquire func(context.Context, rueidis.Client, lua.AcquireArgs) (lua.AcquireReply, error)
	release func(context.Context, rueidis.Client, lua.ReleaseArgs) (lua.ReleaseReply, error)
	renew   func(context.Context, rueidis.Client, time.Duration, []lua.Hold) ([]lua.Renewal, error)
}

// The keys and channels are Redisson's, but for the queue, see docs/protocol.md.
var (
	plain = &kind{
		channel:  prefixed("redisson_lock__channel"),
		queue:    queueKey,
		ordinary: true,
		acquire:  lua.Acquire, release: lua.Release, renew: lua.Renew,
	}
	fenced = &kind{
		channel:  prefixed("redisson_lock__channel"),
		queue:    queueKey,
		ordinary: true,
		fence:    prefixed("redisson_lock_token"),
		acquire:  lua.Acquire, release: lua.Release, renew: lua.Renew,
	}
	fair = &kind{
		channel: prefixed("redisson_lock__channel"),
		queue:   prefixed("redisson_lock_queue"),
		times:   prefixed("redisson_lock_timeout"),
		prefix:  "0", // tells the entries of this library from Redisson's, which knows no such number
		acquire: lua.Acquire, release: lua.Release, renew: lua.Renew,
	}
)

// prefixed makes names the way Redisson does: with the lock's name as the hash tag, unless it
// brings its own, so that all of them share a cluster slot.
func prefixed(prefix string) func(string) string {
	return func(name string) string {
		if strings.Contains(name, "{") {
			return prefix + ":" + name
		}
		return prefix + ":{" + name + "}"
	}
}

// fair is what the scripts have to know of the queue, if each waiter has a place in it. On a cluster with plain channels no script
// can tell whether a process still listens; then the head is told, and asks.
func (m *Mutex) fair() lua.Fair {
	c, k := m.client, m.kind
	if k.times == nil {
		return lua.Fair{}
	}
	f := lua.Fair{
		List: m.queue, Times: k.times(m.key), Place: c.placeLease(),
		Counts: c.cluster == nil || c.knownChannel(m).Sharded,
	}
	if f.Counts && c.handsOff() {
		f.GrantLease = c.grantLease()
	}
	return f
}

// queueKey is the key of a queue. Unlike Redisson's names it differs for x and {x}, which are two locks.
func queueKey(name string) string {
	if strings.Contains(name, "{") {
		return "rlock_queue::" + name
	}
	return "rlock_queue:{" + name + "}"
}

// fenceOf is the key of the fencing counter, "" if there is none.
func (m *Mutex) fenceOf() string {
	if m.kind.fence == nil {
		return ""
	}
	return m.kind.fence(m.key)
}
