package tenure

import (
	"context"
	"sync"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/lua"
)

// The first in a fair lock's queue, which was given the lock or told that it is free, may have died or been stopped; or a hold was lost, and
// nobody is told when Redis frees the lock. Waiters of this library look at the lock. Those of most versions of Redisson, which have asked
// before, sleep without an end. So whoever released the lock with one of them in the queue looks when the first has had its time, and again
// until one that comes is the first; and whoever lost the lock, when it is free.

// looks holds when fair locks are to be looked at.
type looks struct {
	mu sync.Mutex      // guards the following; no other lock is taken under it
	at map[string]look // by the lock's key
}

// look is when to look at a lock next.
type look struct {
	at   time.Time
	lost string // the owner of a hold that was lost; otherwise ""
}

// add records a look, and reports whether there was none.
func (all *looks) add(key string, next look) (first bool) {
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.at == nil {
		all.at = make(map[string]look)
	}
	before, ok := all.at[key]
	if before.at.After(next.at) {
		next.at = before.at
	}
	if next.lost == "" {
		next.lost = before.lost
	}
	all.at[key] = next
	return !ok
}

// later returns the look that is due after seen; ok is false, and there is no look any more, if none is.
func (all *looks) later(key string, seen time.Time) (next look, ok bool) {
	all.mu.Lock()
	defer all.mu.Unlock()
	if next = all.at[key]; next.at.After(seen) {
		return next, true
	}
	delete(all.at, key)
	return next, false
}

// Released takes in what came of a release.
func (m *Lock) Released(r lua.ReleaseReply) {
	switch {
	case !r.Redisson:
	case r.Status == lua.Granted:
		m.looksIn(m.Client.GrantLease, "")
	default:
		m.looksIn(m.Client.PlaceLease, "")
	}
}

// looksIn wakes the first in the queue if the lock is free then. One look is enough for what follows closely.
func (m *Lock) looksIn(d time.Duration, lost string) {
	c := m.Client
	if m.Kind.Queueing == kinds.PerWaiter && c.looks.add(m.Key, look{time.Now().Add(d + 2*time.Millisecond), lost}) { // Redis counts in whole ones
		c.Calls.Background(func() { c.look(m) }) // ends when Redis has answered, or does not, or with Close
	}
}

func (c *Client) look(m *Lock) {
	var last look
	for next, ok := c.looks.later(m.Key, last.at); ok; next, ok = c.looks.later(m.Key, last.at) {
		last = next
		due := time.NewTimer(time.Until(next.at))
		select {
		case <-due.C:
		case <-c.Calls.Done():
			due.Stop()
			return
		}
	}
	for retry := (calls.Retry{}); ; {
		again, err := lua.Wake(c.Calls.Context(context.Background()), c.RDB, m.Key, last.lost, m.Fair(), lua.Publish(c.KnownChannel(m)))
		c.Calls.Answered(m.Slot(), err)
		if again > 0 {
			m.looksIn(again, last.lost)
		}
		if err == nil || !retry.Wait(err, c.Calls.Done(), nil) {
			return
		}
	}
}
