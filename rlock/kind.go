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
	name string // as a Trace has it
	// channel names where unlocks of a lock are published.
	channel func(name string) string
	// queue names the key of what those that wait for a lock leave in Redis: the queue of their processes, or marks; or, with
	// times, the queue of the waiters.
	queue func(name string) string
	// enqueues reports whether the next request of a waiter leaves something there, or heeds what others have left, see lock.go.
	enqueues func(*locking) bool
	// timeoutKey names the key of the timeoutKey at which waiters give up, if each has a place in the queue; otherwise nil.
	timeoutKey func(name string) string
	// fence names the key of the fencing counter; nil for a kind without one.
	fence func(name string) string
	// extraKey returns another key, or key prefix, that the scripts touch. It must hash to the lock's slot; nil if it always
	// does.
	extraKey func(name string) string
	// passesOn says that the scripts are those of acquire and release: an unlock gives the lock to whoever is next, here or in
	// the queue of the processes, or leaves it taken for a while; and many locks can be taken or released by one call. Otherwise
	// no unlock chooses a waiter of this process.
	passesOn bool
	// shares says that those who hold the lock at a time may have one tenure, see readers.go.
	shares bool
	// side is that of a read/write lock that a kind is. A reader gets a share, which others can have, too.
	side lua.Side
	// prefix and suffix are what the owner field has before the tag and behind it.
	prefix, suffix string

	renew    func(context.Context, rueidis.Client, time.Duration, []lua.Hold) ([]lua.Renewal, error)
	force    func(context.Context, *Mutex, lua.Publish) (bool, error)
	isLocked func(context.Context, *Mutex) (bool, error)
}

// The keys and channels are Redisson's, but for the queue, see docs/protocol.md.
var (
	plain = &kind{
		name:     "mutex",
		channel:  prefixed("redisson_lock__channel"),
		queue:    own("rlock_queue"),
		enqueues: (*locking).joinsProcesses,
		passesOn: true,
		renew:    lua.Renew, force: forceHash, isLocked: exists,
	}
	fenced = &kind{
		name:     "fenced",
		channel:  prefixed("redisson_lock__channel"),
		queue:    own("rlock_queue"),
		enqueues: (*locking).joinsProcesses,
		passesOn: true,
		fence:    prefixed("redisson_lock_token"),
		extraKey: prefixed("redisson_lock_token"),
		renew:    lua.Renew, force: forceHash, isLocked: exists,
	}
	fair = &kind{
		name:       "fair",
		channel:    prefixed("redisson_lock__channel"),
		queue:      prefixed("redisson_lock_queue"),
		enqueues:   (*locking).joinsWaiters,
		timeoutKey: prefixed("redisson_lock_timeout"),
		extraKey:   prefixed("redisson_lock_timeout"),
		prefix:     "0", // tells the entries of this library from Redisson's, which knows no such number
		renew:      lua.Renew, force: forceFair, isLocked: exists,
	}
	reading = &kind{
		name:     "read",
		channel:  prefixed("redisson_rwlock"),
		queue:    own("rlock_writers"),
		enqueues: (*locking).heedsMarks,
		extraKey: holdKeys,
		side:     lua.Reader,
		shares:   true,
		renew:    lua.RenewReaders, force: forceSide, isLocked: sideIsLocked,
	}
	writing = &kind{
		name:     "write",
		channel:  prefixed("redisson_rwlock"),
		queue:    own("rlock_writers"),
		enqueues: (*locking).leavesMark,
		extraKey: holdKeys,
		side:     lua.Writer,
		suffix:   ":write",
		renew:    lua.Renew, force: forceSide, isLocked: sideIsLocked,
	}
)

func forceHash(ctx context.Context, m *Mutex, p lua.Publish) (bool, error) {
	return lua.Force(ctx, m.client.rdb, m.key, p)
}

func forceFair(ctx context.Context, m *Mutex, p lua.Publish) (bool, error) {
	return lua.ForceFair(ctx, m.client.rdb, m.key, m.fair(), p)
}

func forceSide(ctx context.Context, m *Mutex, p lua.Publish) (bool, error) {
	return lua.ForceSide(ctx, m.client.rdb, m.key, m.kind.side, p)
}

func exists(ctx context.Context, m *Mutex) (bool, error) {
	n, err := m.client.rdb.Do(ctx, m.client.rdb.B().Exists().Key(m.key).Build()).AsInt64()
	return n == 1, err
}

func sideIsLocked(ctx context.Context, m *Mutex) (bool, error) {
	return lua.IsLocked(ctx, m.client.rdb, m.key, m.kind.side)
}

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
	if k.timeoutKey == nil {
		return lua.Fair{}
	}
	f := lua.Fair{
		List: m.queue, Times: k.timeoutKey(m.key), Place: c.placeLease(),
		Counts: c.cluster == nil || c.knownChannel(m).Sharded,
	}
	if f.Counts && c.handsOff() {
		f.GrantLease = c.grantLease()
	}
	return f
}

// own makes names of keys that only this library has. Unlike Redisson's they differ for x and {x}, which are two locks.
func own(prefix string) func(string) string {
	return func(name string) string {
		if strings.Contains(name, "{") {
			return prefix + "::" + name
		}
		return prefix + ":{" + name + "}"
	}
}

// holdKeys is what the hold keys of readers begin with, see read_acquire.lua.
func holdKeys(name string) string {
	if strings.Contains(name, "{") {
		return name + ":"
	}
	return "{" + name + "}:"
}

// fenceOf is the key of the fencing counter, "" if there is none.
func (m *Mutex) fenceOf() string {
	if m.kind.fence == nil {
		return ""
	}
	return m.kind.fence(m.key)
}
