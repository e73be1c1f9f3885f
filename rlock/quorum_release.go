package rlock

import (
	"slices"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
)

// unlock closes the level, and ends the hold with the last one.
func (l *quorumLevel) unlock() error {
	h := l.hold
	h.mu.Lock()
	cancel := l.cancel
	if cancel == nil {
		h.mu.Unlock()
		return l.quorum.fail(ErrNotHeld, errUnlockedBefore)
	}
	l.cancel = nil
	h.levels = slices.DeleteFunc(h.levels, func(o *quorumLevel) bool { return o == l })
	last := len(h.levels) == 0
	h.mu.Unlock()
	return l.trace.released(func() (err error) {
		cancel(l.quorum.fail(errUnlocked))
		began := time.Now()
		defer func() { spend(l.Context, began, err != nil) }()
		wait := l.quorum.members[0].engine.unlockTime(&l.inner, began, func() bool { return false })
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
		m := s.tenure.spec
		if s.held {
			s.tenure.unresolvedUntil(time.Now().Add(max(m.ttl(), m.engine.options.WatchdogTimeout))).OutcomeUnknown = true
		}
		s.tenure.sweepIfUnresolved()
	}
}

// release releases all shares at once, and returns when a majority of the servers has answered. It waits no longer than the hold
// was trusted, nor than that time is over; the rest goes on in the background.
func (h *quorumHold) release(until, over time.Time) error {
	q := h.quorum
	underWay, failed := len(h.shares)-len(h.rest), 0 // those under way end by being released
	found := make(map[*share]bool)
	for _, s := range h.rest {
		c := s.tenure.spec.engine
		if !s.held {
			s.tenure.sweepIfUnresolved()
			continue
		}
		underWay++
		counted := c.calls.Start() // an unlock works after Close, too
		go func() {                // ends when the server has answered, or after its retries; Close waits for it
			if counted {
				defer c.calls.Ended()
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
			case r.err != nil:
				failed, last = failed+1, r.err
			case r.held:
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
			seen = calls.Earlier(seen, s.seen(s.tenure.spec.engine.leases.Until(&s.tenure.lease)))
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
func (s *share) release(until time.Time) (r releaseResult) {
	held := s.tenure
	c := held.spec.engine
	args := held.releaseArgs()
	again := calls.Retry{Until: until}
	for {
		r.held, r.err = c.releaseOnce(held.spec, args)
		// Not there after a call without a reply: that call has released it.
		r.held = r.held || r.late && r.err == nil
		if r.err == nil || !again.Wait(r.err, nil, c.calls.Done()) {
			break
		}
		r.late = r.late || calls.MayHaveRun(r.err)
	}
	switch {
	case r.err != nil:
		held.unresolvedUntil(until).OutcomeUnknown = true
	case held.unresolved != nil:
		held.unresolved.OutcomeUnknown = false
	}
	held.sweepIfUnresolved()
	return r
}
