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
	// queue names the key of what those that wait for a lock leave in Redis: the queue of their processes, or marks.
	queue func(name string) string
	// handsOff says that an unlock gives the lock to whoever is next, here or in the queue in Redis. Otherwise all
	// are told, and ask.
	handsOff bool
	// fence names the key of the fencing counter; nil for a kind without one.
	fence func(name string) string
	// beside names a key, or its beginning, that scripts use beside the lock and that has to be in the lock's slot; nil
	// if all names that they have are.
	beside func(name string) string
	// side is that of a read/write lock that a kind is. A reader gets a share, which others can have, too.
	side lua.Side
	// suffix is what the owner field has behind the owner, to tell holds of one owner and name apart.
	suffix string

	acquire func(context.Context, rueidis.Client, lua.AcquireArgs) (lua.AcquireReply, error)
	release func(context.Context, rueidis.Client, lua.ReleaseArgs) (lua.ReleaseReply, error)
	renew   func(context.Context, rueidis.Client, time.Duration, []lua.Hold) ([]lua.Renewal, error)
}

// The keys and channels are Redisson's, but for the queue, see docs/protocol.md.
var (
	plain = &kind{
		channel:  prefixed("redisson_lock__channel"),
		queue:    own("rlock_queue"),
		handsOff: true,
		acquire:  lua.Acquire, release: lua.Release, renew: lua.Renew,
	}
	fenced = &kind{
		channel:  prefixed("redisson_lock__channel"),
		queue:    own("rlock_queue"),
		handsOff: true,
		fence:    prefixed("redisson_lock_token"),
		beside:   prefixed("redisson_lock_token"),
		acquire:  lua.Acquire, release: lua.Release, renew: lua.Renew,
	}
	reading = &kind{
		channel: prefixed("redisson_rwlock"),
		queue:   own("rlock_writers"),
		beside:  holdKeys,
		side:    lua.Reader,
		acquire: lua.Acquire, release: lua.Release, renew: lua.RenewReaders,
	}
	writing = &kind{
		channel: prefixed("redisson_rwlock"),
		queue:   own("rlock_writers"),
		beside:  holdKeys,
		side:    lua.Writer,
		suffix:  ":write",
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
	return m.kind.fence(m.name)
}
