package rlock

import (
	"slices"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/engine"
)

// unlock closes the level, and ends the hold with the last one.
func (l *quorumLevel) unlock() error {
	h := l.hold
	h.mu.Lock()
	cancel := l.cancel
	if cancel == nil {
		h.mu.Unlock()
		return l.quorum.fail(ErrNotHeld, engine.ErrUnlockedBefore)
	}
	l.cancel = nil
	h.levels = slices.DeleteFunc(h.levels, func(o *quorumLevel) bool { return o == l })
	last := len(h.levels) == 0
	h.mu.Unlock()
	return l.trace.released(func() (err error) {
		cancel(l.quorum.fail(engine.ErrUnlocked))
		began := time.Now()
		defer func() { engine.Spend(l.Context, began, err != nil) }()
		wait := l.quorum.members[0].Engine.UnlockTime(&l.inner, began, func() bool { return false })
		return h.leave(last, began.Add(wait))
	})
}

// leave is an unlock that has closed its level. It waits for no answer after that time.
func (h *quorumHold) leave(last bool, over time.Time) error {
	if last {
		defer h.uncount()
	}
	h.look() // if its time is over, it is lost, whoever notices first
	until := h.trusted()
	h.mu.Lock()
	loss := h.loss
	if loss == nil && last {
		h.markOver()
	}
	h.mu.Unlock()
	switch {
	case loss != nil:
		<-h.ended
		if last {
			h.sweep()
		}
		return h.quorum.fail(ErrNotHeld, loss)
	case !last:
		return nil
	}
	h.stop()
	defer h.line.pass()
	return h.release(until, over)
}

// sweep releases what a lost hold may still have in Redis.
func (h *quorumHold) sweep() {
	for _, s := range h.rest {
		m := s.tenure.Spec
		if s.held {
			s.tenure.UnresolvedUntil(time.Now().Add(max(m.TTL(), m.Engine.Options.WatchdogTimeout))).OutcomeUnknown = true
		}
		s.tenure.SweepIfUnresolved()
	}
}

// release releases all shares at once, and returns when a majority of the servers has answered. It waits no longer than the hold
// was trusted, nor than that time is over; the rest goes on in the background.
func (h *quorumHold) release(until, over time.Time) error {
	q := h.quorum
	underWay, failed := len(h.shares)-len(h.rest), 0 // those under way end by being released
	found := make(map[*share]bool)
	for _, s := range h.rest {
		c := s.tenure.Spec.Engine
		if !s.held {
			s.tenure.SweepIfUnresolved()
			continue
		}
		underWay++
		counted := c.Calls.Start() // an unlock works after Close, too
		go func() {                // ends when the server has answered, or after its retries; Close waits for it
			if counted {
				defer c.Calls.Ended()
			}
			h.released <- endOfShare{s, s.release(until)}
		}()
	}
	var last error
	held := 0
	timer := time.NewTimer(time.Until(calls.Earlier(until, over)))
	defer timer.Stop()
	for range underWay {
		select {
		case r := <-h.released:
			switch {
			case r.Err != nil:
				failed, last = failed+1, r.Err
			case r.Held:
				found[r.share] = true
			}
			if held = h.sound(found); held >= q.majority() {
				return nil
			}
		case <-timer.C:
			if over.Before(until) {
				return q.fail(q.tooFew(last))
			}
			return q.fail(ErrNotHeld, h.explain(&LostError{Reason: LostExpired, Since: until, text: "lost: not unlocked in time"}))
		}
	}
	if held+failed >= q.majority() {
		return q.fail(q.tooFew(last))
	}
	return q.fail(ErrNotHeld, h.explain(&LostError{
		Reason: LostGone, Since: time.Now(), text: "lost: most servers lost their data, or it was forced open",
	}))
}

// sound is how many of the shares count that a release has found. One that was missing since the hold is live counts if each that was not
// found, or not yet, was last seen after that one was taken again: had it been gone in between, a renewal would have told. The hold is over.
func (h *quorumHold) sound(found map[*share]bool) (n int) {
	seen := time.Now()
	for _, s := range h.shares {
		if s.held && !found[s] {
			seen = calls.Earlier(seen, s.seen(s.tenure.Spec.Engine.Leases.Until(&s.tenure.Lease)))
		}
	}
	for s := range found {
		if !s.missed || s.since.Before(seen) {
			n++
		}
	}
	return n
}

// release ends the share, again if something went wrong that may pass. What remains unresolved is swept.
func (s *share) release(until time.Time) (r engine.ReleaseResult) {
	held := s.tenure
	c := held.Spec.Engine
	args := held.ReleaseArgs()
	again := calls.Retry{Until: until}
	for {
		r.Held, r.Err = c.ReleaseOnce(held.Spec, args)
		// Not there after a call without a reply: that call has released it.
		r.Held = r.Held || r.Late && r.Err == nil
		if r.Err == nil || !again.Wait(r.Err, nil, c.Calls.Done()) {
			break
		}
		r.Late = r.Late || calls.MayHaveRun(r.Err)
	}
	switch {
	case r.Err != nil:
		held.UnresolvedUntil(until).OutcomeUnknown = true
	case held.Unresolved != nil:
		held.Unresolved.OutcomeUnknown = false
	}
	held.SweepIfUnresolved()
	return r
}
