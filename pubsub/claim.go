package pubsub

import "time"

// claim says whether somebody else gets the lock for a waiter.
type claim int8

const (
	unclaimed claim = iota
	claimed         // an attempt is made for it: it is the current waiter of its topic
	abandoned       // claimed, and gave up since
	handed          // got the lock, and is out of the queue
)

// Leaving is the outcome of a waiter's wish to leave.
type Leaving int8

const (
	Left    Leaving = iota
	Claimed         // its claimant learns that it has gone, and leaves in its place
	Granted         // it has the lock
)

// Claim is [Hub.Ending] for a holder that could hand the lock to a waiter of this process. It claims the first one;
// nil if nobody waits, or one of them has the turn. A claim takes the place of a turn, so that nobody else makes an
// attempt meanwhile. It ends with [Waiter.Grant], [Waiter.Queued] or [Waiter.Unclaim].
//
// outsiders reports whether listeners out of line lately got an unlock message.
func (h *Hub) Claim(q Queue) (w *Waiter, outsiders bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.freed(q)
	if t == nil {
		return nil, false
	}
	outsiders = t.outsiders()
	w = t.first
	if t.current != nil || w == nil {
		return nil, outsiders
	}
	if t.polite { // the waiter was about to ask because of news, which may be about a later unlock
		t.makeDue(w)
	}
	t.begin(w)
	w.claim = claimed
	return w, outsiders
}

// Pass gives the lock to the next waiter of the process without an attempt; in Redis, this process goes on to have
// it. That waiter's Value, if it is a [Taker], decides whether it can have the lock, and takes it from the holder.
// Waiters behind it wait no longer than ttl.
//
// Pass returns false, without any effect, if
//
//   - nobody waits, a waiter has the turn, or the next one cannot have the lock;
//   - this process may have lost the lock, because of news, or an attempt, since it got it.
//
// The next waiter cannot have it while it has the process's place in Redis's queue, which only an attempt gives up.
func (h *Hub) Pass(q Queue, from any, ttl time.Duration) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.topics[q]
	if t == nil || t.current != nil || t.localHold.IsZero() {
		return false
	}
	w := t.first
	if w == nil {
		return false
	}
	if taker, ok := w.Value.(Taker); !ok || w.place != nil || !taker.Take(from, t.outsiders()) {
		return false
	}
	t.begin(w)
	w.handOver(ttl)
	return true
}

// outsiders reports whether listeners out of line lately got an unlock message.
func (t *topic) outsiders() bool { return !t.outside.IsZero() && time.Since(t.outside) < outsidersStay }

// outsidersStay is how long outsiders are taken to listen on after an unlock message to them. The next unlock that
// would notify them finds out whether they have gone.
const outsidersStay = time.Second

// Grant gives a claimed waiter the lock for ttl: those behind it wait no longer than that. It returns false if the
// waiter has given up: then the caller gives the lock back, and leaves in its place.
func (w *Waiter) Grant(ttl time.Duration) bool {
	t := w.topic
	t.hub.mu.Lock()
	defer t.hub.mu.Unlock()
	if !w.endClaim() {
		return false
	}
	w.given = nil // it came late: this is a hold of its own
	w.handOver(ttl)
	return true
}

// Queued ends the claim of a waiter that now has the process's place, while another process has the lock, or nobody.
// The waiter asks after ttl at the latest. Queued returns false if the waiter has given up: then the caller leaves in
// its place.
func (w *Waiter) Queued(ttl time.Duration) bool {
	t := w.topic
	t.hub.mu.Lock()
	defer t.hub.mu.Unlock()
	if !w.endClaim() {
		return false
	}
	w.held(ttl)
	return true
}

// Unclaim ends a claim with an unknown outcome: the waiter gets the turn. It returns false if the waiter has given
// up: then the caller leaves in its place.
func (w *Waiter) Unclaim() bool {
	t := w.topic
	t.hub.mu.Lock()
	defer t.hub.mu.Unlock()
	if !w.endClaim() {
		return false
	}
	if w.given == nil {
		t.makeDue(w) // as the first that is not stopped it then has the turn
	}
	w.held(-1)
	return true
}

// endClaim returns false if the waiter has given up. It stays current, so its Leave wakes the next waiter.
func (w *Waiter) endClaim() (kept bool) {
	kept = w.claim == claimed
	w.claim = unclaimed
	return kept
}

// handOver takes a waiter that has the lock out of the queue.
func (w *Waiter) handOver(ttl time.Duration) {
	w.claim = handed
	w.done(ttl)
	w.signal()
}
