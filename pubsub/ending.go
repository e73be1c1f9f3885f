package pubsub

import "time"

// The entrance for holders of this process that are about to release a lock, or have lost it. A queue whose lock may be
// free does not rely on the hold any more: waiters that join from then on ask Redis.

// IsAwaited reports whether anybody waits in q.
func (h *Hub) IsAwaited(q Queue) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.topics[q]
	return t != nil && t.first != nil
}

// Ending announces that a holder of q is about to release it.
func (h *Hub) Ending(q Queue) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.freed(q)
}

// EndingForAll is [Hub.Ending] for a release that notifies all, this process included. It reports whether that listens.
// If so, and it has had the lock for run in a row, the first waiter steps aside for others.
func (h *Hub) EndingForAll(q Queue, run time.Duration) (listens bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.freed(q)
	if t == nil {
		return false
	}
	c := &t.courtesy
	c.ownUnlock, c.rivals.heard = t.isLive(), 0
	if c.ownUnlock && !q.Shared && c.notBefore.IsZero() {
		c.notBefore = time.Now().Add(run)
	}
	return c.ownUnlock
}

// Alone reports that the release announced by [Hub.EndingForAll] notified nobody else.
func (h *Hub) Alone(q Queue) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.topics[q]
	if t == nil || !t.polite && !t.courtesy.ownUnlock {
		return
	}
	t.courtesy.notBefore = time.Time{}
	if q.Shared {
		t.courtesy.rivals, t.courtesy.notBefore = rivals{}, time.Now().Add(again)
		if t.courtesy.ownUnlock { // the message is on its way, and wakes the first
			return
		}
	}
	t.courtesy.ownUnlock = false
	t.freed()
	t.wakeFirst()
}

// Yield is for a holder whose release has told listeners out of line, or the first in line, which the server does not
// count. If nobody waits here, who comes next lets them ask first.
func (h *Hub) Yield(q Queue) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t := h.topics[q]; t != nil && !q.Shared {
		t.courtesy.lead = 0
	}
	if h.Aside > 0 {
		h.yields.begin(q, 2*h.Aside)
	}
}

// Wake wakes the first waiter of q, as a message would.
func (h *Hub) Wake(q Queue) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t := h.freed(q); t != nil {
		t.wakeFirst()
	}
}

// WakeSoon is [Hub.Wake] for a renewer, which would let leases end if it waited for Hub.mu. The goroutine ends when it
// has had that: it is held for memory operations only.
func (h *Hub) WakeSoon(q Queue) { go h.Wake(q) }

// Undone is Wake after a grant that could not be kept: nothing lingers for a failed call.
func (h *Hub) Undone(q Queue) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t := h.freed(q); t != nil {
		t.wakeFirst()
		if t.sub != nil {
			t.sub.endLinger()
		}
	}
}

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
	outsiders = t.courtesy.outsiders()
	w = t.first
	if t.current != nil || w == nil {
		return nil, outsiders
	}
	if t.polite { // the waiter was about to ask because of news, which may be about a later unlock
		t.dues.add(w)
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
	if taker, ok := w.Value.(Taker); !ok || w.place != nil || !taker.Take(from, t.courtesy.outsiders()) {
		return false
	}
	t.begin(w)
	w.handOver(ttl)
	return true
}

// freed notes that the lock of q may be free, and returns its topic, if there is one.
func (h *Hub) freed(q Queue) *topic {
	t := h.topics[q]
	if t != nil {
		t.freed()
	}
	return t
}
