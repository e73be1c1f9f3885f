package pubsub

import (
	"fmt"
	"math"
	"time"
)

// topic is the queue for a lock, and its share in the subscription of the lock's channel. Hub.mu guards all of it.
//
// Stopped waiters are out of the queue at once, so a crowd of them is walked once. They keep the topic, and a place,
// until they leave.
//
// Invariant I-wake, by which nobody sleeps through an unlock. While the queue is not empty, one of these holds:
//
//   - a waiter has the turn, is claimed or is due;
//   - the timer will end a courtesy;
//   - a subscription is being asked for, or is live and the topic has yet to hear of that;
//   - the subscription is live, and an attempt made after its confirmation was answered "held", or got the lock for a
//     hold of this process that has not ended yet (localHold). An unlock that gave the lock to another process, or
//     notified all, counts as such an attempt.
//
// A process with a place in Redis's queue ignores '00'. It wakes by a grant, by '? <ms>', or by its timer, which
// fires before Redis forgets the place. If Redis drops the place because nobody listens, the subscription is not
// live, and an attempt follows its confirmation. If Redis loses the queue, the timer finds out.
//
// If each waiter has a place (Queue.Each), this holds for each of them. The refresh of the places finds those that Redis
// has lost ([Hub.Look]).
type topic struct {
	hub *Hub // set once: a waiter may look at it even after it left the queue
	topicState
}

// topicState is cleared when a topic is used for another queue. Hub.mu guards it.
type topicState struct {
	queue Queue

	waiters
	current *Waiter            // has the turn, or is claimed
	turns   uint64             // turns and claims begun so far
	stopped int32              // waiters that were stopped, and have not left yet
	apart   int32              // waiters asking for a share beside the queue
	places  map[string]*Waiter // by owner: those with a place in Redis's queue, or about to have one; one at most, unless queue.Each

	timer   *time.Timer // fires when the holder's remaining lease has run out, or a courtesy
	timerAt time.Time   // when; zero: not set
	polite  bool        // it is to end a courtesy

	localHold   time.Time // this process has the lock until then, unless it may be free; zero: not known
	freedCount  uint64    // how often the lock may have become free
	freedAtTurn uint64    // that when the current or last turn began
	liveAtTurn  bool      // the subscription was live at that time, of a queue with places

	courtesy courtesy

	sub  *share // nil until first needed
	need bool   // the queue needs it
}

// askAtOnce makes a waiter that found the queue empty ask. If the subscription is live, no other attempt need follow
// its turn.
func (t *topic) askAtOnce(w *Waiter) {
	if w.Shared && (!w.Joint || t.first != nil) {
		t.goApart(w)
		return
	}
	t.push(w)
	t.begin(w)
	t.subscribeIfLive()
}

// begin gives w the turn, or claims it. The answer to the attempt will show whose the lock is.
func (t *topic) begin(w *Waiter) {
	t.current = w
	t.turns++
	t.stopTimer()
	t.localHold, t.freedAtTurn, t.liveAtTurn = time.Time{}, t.freedCount, t.queue.Places && t.isLive()
}

func (t *topic) freed() {
	t.localHold = time.Time{}
	t.freedCount++
}

// maybeFree reports whether there was news since the turn began, maybe about the end of the very hold that it gets.
func (t *topic) maybeFree() bool { return t.freedCount != t.freedAtTurn }

// remove takes a waiter out for good, from the queue or from those that were stopped.
func (t *topic) remove(w *Waiter) {
	if w.stopped {
		w.stopped = false
		t.stopped--
	} else {
		t.unlink(w)
	}
	if w.place != nil {
		w.leavePlace()
	}
}

// stop gives a waiter an error, and takes it out of the queue: it has yet to leave. For the current one, its turn or
// claim must end first. stop reports whether w was due, so that the next one is to be woken.
func (t *topic) stop(w *Waiter, err error) (wasDue bool) {
	if w.err = err; t.current != w {
		return t.halt(w)
	}
	t.nextBarrier(w, t.exclusive-1)
	return false
}

func (t *topic) halt(w *Waiter) (wasDue bool) {
	wasDue = w.isDue()
	t.unlink(w)
	w.stopped = true
	t.stopped++
	w.signal()
	return wasDue
}

// stopAll gives all waiters the error for which the function says so.
func (t *topic) stopAll(err error, stops func(*Waiter) bool) {
	woken := false
	for w := t.first; w != nil; {
		next := w.next // stop takes w out
		if stops(w) {
			woken = t.stop(w, err) || woken
		}
		w = next
	}
	if woken {
		t.wakeFirst()
	}
}

func (t *topic) unlink(w *Waiter) {
	t.waiters.unlink(w)
	if w.expiry != nil {
		w.unwatch()
	}
	if t.current == w {
		t.current = nil
	}
	if t.first == nil { // whoever comes next asks
		t.stopTimer()
		t.need = false
	}
}

// dispatch gives the turn, if nobody has it, to the first due waiter.
func (t *topic) dispatch() {
	if t.current != nil || len(t.dues) == 0 {
		return
	}
	w := t.dues[0]
	t.dues.remove(w)
	t.begin(w)
	w.signal()
}

// wake makes a waiter due. One that was stopped only leaves, so another one asks for it.
func (t *topic) wake(w *Waiter) {
	if w.stopped {
		t.wakeFirst()
		return
	}
	t.dues.add(w)
	t.dispatch()
}

func (t *topic) wakeFirst() {
	if t.first != nil {
		t.wake(t.first)
	}
}

// confirmed wakes the waiters that may have missed a message.
func (t *topic) confirmed() {
	t.courtesy.ownUnlock = false
	switch {
	case !t.queue.Each:
		t.wakeFirst()
	case t.sub.reach().told:
		t.wakeAll()
	default:
		t.refuse(fmt.Errorf("subscribe to %q: the server refuses it", t.queue.Channel.beside(t.hub.conns.grants).Name))
	}
}

func (t *topic) wakeAll() {
	for w := t.first; w != nil; w = w.next {
		t.dues.add(w)
	}
	t.dispatch()
}

// refuse ends all waits with the server's refusal of the subscription. Later waiters ask again.
func (t *topic) refuse(err error) {
	t.need = false
	t.stopAll(err, func(*Waiter) bool { return true })
	if t.sub != nil {
		t.sub.release(false) // a waiter may have asked for it since
	}
}

func (t *topic) isLive() bool { return t.sub != nil && t.sub.reach().live }

// subscribe asks for the subscription. Its confirmation wakes the first waiter, or each.
func (t *topic) subscribe() {
	if t.need {
		return
	}
	t.need = true
	if t.sub == nil {
		t.sub = t.hub.conns.listen(t.queue.Channel, t, false, t.queue.Places)
		t.freed() // messages before this were not heard here, even if they arrived
	}
	if t.sub.need() {
		t.confirmed() // live from the queue before, or for another lock
	}
}

// subscribeIfLive is for a waiter that is about to ask: the queue needs the subscription if it is live already.
func (t *topic) subscribeIfLive() { t.need = t.sub != nil && t.sub.needIfLive() }

// keepSubscription is for a waiter that relies on what was found while the subscription was live. If that is over, the
// confirmation of the next one wakes it.
func (t *topic) keepSubscription() {
	t.need = true
	t.sub.need()
}

// goApart makes a waiter outside the queue ask for a share, beside others.
func (t *topic) goApart(w *Waiter) {
	w.askingConcurrently, w.since = true, t.freedCount
	t.apart++
}

// letIn lets in the waiters directly behind one that got a share: those that want a share take the same, or ask at
// the same time. The next waiter behind them asks in its turn, since it has not asked since the lock became shared.
func (t *topic) letIn(first *Waiter) {
	for w := t.first; w != nil && w.Shared && w.err == nil; w = t.first {
		t.remove(w)
		if sharer, ok := w.Value.(Sharer); ok && first.Joint && sharer.Share(first.Value) {
			w.claim = handed
		} else {
			w.admittedBehind = true
			t.goApart(w)
		}
		w.signal()
	}
	if t.first != nil {
		t.dues.add(t.first)
	}
}

// removeIfEmpty drops an empty queue, unless its subscription is confirmed: while that lasts, the next waiter finds
// what was heard. With linger, it lasts for a while.
func (t *topic) removeIfEmpty(linger bool) {
	if t.first != nil {
		return
	}
	if t.sub != nil {
		t.sub.release(linger)
	}
	if t.stopped > 0 || t.apart > 0 || t.sub != nil && t.sub.reach().confirmed {
		return
	}
	h := t.hub
	delete(h.topics, t.queue)
	if t.sub != nil {
		t.sub.leave()
		t.sub = nil // late events are for nobody
	} else if t.timer == nil && len(h.spare) < maxSpare { // nothing refers to it any more
		h.spare = append(h.spare, t)
	}
}

// setTimer makes the first waiter ask after d, unless it asks earlier. A negative d means never.
func (t *topic) setTimer(d time.Duration) {
	if d < 0 || t.hub.closed {
		return
	}
	if d < math.MaxInt64-time.Millisecond {
		d += time.Millisecond // Redis rounds the remaining lease down
	}
	at := time.Now().Add(d)
	if !t.timerAt.IsZero() && t.timerAt.Before(at) {
		return
	}
	t.timerAt = at
	if t.timer == nil {
		t.timer = time.AfterFunc(d, t.expired)
	} else {
		t.timer.Reset(d)
	}
}

func (t *topic) stopTimer() {
	t.timerAt, t.polite = time.Time{}, false
	if t.timer != nil {
		t.timer.Stop()
	}
}

func (t *topic) expired() {
	t.hub.mu.Lock()
	defer t.hub.mu.Unlock()
	polite := t.polite
	t.timerAt, t.polite = time.Time{}, false
	if t.sub == nil && t.first == nil { // dropped since
		return
	}
	if !polite && t.sub != nil { // a message may have been missed
		t.sub.suspect()
	}
	t.courtesy.rivals.vain = polite
	t.wakeFirst()
}

// asksIn makes the first waiter ask after a courtesy of d. It returns false if there is none, it asks now, or d is 0.
func (t *topic) asksIn(d time.Duration) bool {
	asks := t.current != nil && t.current.claim == unclaimed
	if t.first == nil || asks || d == 0 || t.first.hurries(d) {
		return false
	}
	t.polite = true
	t.setTimer(d)
	return true
}

// othersCame notes that another process had the lock when w asked, or before. If w has let it go first, the next courtesy is due as soon.
func (t *topic) othersCame(w *Waiter) {
	t.courtesy.rivals.vain = false
	if w != nil && w.yields {
		delete(t.hub.yields.of, t.queue)
	}
}
