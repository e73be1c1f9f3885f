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
// turn, so that nobody else makes an attempt meanwhile. It ends with [Waiter.Grant], [Waiter.Queued] or
// [Waiter.Unclaim].
//
// outsiders reports whether somebody who is not in line was told of an unlock a short while ago.
func (h *Hub) Claim(q Queue) (w *Waiter, outsiders bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.freed(q)
	if t == nil {
		return nil, false
	}
	outsiders = t.outsiders()
	if t.current != nil {
		return nil, outsiders
	}
	for w := t.first; w != nil; w = w.next {
		if w.err == nil {
			if t.polite { // the news that it was about to ask for may be about a later unlock
				t.makeDue(w)
			}
			t.begin(w)
			w.claim = claimed
			return w, outsiders
		}
	}
	return nil, outsiders
}

// Pass gives the lock, which a holder of this process goes on to have in Redis, to the next waiter of the process, without an attempt: the
// Value of that waiter, if it is a [Taker], says whether it can have it, and takes it from the holder. Those behind it wait no longer than
// ttl. Pass reports false, and has told nobody, if nobody waits, or one of them has the turn, or the next one cannot have it; or if it is not
// known that this process has the lock, because news came, or an attempt, since it got that.
//
// The next one cannot if it has the place of the process in Redis's queue, which only an attempt takes it out of.
func (h *Hub) Pass(q Queue, from any, ttl time.Duration) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.topics[q]
	if t == nil || t.current != nil || t.localHold.IsZero() {
		return false
	}
	w := t.first
	for w != nil && w.err != nil {
		w = w.next
	}
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

// outsiders reports whether somebody who is not in line was told of an unlock a short while ago.
func (t *topic) outsiders() bool { return !t.outside.IsZero() && time.Since(t.outside) < outsidersStay }

// outsidersStay is for how long those are taken to listen that were told of an unlock because they are not in line. Whoever has gone is missed
// at the next unlock that would tell them.
const outsidersStay = time.Second

// Grant tells a claimed waiter that it has the lock for ttl: those behind it wait no longer than
// that. It reports false if the waiter has given up: then the caller gives the lock back, and leaves
// in its place.
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

// Queued ends the claim of a waiter that has the process's place now, while another process has the lock, or nobody. It
// asks at the latest when ttl is over. Queued reports false if the waiter has given up: then the caller leaves in its place.
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

// Unclaim ends a claim of which it is not known what it came to: the waiter gets the turn. It
// reports false if the waiter has given up: then the caller leaves in its place.
func (w *Waiter) Unclaim() bool {
	t := w.topic
	t.hub.mu.Lock()
	defer t.hub.mu.Unlock()
	if !w.endClaim() {
		return false
	}
	if w.given == nil {
		t.makeDue(w) // as the first of those that are not stopped it has the turn then
	}
	w.held(-1)
	return true
}

// endClaim reports false if the waiter has given up. It stays current, so its Leave wakes the next waiter.
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
