package pubsub

import "time"

// An unlock that notifies all lets the first to ask have the lock: the process nearest to Redis, usually the previous
// holder. So now and then a first waiter steps aside for a moment, a courtesy ([Hub.Aside]), and others ask first:
//
//   - in the unlocking process, if its unlocks notify all, it had a run of them, and others listen ([Hub.GiveWay]);
//   - in the first process of Redis's queue, if the lock is free for listeners out of line ('? 0').
//
// The timer or a message ends the courtesy, so nobody sleeps through an unlock. The listeners need not want the lock:
// so the next courtesy comes a while later at the earliest (again), unless one of them has come. Vain courtesies cost
// a twenty-fifth of the time at most.

// again is the pause before the next courtesy if nobody came in the last.
const again = 250 * time.Millisecond

// GiveWay is [Hub.Ending] for a holder whose release notifies all, this process included. The first waiter steps
// aside for others if this process has had the lock for run in a row.
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

// Alone reports that the release announced by [Hub.GiveWay] notified nobody else.
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

// stepAside makes the first waiter ask after a courtesy. It returns false if there is none, or the waiter asks now.
func (t *topic) stepAside() bool {
	asks := t.current != nil && t.current.claim == unclaimed
	if t.first == nil || asks || !t.mayStepAside() || t.hub.Aside == 0 {
		return false
	}
	t.polite = true
	t.setTimer(t.hub.Aside)
	return true
}

// mayStepAside reports whether the last courtesy, or the beginning of a run, is long enough ago.
func (t *topic) mayStepAside() bool { return !time.Now().Before(t.aside) }

// othersFirst notes that others go first now.
func (t *topic) othersFirst() { t.aside = time.Now().Add(again) }

// unlockedForAll handles '0', the message of an unlock that notifies all. It reports whether the first waiter asks at
// once.
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
