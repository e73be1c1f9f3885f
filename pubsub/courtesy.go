package pubsub

import "time"

// An unlock that tells everybody gives the lock to whoever asks first: to the process with the shortest way to Redis, which
// mostly is the one that had it. So a first waiter steps aside for a moment ([Hub.Aside]), and others ask first:
//
//   - in the process that unlocks, if its unlocks tell everybody, it had a run of them, and others listen ([Hub.GiveWay]);
//   - in the process that is the first of Redis's queue, if the lock is free for those outside of the queue ('? 0').
//
// The timer ends the moment, or a message does, so nobody sleeps through an unlock. Those who listen need not want the lock: so the next
// moment comes a while later at the earliest (again), unless one of them has come. Moments in vain cost a twenty-fifth of the time at most.

// again is for how long there is no further moment if nobody came in the last one.
const again = 250 * time.Millisecond

// GiveWay is [Hub.Ending] for a holder whose release tells everybody, this process included. The first waiter steps aside for others if
// this process has had the lock for that long in a row.
func (h *Hub) GiveWay(q Queue, run time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.freed(q)
	if t == nil || !t.live() {
		return
	}
	if t.own = true; t.aside.IsZero() {
		t.aside = time.Now().Add(run)
	}
}

// Alone says that the release that [Hub.GiveWay] was for has told nobody else.
func (h *Hub) Alone(q Queue) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.topics[q]
	if t == nil || !t.polite && !t.own {
		return
	}
	t.own, t.aside = false, time.Time{}
	t.freed()
	t.wakeFirst()
}

// stepAside has the first waiter ask when the moment is over. It reports false if there is no such moment, or it asks now.
func (t *topic) stepAside() bool {
	asks := t.current != nil && t.current.claim == unclaimed
	if t.first == nil || asks || !t.mayStepAside() || t.hub.Aside == 0 {
		return false
	}
	t.polite = true
	t.setTimer(t.hub.Aside)
	return true
}

// mayStepAside reports whether the last moment for others, or the beginning of a run, is long enough ago.
func (t *topic) mayStepAside() bool { return !time.Now().Before(t.aside) }

// othersFirst notes that others go first now.
func (t *topic) othersFirst() { t.aside = time.Now().Add(again) }

// unlockedForAll handles '0', the message of an unlock that tells everybody. It reports whether the first waiter asks at once.
func (t *topic) unlockedForAll() bool {
	if !t.own { // somebody else had the lock
		t.aside = time.Time{}
		return true
	}
	t.own = false
	if !t.stepAside() {
		return true
	}
	t.othersFirst()
	return false
}
