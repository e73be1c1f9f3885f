package pubsub

import "time"

// claim says whether somebody else gets the lock for a waiter.
type claim int8

const (
	unclaimed claim = iota
	claimed         // an attempt is made for it: it is the current one of its topic
	abandoned       // claimed, and gave up since
	handed          // got the lock, and is out of the queue
)

// Leaving is what became of a waiter that wanted to leave.
type Leaving int8

const (
	Left    Leaving = iota
	Claimed         // its claimant learns that it has gone, and leaves in its place
	Granted         // it has the lock
)

// Claim is [Hub.Ending] for a holder that could hand the lock to a waiter of this process. It claims
// the first one; nil if nobody waits, or one of them has the turn. A claim takes the place of a
// turn, so that nobody else makes an attempt meanwhile. It ends with [Waiter.Grant] or
// [Waiter.Unclaim].
func (h *Hub) Claim(q Queue) *Waiter {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.freed(q)
	if t == nil || t.current != nil {
		return nil
	}
	for w := t.first; w != nil; w = w.next {
		if w.err == nil {
			t.begin(w)
			w.claim = claimed
			return w
		}
	}
	return nil
}

// Grant tells a claimed waiter that it has the lock for ttl: those behind it wait no longer than
// that. It reports false if the waiter has given up: then the caller gives the lock back, and leaves
// in its place.
func (w *Waiter) Grant(ttl time.Duration) bool {
	t := w.topic
	t.hub.mu.Lock()
	defer t.hub.mu.Unlock()
	if w.claim == abandoned {
		w.claim = unclaimed
		return false
	}
	w.claim = handed
	w.done(ttl)
	w.signal()
	return true
}

// Unclaim ends a claim that came to nothing. If it is not known what it came to, the waiter gets the
// turn. It reports false if the waiter has given up: then the caller leaves in its place.
func (w *Waiter) Unclaim(turn bool) bool {
	t := w.topic
	t.hub.mu.Lock()
	defer t.hub.mu.Unlock()
	left := w.claim == abandoned
	w.claim = unclaimed
	if left {
		return false // still the current one, so that its leaving wakes the next
	}
	t.current = nil
	if w.err != nil {
		w.signal()
	}
	if turn {
		t.makeDue(w)
	}
	t.dispatch()
	return true
}
