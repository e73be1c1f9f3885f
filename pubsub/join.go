package pubsub

import "time"

// The entrance for waiters.

// Join puts w at the end of the queue q, or ahead of all others. It returns true if w may ask at once: nobody else
// waits there, and this process is not known to hold the lock. Then w has the turn, or asks beside the queue if it
// wants a share of its own. It may also ask beside the queue while others ask for a share. Otherwise [Waiter.Turn]
// announces its turn.
//
// Each Join is followed by exactly one [Waiter.Done] or [Waiter.Leave].
func (h *Hub) Join(w *Waiter, q Queue) (turn bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.topic(w, q)
	if t.first == nil {
		lasts, pause := t.localHoldLasts(), time.Duration(0)
		if len(h.yields.of) > 0 && !w.Shared && !w.Ahead {
			if pause = h.yields.left(q); w.hurries(pause) {
				pause = 0
			}
		}
		switch {
		case q.Each || lasts == 0 && pause == 0:
			t.askAtOnce(w)
			return true
		case lasts == 0:
			t.push(w)
			w.yields = true
			t.subscribeIfLive()
			w.park()
			if !t.asksIn(pause) { // it has too little time by now
				t.wakeFirst()
			}
			return false
		}
		t.keepSubscription()
		t.setTimer(lasts)
	}
	if w.Shared && !w.Joint && t.isShareAsked() {
		t.goApart(w)
		return true
	}
	if w.Ahead && t.first != nil {
		t.pushAhead(w)
		w.park()
		t.wakeFirst()
		return false
	}
	t.push(w)
	w.park()
	if q.Each && t.isLive() && w.err == nil { // otherwise the confirmation of the subscription makes it due
		t.dues.add(w)
		t.dispatch()
	}
	return false
}

// JoinFirst is Join for a caller that does not want to wait: if anybody else waits, w does not join, and JoinFirst
// returns false.
func (h *Hub) JoinFirst(w *Waiter, q Queue) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t := h.topics[q]; t != nil && t.first != nil && (!w.Shared || !t.isShareAsked()) {
		return false
	}
	h.topic(w, q).askAtOnce(w)
	return true
}

// MayShare reports whether a waiter for a share could ask at once: the queue is empty, or its first waiter asks for a
// share and nobody wants more.
func (h *Hub) MayShare(q Queue) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.topics[q]
	return t == nil || (t.first == nil || t.isShareAsked()) && t.localHoldLasts() == 0
}

// localHoldLasts returns how long this process is known to keep the lock: until then new waiters need not ask Redis.
// It is 0 if messages might have been missed.
func (t *topic) localHoldLasts() time.Duration {
	if t.localHold.IsZero() || !t.isLive() {
		return 0
	}
	return max(0, time.Until(t.localHold))
}

// isShareAsked reports whether the first in the queue asks for a share, and those behind it, if any, also want
// shares.
func (t *topic) isShareAsked() bool {
	w := t.first
	return w != nil && w == t.current && w.Shared && t.exclusive == 0
}

// topic returns the topic of a queue, for a waiter that joins.
func (h *Hub) topic(w *Waiter, q Queue) *topic {
	t := h.topics[q]
	if t == nil {
		t = h.newTopic(q)
	}
	w.topic, w.since = t, t.turns
	return t
}

// newTopic is not inlined: the stack of everybody who joins would be twice as large.
//
//go:noinline
func (h *Hub) newTopic(q Queue) (t *topic) {
	if last := len(h.spare) - 1; last >= 0 {
		t, h.spare = h.spare[last], h.spare[:last]
	} else {
		t = &topic{hub: h}
	}
	t.topicState = topicState{queue: q}
	h.topics[q] = t
	return t
}
