package rlock

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/go-rlock/rlock/lease"
	"github.com/go-rlock/rlock/lua"
)

// unlock closes the scope and takes one off the count in Redis.
func (s *scope) unlock() error {
	if !s.close() {
		return s.mutex.fail("unlock", ErrNotHeld)
	}
	h := s.hold
	// The scope's ctx may be cancelled long ago; what bounds the calls is the lease.
	ok, changed := h.begin()
	for changed != nil {
		<-changed
		ok, changed = h.begin()
	}
	if ok {
		defer h.end()
	}
	return h.release(s.mutex)
}

func (h *hold) release(m *Mutex) error {
	c, o := m.client, h.owner
	o.mu.Lock()
	ended, count := h.ended, h.count-1
	ttl, renewed := h.ttl(), h.renewed()
	o.mu.Unlock()
	if ended != nil {
		return h.releaseLost(m, ended)
	}
	if count == 0 {
		// No renewal starts from here on, but the end of the lease is still watched.
		c.leases.Releasing(&h.lease)
	}
	r := h.callRelease(m, count, ttl)
	err := r.err
	switch {
	case err == nil && !r.held:
		h.lost(lease.ErrGone)
		return h.releaseLost(m, h.ended)
	case count > 0:
		o.mu.Lock()
		if ended = h.ended; ended == nil {
			h.count = count // even if the call failed: the next one says which count it wants
		}
		o.mu.Unlock()
		if ended != nil { // lost while the release was on its way
			return h.releaseLost(m, ended)
		}
		if err == nil {
			c.leases.Update(&h.lease, r.sent.Add(ttl), renewed)
			return nil
		}
		c.leases.Update(&h.lease, time.Time{}, renewed)
		return m.fail("unlock", err)
	}

	o.mu.Lock()
	if ended = h.ended; ended == nil {
		h.count = 0
		o.end(h)
		if err != nil || r.late || h.doubt != nil {
			o.burn()
		}
	}
	o.mu.Unlock()
	if ended != nil { // lost while the release was on its way
		return h.releaseLost(m, ended)
	}
	if renewing := c.leases.Stop(&h.lease); renewing != nil {
		select { // G7: no renewal reaches Redis after the unlock has returned
		case <-renewing:
		case <-time.After(time.Until(c.leases.Until(&h.lease))):
		}
	}
	if err != nil {
		h.doubted(c.leases.Until(&h.lease)).unsure = true
		c.sweepDoubt(m, h)
		return m.fail("unlock", err)
	}
	c.sweepDoubt(m, h)
	return nil
}

// releaseLost is the unlock of a hold that was lost. If time ended it, it may still be there in
// Redis, say because the reply of a renewal was lost; then it is removed when the last level is
// unlocked, so not before the sections have ended.
func (h *hold) releaseLost(m *Mutex, ended error) error {
	h.owner.mu.Lock()
	last := h.scopes == nil
	h.owner.mu.Unlock()
	if last && !errors.Is(ended, lease.ErrGone) {
		m.client.sweep(m, h, doubt{until: time.Now().Add(m.ttl()), unsure: true})
	}
	return m.fail("unlock", ErrNotHeld, ended)
}

// released is what came of a release.
type released struct {
	sent time.Time // before the call that was answered
	held bool      // the owner held the lock
	late bool      // a call without a reply may have run, or may still
	err  error     // what the last call failed with
}

// unhurried is how much of the lease is left for an unlock to wait for Redis on its caller's goroutine, which
// spares two switches: more than rueidis, with its own defaults, lets the two commands of an unlock wait, of which the
// second needs a connection (5 s) because the server of the first was silent (11 s).
const unhurried = 18 * time.Second

// unlocking is a release on a goroutine of its own, for a hold that may be lost before Redis answers, which ends
// the unlock: rueidis heeds no ctx while somebody else connects.
type unlocking struct {
	hold  *hold
	mutex *Mutex
	count int
	ttl   time.Duration
	until time.Time // the end of the lease

	result released
	done   chan struct{} // capacity 1: there is a result, or the hold was lost
	run    func()        // made once, since a go statement would make one each time
}

// unlockings are used again by those whose goroutine has ended.
var unlockings = sync.Pool{New: func() any {
	u := &unlocking{done: make(chan struct{}, 1)}
	u.run = func() {
		c := u.mutex.client
		u.result = u.hold.sendRelease(u.mutex, u.count, u.ttl, time.Now(), u.until)
		u.signal()
		c.running.Done()
	}
	return u
}}

func (u *unlocking) signal() {
	select {
	case u.done <- struct{}{}:
	default:
	}
}

// callRelease brings the count down to count. It returns when the hold is lost at the latest.
func (h *hold) callRelease(m *Mutex, count int, ttl time.Duration) released {
	c := m.client
	now, until := time.Now(), c.leases.Until(&h.lease)
	switch {
	case !c.start():
		return h.sendRelease(m, count, ttl, now, until)
	case until.Sub(now) >= unhurried:
		defer c.running.Done()
		return h.sendRelease(m, count, ttl, now, until)
	}
	u := unlockings.Get().(*unlocking) //nolint:errcheck // see New
	u.hold, u.mutex, u.count, u.ttl, u.until = h, m, count, ttl, until
	h.owner.mu.Lock()
	h.unlocking = u
	ended := h.ended
	h.owner.mu.Unlock()
	go u.run() // ends when Redis has answered, or with the calls' time-out; Close waits for it
	if ended == nil {
		<-u.done
	}
	h.owner.mu.Lock()
	h.unlocking = nil
	ended = h.ended
	h.owner.mu.Unlock()
	if ended != nil { // the goroutine may still run
		return released{late: true, err: context.Canceled}
	}
	r := u.result
	u.hold, u.mutex = nil, nil
	unlockings.Put(u)
	return r
}

// sendRelease sends the release, again if something went wrong that may pass and the lease lasts, which is until
// then. A hold that ends goes to a waiter of this process, if there is one.
func (h *hold) sendRelease(m *Mutex, count int, ttl time.Duration, now, until time.Time) (r released) {
	c := m.client
	limit := now.Add(patience) // also if a hand-off takes its part: the release is still tried once
	if until.Before(limit) {
		limit = until
	}
	r.sent = now
	if count == 0 {
		if next := h.claim(now); next != nil {
			if r = h.handOff(next, now); r.err == nil {
				return r
			}
			r.sent = time.Now()
			defer func() { next.notHandedOff(r) }()
		}
	}
	args := m.releaseArgs(h, count, ttl)
	retry := newRetry(limit)
	for {
		if c.isClosed() {
			r.held, r.err = c.releaseOnce(m, args)
		} else {
			r.held, r.err = m.kind.release(c.callAt(r.sent, 0), c.rdb, args)
			c.pulse.beat(r.sent, r.err)
		}
		if r.err == nil {
			// Not there after a call without a reply: that call has released it.
			r.held = r.held || r.late && count == 0
			return r
		}
		r.late = r.late || mayHaveRun(r.err)
		if !retry.wait(r.err, nil, nil) {
			return r
		}
		r.sent = time.Now()
	}
}

func (m *Mutex) releaseArgs(h *hold, count int, ttl time.Duration) lua.ReleaseArgs {
	return lua.ReleaseArgs{
		Name: m.name, Owner: h.field(), Count: count, Lease: ttl,
		Publish: lua.Publish(m.client.knownChannel(m)),
	}
}
