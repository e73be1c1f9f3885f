package tenure

import (
	"context"
	"sync"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/lease"
	"github.com/go-rlock/rlock/lua"
)

// The first in a fair lock's queue, which was given the lock or told that it is free, may have died or been stopped. Waiters of this library
// look at the lock. Those of most versions of Redisson, which have asked before, sleep without an end. So if one is next, whoever released the
// lock looks at it when the first has had its time.

// looks holds when fair locks are to be looked at.
type looks struct {
	mu sync.Mutex           // guards the following; no other lock is taken under it
	at map[string]time.Time // by the lock's key
}

// add records a look, and reports whether there was none.
func (all *looks) add(key string, at time.Time) (first bool) {
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.at == nil {
		all.at = make(map[string]time.Time)
	}
	before, ok := all.at[key]
	if at.After(before) {
		all.at[key] = at
	}
	return !ok
}

// later returns when to look; ok is false, and there is no look any more, if that is not after seen.
func (all *looks) later(key string, seen time.Time) (at time.Time, ok bool) {
	all.mu.Lock()
	defer all.mu.Unlock()
	if at = all.at[key]; at.After(seen) {
		return at, true
	}
	delete(all.at, key)
	return at, false
}

// Released takes in what came of a release.
func (m *Lock) Released(r lua.ReleaseReply) {
	switch {
	case !r.Redisson:
	case r.Status == lua.Granted:
		m.looksIn(m.Client.GrantLease)
	default:
		m.looksIn(m.Client.PlaceLease)
	}
}

// looksIn wakes the first in the queue if the lock is free then. One look is enough for what follows closely.
func (m *Lock) looksIn(d time.Duration) {
	c := m.Client
	if c.looks.add(m.Key, time.Now().Add(d+2*time.Millisecond)) { // Redis counts in whole ones
		c.Calls.Background(func() { c.look(m) }) // ends when Redis has answered, or does not, or with Close
	}
}

func (c *Client) look(m *Lock) {
	for at, ok := c.looks.later(m.Key, time.Time{}); ok; at, ok = c.looks.later(m.Key, at) {
		due := time.NewTimer(time.Until(at))
		select {
		case <-due.C:
		case <-c.Calls.Done():
			due.Stop()
			return
		}
	}
	for again := (calls.Retry{}); ; {
		_, err := c.refresh(c.Calls.Context(context.Background()), c.Group(m), 0, []lease.Item{{Name: m.Key}}) // of a place that nobody has
		if err == nil || !again.Wait(err, c.Calls.Done(), nil) {
			return
		}
	}
}
