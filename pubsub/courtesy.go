package pubsub

import "time"

// An unlock that notifies all lets the first to ask have the lock: the process nearest to Redis, usually the previous
// holder. So in each process the first waiter sometimes waits for a moment before it asks, a courtesy ([Hub.Aside]):
//
//   - in the unlocking process, if its unlocks notify all, it had a run of them, and others listen ([Hub.GiveWay]);
//   - in the unlocking process, if it was the only one who wanted the lock there, and listeners out of line were told
//     ([Hub.Yield]);
//   - in the first process of Redis's queue, if the lock is free for listeners out of line ('? 0');
//   - in each process, where there is no queue in Redis, after an unlock of this library, if others are likely to be there
//     (presence);
//   - in a process that others come before: those before it in Redis's queue or, where there is none, those who have had
//     the lock less lately. For each of them it waits a part of the moment.
//
// The timer or a message ends the courtesy, so nobody sleeps through an unlock. No courtesy takes more than half of the
// time that the waiter has. The listeners out of line need not want the lock: so the next courtesy towards them comes a
// while later at the earliest (again), unless one of them has come in this one. Vain courtesies towards them cost a
// twelfth of the time at most. Where there is no queue, those before this process who did not come are forgotten until
// they have the lock again.

const (
	// again is the pause before the next courtesy if nobody came in the last.
	again = 250 * time.Millisecond
	// steps is how many processes before this one make it wait for all of Hub.Aside.
	steps = 5
)

// GiveWay is [Hub.Ending] for a holder whose release notifies all, this process included. The first waiter steps
// aside for others if this process has had the lock for run in a row.
func (h *Hub) GiveWay(q Queue, run time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.freed(q)
	if t == nil || !t.isLive() {
		return
	}
	if t.ownUnlockPending = true; t.aside.IsZero() {
		t.aside = time.Now().Add(run)
	}
}

// Alone reports that the release announced by [Hub.GiveWay] notified nobody else.
func (h *Hub) Alone(q Queue) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.topics[q]
	if t == nil || !t.polite && !t.ownUnlockPending {
		return
	}
	t.aside = time.Time{}
	if t.queue.Shared {
		t.rivals, t.aside = rivals{}, time.Now().Add(again)
		if t.ownUnlockPending { // the message is on its way, and wakes the first
			return
		}
	}
	t.ownUnlockPending = false
	t.freed()
	t.wakeFirst()
}

// stepAside makes the first waiter ask after a courtesy. It returns false if there is none, or the waiter asks now.
func (t *topic) stepAside() bool { return t.mayStepAside() && t.asksIn(t.hub.Aside) }

// asksIn makes the first waiter ask after d. It returns false if there is none, it asks now, or d is 0.
func (t *topic) asksIn(d time.Duration) bool {
	asks := t.current != nil && t.current.claim == unclaimed
	if t.first == nil || asks || d == 0 || t.first.hurries(d) {
		return false
	}
	t.polite = true
	t.setTimer(d)
	return true
}

// hurries reports whether a pause would take much of the time that the waiter has.
func (w *Waiter) hurries(pause time.Duration) bool {
	soon := func(end time.Time) bool { return time.Until(end) < 2*pause }
	return !w.Until.IsZero() && soon(w.Until) || w.Hurry != 0 && soon(time.UnixMilli(w.Hurry))
}

// mayStepAside reports whether the last courtesy, or the beginning of a run, is long enough ago.
func (t *topic) mayStepAside() bool { return !time.Now().Before(t.aside) }

// othersFirst notes that others go first now. If one of them has just come, the next courtesy is due as soon.
func (t *topic) othersFirst() {
	if now := time.Now(); now.Sub(t.came) >= outsidersStay {
		t.aside = now.Add(again)
	}
}

// unlockedForAll handles '0', the message of an unlock that notifies all. It reports whether the first waiter asks at
// once.
func (t *topic) unlockedForAll() bool {
	if !t.ownUnlockPending { // somebody else had the lock
		t.outsiderCame()
		return true
	}
	t.ownUnlockPending = false
	if !t.stepAside() {
		return true
	}
	t.othersFirst()
	return false
}

// outsiderCame notes an unlock of a listener out of line: the next courtesy is due at once.
func (t *topic) outsiderCame() {
	t.aside, t.came = time.Time{}, time.Now()
	t.lead = min(t.lead+1, steps)
}

// unlockedWithoutQueue handles an unlock where there is no queue in Redis. ours means that it is this library's. Then
// listeners out of line, such as Redisson, go first, unless they have had more turns lately, or one of ours that comes before nobody has
// come instead: with neither queue nor courtesy, such as in a TryLock, it may come again and again.
func (t *topic) unlockedWithoutQueue(ours bool) {
	jumped := t.polite && t.before() == 0
	if !t.ownUnlockPending {
		t.othersCame(t.first)
		if ours || t.lead > 1 { // or none of those before this process has come while the outsiders had two turns
			t.rivals.heard++
		}
	}
	t.ownUnlockPending = false
	t.rivals.hadTurn(ours)
	if t.polite { // somebody has come first, and so may the next one
		t.stopTimer()
	}
	if !ours {
		t.outsiderCame()
		t.hub.presence.seen(t.came)
		t.inOrder(0)
		return
	}
	pause := time.Duration(0)
	if t.lead <= 1 && !jumped && t.mayStepAside() && t.hub.presence.isLikely(time.Now()) {
		t.othersFirst()
		pause = t.hub.Aside
	}
	t.lead = max(0, t.lead-1)
	t.inOrder(pause)
}

// inOrder makes the first waiter ask after a pause, and after those who come before it; at once if it wants a share, or has what others
// wait for.
func (t *topic) inOrder(pause time.Duration) {
	pause += t.hub.Aside * time.Duration(min(t.before(), steps)) / steps
	if w := t.first; w == nil || w.Shared || w.Ahead || !t.asksIn(pause) {
		t.wakeFirst()
	}
}

// before returns how many processes come before this one.
func (t *topic) before() int {
	if t.queue.Shared {
		return t.rivals.before()
	}
	return int(t.ahead)
}

// Saw notes what the waiter's attempt found, before [Waiter.Held]: the place of its process in Redis's queue, from 1 on,
// or 0 if it has none, and the client that has the lock.
func (w *Waiter) Saw(place int, client string) {
	t := w.topic
	t.hub.mu.Lock()
	defer t.hub.mu.Unlock()
	t.othersCame(w)
	if t.ahead = int32(max(0, place-1)); t.queue.Shared && client != "" {
		t.rivals.holder = client
	}
}
