package pubsub

import "time"

// An unlock that tells everybody gives the lock to whoever asks first: to the process with the shortest way to Redis, which
// mostly is the one that had it. So a first waiter lets others go first for a moment, a tenth of the run that they had to wait
// for at most ([Hub.Run]):
//
//   - in the process that unlocks, if its unlocks tell everybody, it had a run of them, and others listen ([Hub.GiveWay]);
//   - in the process that is the first of Redis's queue, if the lock is free for those outside of the queue ('? 0'). All of the queue
//     hear the '00' for these, and the '0' of one that came.
//
// The timer ends the moment, or a message does, so nobody sleeps through an unlock. Those who listen need not want the lock. If
// none of them came, the next moment is a run later at least, then two, up to linger: it costs a tenth of the time, and less.

// GiveWay is [Hub.Ending] for a holder whose release tells everybody, this process included. It ends a run if it is the
// most-th of this process in a row.
func (h *Hub) GiveWay(q Queue, most int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.freed(q)
	if t == nil || !t.live() {
		return
	}
	t.open, t.own = true, true
	if t.unlocks++; t.unlocks == 1 {
		t.began = time.Now()
	}
	t.over = t.unlocks >= most || time.Since(t.began) >= h.Run
}

// Alone says that the release that [Hub.GiveWay] was for has told nobody else.
func (h *Hub) Alone(q Queue) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.topics[q]
	if t == nil || !t.own && !t.polite {
		return
	}
	t.own, t.gave, t.unlocks = false, time.Time{}, 0
	t.freed()
	t.wakeFirst()
}

// letOthersFirst has the first waiter ask when the moment is over. It reports false if there is no such moment, or it asks now.
func (t *topic) letOthersFirst() bool {
	asks := t.current != nil && t.current.claim == unclaimed
	if t.first == nil || asks || t.inVain() || t.hub.Run == 0 {
		return false
	}
	t.polite = true
	t.setTimer(t.hub.Run / 10)
	return true
}

// othersFirst notes that others go first now.
func (t *topic) othersFirst() {
	if t.pause = min(2*t.pause, linger); t.gave.IsZero() {
		t.pause = t.hub.Run
	}
	t.gave = time.Now()
}

// inVain reports whether others were let go first a short while ago, and none of them is known to have come.
func (t *topic) inVain() bool { return !t.gave.IsZero() && time.Since(t.gave) < t.pause }

// unlockedForAll handles '0', the message of an unlock that tells everybody. It reports whether the first waiter asks at once.
func (t *topic) unlockedForAll() bool {
	if !t.own {
		// Those in the queue pass the lock on, so it was somebody outside; unless it came while the first one here joined.
		if t.open || t.places > 0 && t.current == nil {
			t.gave, t.unlocks = time.Time{}, 0
		}
		return true
	}
	t.own = false
	if !t.over {
		return true
	}
	t.unlocks = 0
	if !t.letOthersFirst() {
		return true
	}
	t.othersFirst()
	return false
}
