package pubsub

import (
	"math"
	"time"
)

// topic is the queue for a lock, and its share in the subscription of the lock's channel. Hub.mu
// guards all of it.
//
// Invariant I-wake: while the queue is not empty, one of these holds, so that nobody sleeps through
// an unlock: a waiter has the turn; or a waiter is due; or a subscription is being asked for; or
// the subscription stands and an attempt made after its confirmation was answered "held", or got the lock
// for a hold of this process that has not ended yet, see ours.
type topic struct {
	hub   *Hub
	queue Queue

	first, last *Waiter
	busy        *Waiter // has the turn, or is claimed
	began       uint64  // Hub.clock when it began
	due         int     // how many waiters are due

	timer *time.Timer // fires when the holder's remaining time has run out
	ours  ours
	news  uint64 // Hub.clock when a hold of the lock may have ended last

	sub  *subscription // nil until it was needed for the first time
	need bool          // the queue needs it
}

// ours is what is known of a hold of this process that was taken through the queue. While it lasts, who joins
// waits for its end without asking Redis first: whoever ends it says so, here or by a message.
type ours struct {
	until time.Time // it is in Redis until then, unless somebody ends it
	began uint64    // topic.began of the attempt that got it; news since then may be of its end
}

// over notes that the lock may not be held any more.
func (t *topic) over() {
	t.hub.clock++
	t.news = t.hub.clock
}

// lasts says for how long the lock is still known to be held by this process, 0 if it is not. A message from before the
// subscription was confirmed might have said otherwise.
func (t *topic) lasts() time.Duration {
	if t.sub == nil || !t.sub.stands() || t.ours.began < max(t.sub.since, t.news) {
		return 0
	}
	return max(0, time.Until(t.ours.until))
}

// Waiter is one place in a queue; its zero value is ready for [Hub.Join]. Its methods are for the
// goroutine that joined, except where they say otherwise.
type Waiter struct {
	// Value is for whoever claims the waiter. It is set before Join.
	Value any
	// Until is when it waits no longer, except for the end of its turn or of a claim; zero: it has no such time. It is
	// set before Join.
	Until time.Time

	topic      *topic
	prev, next *Waiter
	turn       chan struct{} // capacity 1: whoever sends holds Hub.mu and never blocks
	err        error         // why waiting is in vain
	joined     uint64        // Hub.clock then
	due        bool          // gets the turn when it is the first of those that are due
	claim      claim
	expiry     *expiry // nil until it waits, or if it has no Until
}

// Turn is ready when there is news for the waiter, see [Waiter.News].
func (w *Waiter) Turn() <-chan struct{} { return w.turn }

// News says what Turn was ready for. Either the waiter has the turn; or it was granted the lock, and is
// out of the queue; or waiting is in vain, because its time is over ([ErrExpired]), the hub is closed ([ErrClosed]), or the
// server refuses the subscription or did not answer the one that had the turn: then it has to leave, and what it may have got
// in the same moment, the turn, say, is for the next one.
func (w *Waiter) News() (granted bool, err error) {
	h := w.topic.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	if w.claim == handed {
		return true, nil
	}
	return false, w.err
}

// Held ends the turn of a waiter whose attempt found the lock held. The waiter keeps its place and
// gets the turn again after the next unlock, and not later than ttl from now unless ttl is
// negative.
func (w *Waiter) Held(ttl time.Duration) {
	t := w.topic
	t.hub.mu.Lock()
	defer t.hub.mu.Unlock()
	w.park()
	t.busy = nil
	t.over() // or somebody else's
	if w.err != nil {
		t.makeDue(w) // when it leaves, the next one asks, and subscribes
		w.signal()
		return
	}
	t.subscribe()
	t.setTimer(ttl)
	t.dispatch()
}

// Done takes a waiter that got the lock out of the queue. Those behind it wait for the next
// unlock, and not longer than ttl.
func (w *Waiter) Done(ttl time.Duration) {
	t := w.topic
	t.hub.mu.Lock()
	defer t.hub.mu.Unlock()
	w.done(ttl)
}

func (w *Waiter) done(ttl time.Duration) {
	t := w.topic
	t.remove(w)
	if t.sub != nil { // nobody asks otherwise, and most locks are free: they need not look at the clock
		t.ours = ours{until: time.Now().Add(ttl), began: t.began}
	}
	if t.first != nil {
		t.subscribe()
		t.setTimer(ttl)
		if w.due { // a message came during the turn; it may be about a later unlock than ours
			t.wakeFirst()
		}
	} else if t.sub != nil && w.turn != nil { // it waited, so others want the lock, too
		t.sub.stay()
	}
	t.dispatch()
	t.settle()
}

// Leave takes a waiter that gives up out of the queue. If it had the turn, or was due to get it,
// the next one gets it instead: a wake-up is never lost with a cancelled waiter. The same if it
// leaves with any error but ErrExpired, for somebody may have joined behind it since.
//
// If the waiter does not have the turn, somebody else may be about to get the lock for it: then it
// may be too late to leave, or somebody else's to finish.
func (w *Waiter) Leave() Leaving {
	t := w.topic
	t.hub.mu.Lock()
	defer t.hub.mu.Unlock()
	switch w.claim {
	case handed:
		return Granted
	case claimed, abandoned:
		w.claim = abandoned
		return Claimed
	case unclaimed:
	}
	pass := t.busy == w || w.due || w.err != nil && w.err != ErrExpired //nolint:errorlint // never wrapped in here
	t.remove(w)
	if pass {
		t.wakeFirst()
	}
	t.settle()
	return Left
}

// Unanswered passes on why an attempt failed to all who were waiting when it began: what it did
// not get for so long would only keep them waiting one after the other. The caller has the turn,
// and leaves afterwards.
func (w *Waiter) Unanswered(err error) {
	t := w.topic
	t.hub.mu.Lock()
	defer t.hub.mu.Unlock()
	for x := t.first; x != nil; x = x.next {
		if x != w && x.joined <= t.began {
			x.err = err
			x.signal()
		}
	}
}

// park prepares a waiter that does not have the turn for what may come.
func (w *Waiter) park() {
	if w.turn == nil { // it is new, or had the turn at once
		w.turn = make(chan struct{}, 1)
	}
	if w.topic.hub.closed && w.err == nil {
		w.err = ErrClosed
		w.signal()
	}
	w.watch()
}

// stop tells a waiter, also one that is claimed, to leave; one that has the turn hears of it in Held.
func (w *Waiter) stop(err error) {
	w.err = err
	if w.topic.busy != w || w.claim == claimed {
		w.signal()
	}
}

func (w *Waiter) signal() {
	select {
	case w.turn <- struct{}{}:
	default:
	}
}

func (t *topic) push(w *Waiter) {
	if w.prev = t.last; t.last != nil {
		t.last.next = w
	} else {
		t.first = w
	}
	t.last = w
}

func (t *topic) remove(w *Waiter) {
	if w.prev != nil {
		w.prev.next = w.next
	} else {
		t.first = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	} else {
		t.last = w.prev
	}
	w.prev, w.next = nil, nil
	w.unwatch()
	if t.busy == w {
		t.busy = nil
	}
	if w.due {
		t.due--
	}
}

// dispatch gives the turn, if nobody has it, to the first waiter that is due.
func (t *topic) dispatch() {
	if t.busy != nil || t.due == 0 {
		return
	}
	for w := t.first; w != nil; w = w.next {
		if w.due && w.err == nil {
			w.due = false
			t.due--
			t.busy, t.began = w, t.hub.clock
			w.signal()
			return
		}
	}
}

func (t *topic) wakeFirst() {
	if t.first != nil {
		t.makeDue(t.first)
		t.dispatch()
	}
}

func (t *topic) makeDue(w *Waiter) {
	if !w.due {
		w.due = true
		t.due++
	}
}

func (t *topic) wakeAll() {
	for w := t.first; w != nil; w = w.next {
		t.makeDue(w)
	}
	t.dispatch()
}

// fail tells every waiter that the server refuses the subscription.
func (t *topic) fail(err error) {
	for w := t.first; w != nil; w = w.next {
		w.err = err
		if t.busy != w { // the one that has the turn hears of it in Held
			w.signal()
		}
	}
}

// settle drops what nobody needs any more: the need for the subscription when the queue is empty,
// and with the last need the subscription and its topics.
func (t *topic) settle() {
	if t.first != nil {
		return
	}
	t.stopTimer()
	t.need = false
	if t.sub == nil {
		t.hub.drop(t)
		return
	}
	t.sub.reconcile()
	t.sub.settle()
}

// subscribe asks for the subscription. When it is confirmed, the first waiter is woken.
func (t *topic) subscribe() {
	if t.need {
		return
	}
	t.need = true
	if t.sub == nil {
		t.sub = t.hub.subscription(t.queue.Channel)
		t.sub.topics = append(t.sub.topics, t)
	}
	if t.sub.stands() {
		t.wakeFirst() // still standing from the queue before, or for another lock
		return
	}
	t.sub.reconcile()
}

func (t *topic) setTimer(ttl time.Duration) {
	if ttl < 0 || t.hub.closed {
		t.stopTimer()
		return
	}
	if ttl < math.MaxInt64-time.Millisecond {
		ttl += time.Millisecond // Redis rounds the remaining time down
	}
	if t.timer == nil {
		t.timer = time.AfterFunc(ttl, t.expired)
	} else {
		t.timer.Reset(ttl)
	}
}

func (t *topic) stopTimer() {
	if t.timer != nil {
		t.timer.Stop()
	}
}

func (t *topic) expired() {
	t.hub.mu.Lock()
	defer t.hub.mu.Unlock()
	if t.hub.closed || t.sub == nil { // dropped since
		return
	}
	t.sub.suspect()
	t.wakeFirst()
}
