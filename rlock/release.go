package rlock

import (
	"context"
	"errors"
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
	select {
	case h.ops <- struct{}{}:
		defer func() { <-h.ops }()
	case <-h.gone:
	}
	return h.release(s.mutex)
}

func (h *hold) release(m *Mutex) error {
	c, o := h.client, h.owner
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
	sent, held, err := h.sendRelease(m, count, ttl)
	switch {
	case err == nil && !held:
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
			c.leases.Update(&h.lease, sent.Add(ttl), renewed)
			return nil
		}
		c.leases.Update(&h.lease, time.Time{}, renewed)
		return m.fail("unlock", err)
	}

	o.mu.Lock()
	if ended = h.ended; ended == nil {
		h.count = 0
		o.end(h)
		if err != nil || h.late || h.doubts > 0 {
			o.burn()
		}
	}
	o.mu.Unlock()
	if ended != nil { // lost while the release was on its way
		return h.releaseLost(m, ended)
	}
	c.unlist(h)
	until := c.leases.Until(&h.lease)
	if renewing := c.leases.Stop(&h.lease); renewing != nil {
		select { // G7: no renewal reaches Redis after the unlock has returned
		case <-renewing:
		case <-time.After(time.Until(until)):
		}
	}
	if err != nil {
		c.sweep(m, h, latest(until, h.doubt), h.doubts, true)
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
		h.client.sweep(m, h, time.Now().Add(m.ttl()), 0, true)
	}
	return m.fail("unlock", ErrNotHeld, ended)
}

// sendRelease brings the count down to count, again if something went wrong that may pass. It
// reports whether the owner held the lock. It returns when the lease has ended at the latest.
func (h *hold) sendRelease(m *Mutex, count int, ttl time.Duration) (sent time.Time, held bool, err error) {
	c := h.client
	until := c.leases.Until(&h.lease)
	args := m.releaseArgs(h, count, ttl)
	limit := time.Now().Add(patience)
	if until.Before(limit) {
		limit = until
	}
	retry := newRetry(limit)
	ran := false
	for {
		sent = time.Now()
		held, err = h.callRelease(m, args)
		if err == nil {
			// Not there after a call without a reply: that call has released it.
			return sent, held || ran && count == 0, nil
		}
		ran = ran || mayHaveRun(err)
		h.late = ran
		if !retry.wait(err, h.gone, nil) {
			return sent, false, err
		}
	}
}

// callRelease makes one call, which is given up when the hold is lost. It runs on a goroutine of its
// own, because rueidis heeds no ctx while somebody else connects.
func (h *hold) callRelease(m *Mutex, args lua.ReleaseArgs) (bool, error) {
	type result struct {
		held bool
		err  error
	}
	c := h.client
	results := make(chan result, 1)
	if !c.background(func() {
		held, err := m.kind.release(c.call(), c.rdb, args)
		results <- result{held, err}
	}) {
		return c.releaseOnce(m, args)
	}
	select {
	case r := <-results:
		return r.held, r.err
	case <-h.gone:
		return false, context.Canceled
	}
}

func (m *Mutex) releaseArgs(h *hold, count int, ttl time.Duration) lua.ReleaseArgs {
	return lua.ReleaseArgs{
		Name: m.name, Owner: h.field, Count: count, Lease: ttl,
		Publish: publish(h.client.knownChannel(m)),
	}
}
