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

// Grant gives a claimed waiter the lock for ttl: those behind it wait no longer than that. It returns false if the
// waiter has given up: then the caller gives the lock back, and leaves in its place.
func (w *Waiter) Grant(ttl time.Duration) bool {
	return w.endClaim(func() {
		w.given = nil // it came late: this is a hold of its own
		w.handOver(ttl)
	})
}

// Queued ends the claim of a waiter that now has the process's place, while another process has the lock, or nobody.
// The waiter asks after ttl at the latest. Queued returns false if the waiter has given up: then the caller leaves in
// its place.
func (w *Waiter) Queued(ttl time.Duration) bool {
	return w.endClaim(func() { w.held(ttl) })
}

// Unclaim ends a claim with an unknown outcome: the waiter gets the turn. It returns false if the waiter has given
// up: then the caller leaves in its place.
func (w *Waiter) Unclaim() bool {
	return w.endClaim(func() {
		if w.given == nil {
			w.topic.dues.add(w) // as the first that is not stopped it then has the turn
		}
		w.held(-1)
	})
}

// endClaim does what comes after a claim. It returns false if the waiter has given up. Then it stays current, so its
// Leave wakes the next waiter.
func (w *Waiter) endClaim(then func()) (kept bool) {
	w.topic.hub.mu.Lock()
	defer w.topic.hub.mu.Unlock()
	kept = w.claim == claimed
	w.claim = unclaimed
	if kept {
		then()
	}
	return kept
}

// handOver takes a waiter that has the lock out of the queue.
func (w *Waiter) handOver(ttl time.Duration) {
	w.claim = handed
	w.done(ttl)
	w.signal()
}
