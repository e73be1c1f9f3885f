package pubsub

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// topic is the queue for a lock, and its share in the subscription of the lock's channel. Hub.mu
// guards all of it.
//
// Invariant I-wake: while the queue is not empty, one of these holds, so that nobody sleeps through
// an unlock: a waiter has the turn or is claimed; or a waiter is due; or the timer ends a courtesy; or a subscription is being
// asked for; or the subscription is live, and an attempt made after its confirmation was answered
// "held", or got the lock for a hold of this process that has not ended yet (localHold).
//
// A process with a place in the queue in Redis does not hear '00'. It is told by a grant, by '? <ms>', or by the end of its
// timer, which comes before Redis forgets the place. If Redis drops the place because nobody listens, the
// subscription is not live, and an attempt follows its confirmation. If Redis loses the queue, the timer finds out.
//
// If each waiter has a place (Queue.Each), each of them is due when it has joined, as soon as the subscription is live, and
// whenever that is confirmed anew. From then on each is told apart; that its place is gone from Redis, whoever refreshes it finds
// out ([Hub.Look]).
type topic struct {
	hub   *Hub
	queue Queue

	first, last *Waiter
	current     *Waiter // has the turn, or is claimed
	turns       uint64  // how many turns and claims have begun
	due         int32   // how many waiters are due
	exclusive   int32   // how many waiters want more than a share
	places      int32   // how many waiters have a place in Redis's queue, or are about to; one at most, unless queue.Each
	placeless   bool    // the last one that asked for a place got none: until one gets it, the process counts as one that is not in line

	timer   *time.Timer // fires when the holder's remaining time has run out
	timerAt time.Time   // when; zero: it is not to

	localHold time.Time // this process has the lock until then, unless it may be free; zero: not known
	news      uint64    // how often the lock may have become free
	asked     uint64    // news when the current turn, or the last one, began
	heard     bool      // the subscription was live when it began

	outside time.Time // when somebody was last told who is not in line; zero: never
	aside   time.Time // the first waiter does not step aside for other processes before that; zero: it may now
	own     bool      // an unlock of this process that tells everybody is under way: the next '0' is its

	sub    *subscription // nil until it was needed for the first time
	need   bool          // the queue needs it
	polite bool          // the timer is to end a moment in which others go first
	apart  int32         // how many ask for a share beside the queue
	slept  bool          // a waiter did, and may look at it even after it is out of the queue
}

// begin gives w the turn, or claims it. The answer to the attempt will tell whose the lock is.
func (t *topic) begin(w *Waiter) {
	t.current = w
	t.turns++
	t.stopTimer()
	t.localHold, t.asked, t.heard = time.Time{}, t.news, t.live()
}

// freed notes that the lock may be free.
func (t *topic) freed() {
	t.localHold = time.Time{}
	t.news++
}

// maybeFree reports whether news came since the turn began, maybe of the end of the hold that it gets.
func (t *topic) maybeFree() bool { return t.news != t.asked }

// localHoldLasts says for how long this process still has the lock, as far as is known: whoever
// comes meanwhile need not ask Redis. It is 0 if messages might have been missed.
func (t *topic) localHoldLasts() time.Duration {
	if t.localHold.IsZero() || !t.live() {
		return 0
	}
	return max(0, time.Until(t.localHold))
}

func (t *topic) push(w *Waiter) {
	t.count(w, 1)
	if w.prev = t.last; t.last != nil {
		t.last.next = w
	} else {
		t.first = w
	}
	t.last = w
}

func (t *topic) count(w *Waiter, n int32) {
	if !w.Shared {
		t.exclusive += n
	}
}

func (t *topic) pushAhead(w *Waiter) {
	t.count(w, 1)
	w.next, t.first.prev, t.first = t.first, w, w
}

func (t *topic) remove(w *Waiter) {
	t.count(w, -1)
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
	if t.current == w {
		t.current = nil
	}
	w.leavePlace()
	if w.due {
		t.due--
	}
}

// dispatch gives the turn, if nobody has it, to the first waiter that is due.
func (t *topic) dispatch() {
	if t.current != nil || t.due == 0 {
		return
	}
	for w := t.first; w != nil; w = w.next {
		if w.due && w.err == nil {
			w.due = false
			t.due--
			t.begin(w)
			w.signal()
			return
		}
	}
}

func (t *topic) makeDue(w *Waiter) {
	if !w.due {
		w.due = true
		t.due++
	}
}

// wake makes a waiter due.
func (t *topic) wake(w *Waiter) {
	t.makeDue(w)
	t.dispatch()
}

func (t *topic) wakeFirst() {
	if t.first != nil {
		t.wake(t.first)
	}
}

// confirmed wakes those who may have missed a message.
func (t *topic) confirmed() {
	t.own = false
	switch {
	case !t.queue.Each:
		t.wakeFirst()
	case t.sub.grants():
		t.wakeAll()
	default:
		t.refuse(fmt.Errorf("subscribe to %q: %w", t.sub.channel.Name+t.hub.grants, errNoGrants))
	}
}

var errNoGrants = errors.New("the server refuses it")

func (t *topic) wakeAll() {
	for w := t.first; w != nil; w = w.next {
		t.makeDue(w)
	}
	t.dispatch()
}

// refuse tells every waiter that the server refuses the subscription. Whoever joins later asks anew.
func (t *topic) refuse(err error) {
	t.need = false
	for w := t.first; w != nil; w = w.next {
		w.err = err
		if t.current != w { // that one hears of it when its turn or claim ends
			w.signal()
		}
	}
}

// live reports whether all messages from now on arrive.
func (t *topic) live() bool { return t.sub != nil && t.sub.live() }

// subscribe asks for the subscription. When it is confirmed, the first waiter is woken, or each.
func (t *topic) subscribe() {
	if t.need {
		return
	}
	t.need = true
	if t.sub == nil {
		t.sub = t.hub.subscription(t.queue.Channel)
		t.sub.topics = append(t.sub.topics, t)
		t.sub.update() // it may be wrong now
	}
	if t.live() {
		t.confirmed() // from the queue before, or for another lock
		return
	}
	t.sub.update()
}

// goApart has a waiter that is not in the queue ask for a share, beside others.
func (t *topic) goApart(w *Waiter) {
	w.askingConcurrently, w.since = true, t.news
	t.apart++
}

// letIn lets those in that want a share, too, and stand directly behind a waiter that got one; or has them ask at the same time. The next one
// behind them asks in its turn, for it has not asked since the lock could be shared.
func (t *topic) letIn(first *Waiter) {
	for w := t.first; w != nil && w.Shared && w.err == nil; w = t.first {
		t.remove(w)
		w.due = false
		if sharer, ok := w.Value.(Sharer); ok && first.Joint && sharer.Share(first.Value) {
			w.claim = handed
		} else {
			w.admittedBehind = true
			t.goApart(w)
		}
		w.signal()
	}
	if t.first != nil {
		t.makeDue(t.first)
	}
}

// removeIfEmpty drops an empty queue; the subscription does, if there is one.
func (t *topic) removeIfEmpty() {
	if t.first != nil {
		return
	}
	t.stopTimer()
	t.need = false
	switch {
	case t.sub != nil:
		t.sub.update()
	case t.apart == 0:
		t.hub.drop(t)
	}
}

// setTimer has the first waiter ask when d is over, unless it will earlier. A negative d is for ever.
func (t *topic) setTimer(d time.Duration) {
	if d < 0 || t.hub.closed {
		return
	}
	if d < math.MaxInt64-time.Millisecond {
		d += time.Millisecond // Redis rounds the remaining time down
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
	if t.sub == nil { // dropped since
		return
	}
	if !polite { // a message may have been missed
		t.sub.suspect()
	}
	t.wakeFirst()
}
