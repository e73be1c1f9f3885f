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

// courtesy is what a topic knows of its own unlocks, and of those whom they told.
type courtesy struct {
	gave    time.Time     // when others were last let go first; zero: not yet, or one of them has come since
	pause   time.Duration // until that may be again, if none has come
	open    bool          // unlocks of this process tell everybody
	own     bool          // one of them is under way: the next '0' is its
	over    bool          // they are a run that is over
	unlocks int           // of these in a row
	began   time.Time     // when the first of them was
}

// courteous returns the topic's courtesy.
func (t *topic) courteous() *courtesy {
	if t.courtesy == nil {
		t.courtesy = new(courtesy)
	}
	return t.courtesy
}

// GiveWay is [Hub.Ending] for a holder whose release tells everybody, this process included. It ends a run if it is the
// most-th of this process in a row.
func (h *Hub) GiveWay(q Queue, most int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.freed(q)
	if t == nil || !t.live() {
		return
	}
	c := t.courteous()
	c.open, c.own = true, true
	if c.unlocks++; c.unlocks == 1 {
		c.began = time.Now()
	}
	c.over = c.unlocks >= most || time.Since(c.began) >= h.Run
}

// Alone says that the release that [Hub.GiveWay] was for has told nobody else.
func (h *Hub) Alone(q Queue) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.topics[q]
	if t == nil || !t.polite && (t.courtesy == nil || !t.courtesy.own) {
		return
	}
	c := t.courteous()
	c.own, c.gave, c.unlocks = false, time.Time{}, 0
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
	c := t.courteous()
	if c.pause = min(2*c.pause, linger); c.gave.IsZero() {
		c.pause = t.hub.Run
	}
	c.gave = time.Now()
}

// inVain reports whether others were let go first a short while ago, and none of them is known to have come.
func (t *topic) inVain() bool {
	c := t.courtesy
	return c != nil && !c.gave.IsZero() && time.Since(c.gave) < c.pause
}

// unlockedForAll handles '0', the message of an unlock that tells everybody. It reports whether the first waiter asks at once.
func (t *topic) unlockedForAll() bool {
	c := t.courteous()
	if !c.own {
		// Those in the queue pass the lock on, so it was somebody outside; unless it came while the first one here joined.
		if c.open || t.places > 0 && t.current == nil {
			c.gave, c.unlocks = time.Time{}, 0
		}
		return true
	}
	c.own = false
	if !c.over {
		return true
	}
	c.unlocks = 0
	if !t.letOthersFirst() {
		return true
	}
	t.othersFirst()
	return false
}
