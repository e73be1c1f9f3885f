package pubsub

import "time"

// The states of a waiter:
//
//	new        not joined yet
//	waiting    in the queue
//	due        waiting, and gets the turn once nobody has it and nobody before it is due
//	turn       topic.current: its caller makes an attempt
//	apart      out of the queue: its caller asks for a share, beside others
//	claimed    topic.current: a holder of this process makes an attempt for it
//	abandoned  claimed, and its caller has gone
//	handed     out of the queue with the lock, by its claimant or by another process
//	stopped    out of the queue with an error, and must leave
//	out        has left the queue
//
// Its steps from state to state follow. Wake, stop and given are events from elsewhere, the others are calls for the
// waiter itself. TestNoWaiterSleepsThroughAnUnlock reads the rows: each step of its model has a row, and its model
// takes each of them.
//
//	event      from         to
//	Join       new       -> turn       nobody else is in the queue, and no hold of this process is known; or it goes ahead of all
//	Join       new       -> waiting    behind others, or for a moment, in which others are to ask (Hub.Yield)
//	Join       new       -> due        each waiter has a place, and the subscription is live
//	Join       new       -> due        it goes ahead of all, and another has the turn
//	Join       new       -> stopped    the hub is closed or draining, or its time is over
//	Join       new       -> apart      for a share of its own, as in the first row; or all others want a share, and the first is asking
//	JoinFirst  new       -> turn       nobody else is in the queue
//	JoinFirst  new       -> apart      for a share: the same, or all others want a share, and the first is asking
//	JoinFirst  new       -> new
//	wake       waiting   -> turn       by a message, a confirmation, the timer, Wake, or a departure
//	wake       waiting   -> due        the same, while another has the turn or is claimed
//	wake       due       -> turn       the other one's turn or claim has ended
//	wake       waiting   -> apart      one before it got a share, and so may this one
//	wake       waiting   -> handed     one before it got a share, which this one can have, too
//	stop       waiting   -> stopped    Stop, Drain, its time is over, the subscription is refused, or Unanswered
//	stop       due       -> stopped    wakes the next
//	given      waiting   -> handed     by another process, as the owner of its place
//	given      due       -> handed
//	given      stopped   -> handed
//	given      turn      -> turn       Held applies it
//	given      claimed   -> claimed    the end of the claim applies it
//	given      abandoned -> abandoned
//	Held       turn      -> waiting
//	Held       turn      -> turn       it was woken since its turn began
//	Held       turn      -> due        the same, and one before it is due, too
//	Held       turn      -> stopped    it was stopped since; wakes the next
//	Held       turn      -> handed     it was given the lock since
//	Held       apart     -> waiting    at the end of the queue
//	Held       apart     -> turn       it is the first there, and there was news since it went apart, or may have been
//	Held       apart     -> stopped    the hub is closed or draining, or its time is over
//	Done       turn      -> out
//	Done       apart     -> out
//	Leave      waiting   -> out        wakes the next if it had the process's only place, and could not leave it to the next
//	Leave      due       -> out        wakes the next
//	Leave      turn      -> out        wakes the next
//	Leave      apart     -> out
//	Leave      stopped   -> out        wakes the next if it had the process's only place, and could not leave it to the next
//	Leave      claimed   -> abandoned
//	Leave      abandoned -> abandoned
//	Leave      handed    -> handed
//	Claim      waiting   -> claimed    the first that is not stopped
//	Pass       waiting   -> handed     the first that is not stopped, if this process is known to have the lock, and it can take that as it is
//	Grant      claimed   -> handed
//	Grant      abandoned -> turn       for its claimant, which leaves in its place
//	Queued     claimed   -> waiting
//	Queued     claimed   -> turn       it was woken since it was claimed
//	Queued     claimed   -> stopped    it was stopped since
//	Queued     claimed   -> handed     it was given the lock since
//	Queued     abandoned -> turn       for its claimant, which leaves in its place
//	Unclaim    claimed   -> turn
//	Unclaim    claimed   -> stopped    it was stopped since
//	Unclaim    claimed   -> handed     it was given the lock since
//	Unclaim    abandoned -> turn       for its claimant, which leaves in its place
//
// A waiter with the turn or a claim keeps its state when it is woken, stopped or given the lock; Waiter.due,
// Waiter.err and Waiter.given remember that until the turn or claim ends. [Hub.Stop], [Hub.Drain] and the end of its
// time signal to a claimed waiter all the same, so that its caller can leave. A waiter that leaves in its turn also
// leaves a lock given to it: its caller releases the field in Redis.

// Waiter is one place in a queue. Its exported fields are set before [Hub.Join]; its zero value is ready for that. Its
// methods are for the goroutine that joined, except where they say otherwise.
type Waiter struct {
	// Value is for the waiter's claimant. It may be an [Heir], a [Taker], and a [Sharer].
	Value any
	// Until is when its wait ends, except for the rest of its turn or of a claim; zero: never.
	Until time.Time
	// Hurry is when its caller leaves by itself, as Unix time in milliseconds; 0: not known. Courtesies leave it time.
	Hurry int64
	// Shared means that it waits for a share of the lock, which several can have. When it gets one, the waiters for
	// shares directly behind it get in with the same share ([Sharer]), or ask at the same time.
	Shared bool
	// Joint means that others can have a Shared waiter's share. So waiters that come while it asks wait for its answer.
	Joint bool
	// Persists means that an attempt without an answer does not end its wait.
	Persists bool
	// Ahead puts it before all others: it has what they wait for.
	Ahead bool

	stopped            bool // it has an error, and stands in no queue any more
	yields             bool // it lets others ask first, and has not asked itself
	askingConcurrently bool // it asks beside the queue
	admittedBehind     bool // behind a waiter that got a share
	claim              claim
	dueAt              int32 // its position in topic.dues, plus 1; 0: not due
	order              int64 // within the queue
	topic              *topic
	prev, next         *Waiter
	turn               chan struct{} // capacity 1: senders hold Hub.mu and never block
	err                error         // why waiting is in vain
	since              uint64        // topic.turns when it joined the queue, or topic.freedCount when it went apart
	place              *queueEntry   // in Redis's queue, or about to be; nil: none
	given              *Grant        // the lock from another process
	expiry             *expiry       // nil until it waits, or without an Until
}

// The Value of a waiter may take part in what becomes of it. The methods return false if it cannot, and must not call
// the hub.
type (
	// Heir may take over the place of another, as its owner.
	Heir interface {
		// Inherit is called when the waiter with the process's place leaves, for the next one, which sleeps: that
		// becomes the owner. from is the Value of the leaving waiter.
		Inherit(from any) bool
	}

	// Taker may get the lock from the holder, see [Hub.Pass].
	Taker interface {
		// Take is called for the next waiter, which sleeps, and gets the lock as it is. from is the argument of Pass;
		// outsiders means that listeners out of line lately got an unlock message.
		Take(from any, outsiders bool) bool
	}

	// Sharer may have the share of one before it.
	Sharer interface {
		// Share is called for a waiter behind one that got a share and has the Value with.
		Share(with any) bool
	}
)

// Turn is ready when there is news for the waiter, see [Waiter.News].
func (w *Waiter) Turn() <-chan struct{} { return w.turn }

// News says why Turn is ready:
//
//   - The waiter has the turn; or
//   - granted: it has the lock, and is out of the queue; or
//   - err: waiting is in vain, because its time is over ([ErrExpired]), the hub is closed
//     ([ErrClosed]), the server refuses the subscription, or did not answer the waiter with the
//     turn. Then it must leave, and a turn given at the same moment goes to the next waiter.
func (w *Waiter) News() (granted bool, err error) {
	w.topic.hub.mu.Lock()
	defer w.topic.hub.mu.Unlock()
	if w.claim == handed {
		return true, nil
	}
	return false, w.err
}

// longest is how long a waiter sleeps if the lock has no expiry: a deletion of the lock sends no message. Its place
// is kept for as long, see acquire.lua.
const longest = time.Minute

// Follows reports whether the waiter asks because one before it got a share.
func (w *Waiter) Follows() bool {
	w.topic.hub.mu.Lock()
	defer w.topic.hub.mu.Unlock()
	return w.admittedBehind
}

// Exclusive returns the first waiter that wants more than a share, if it is before w; otherwise nil. Any goroutine may call it.
func (w *Waiter) Exclusive() *Waiter {
	w.topic.hub.mu.Lock()
	defer w.topic.hub.mu.Unlock()
	if x := w.topic.barrier; x != nil && w.prev != nil && x.order < w.order {
		return x
	}
	return nil
}

// Waited reports whether it was put to sleep, or would have been. It is for a waiter that has left the queue.
func (w *Waiter) Waited() bool { return w.turn != nil }

// Behind returns the number of waiters behind it, most at most.
func (w *Waiter) Behind(most int) (n int) {
	w.topic.hub.mu.Lock()
	defer w.topic.hub.mu.Unlock()
	for x := w.next; x != nil && n < most; x = x.next {
		n++
	}
	return n
}

// Held ends the turn of a waiter whose attempt found the lock held. The waiter keeps its place in the queue and gets
// the turn again after the next unlock, and after ttl at the latest; a negative ttl means that the lock has no
// expiry. placed means that the waiter has the process's place, see [Waiter.TakePlace].
func (w *Waiter) Held(ttl time.Duration, placed bool) {
	t := w.topic
	t.hub.mu.Lock()
	defer t.hub.mu.Unlock()
	if ttl < 0 {
		ttl = longest
	}
	switch {
	case w.askingConcurrently:
		w.rejoin(ttl)
		return
	case !placed && w.place != nil:
		w.leavePlace()
		if t.maybeFree() {
			t.dues.add(w) // the news may have been '00', for those without a place
		}
	}
	if t.queue.Places && t.sub != nil && (placed || t.liveAtTurn && len(t.places) == 0) {
		t.sub.setInLine(placed) // a process that failed to get a place needs messages to all
	}
	w.held(ttl)
}

// held ends a turn or a claim.
func (w *Waiter) held(ttl time.Duration) {
	t := w.topic
	w.yields = false
	w.park()
	if w.given != nil {
		w.given.Crossed = true
		w.handOver(w.given.Lease)
		return
	}
	t.current = nil
	if w.err != nil {
		t.halt(w)
		t.wakeFirst() // the next waiter asks, and subscribes
	} else {
		t.subscribe()
		t.setTimer(ttl)
	}
	t.dispatch()
}

// rejoin puts a waiter that asked apart, and was refused, at the end of the queue. If it is the first there, its
// attempt counts unless there was news since it began.
func (w *Waiter) rejoin(ttl time.Duration) {
	t := w.topic
	counts := w.since == t.freedCount && t.isLive()
	w.goBack()
	w.admittedBehind, w.since = false, t.turns
	t.push(w)
	w.park()
	switch {
	case w.err != nil: // those behind have not relied on it
	case t.first == w && counts:
		t.keepSubscription()
		t.setTimer(ttl)
	default:
		t.subscribe()
		t.setTimer(ttl)
	}
	t.dispatch()
}

func (w *Waiter) goBack() {
	w.askingConcurrently = false
	w.topic.apart--
}

// Done takes a waiter that got the lock out of the queue. Those behind it wait for the next unlock, ttl at most.
func (w *Waiter) Done(ttl time.Duration) {
	t := w.topic
	t.hub.mu.Lock()
	defer t.hub.mu.Unlock()
	w.done(ttl)
}

func (w *Waiter) done(ttl time.Duration) {
	t := w.topic
	if w.askingConcurrently {
		w.goBack()
		t.removeIfEmpty(false)
		return
	}
	news := w.isDue() || t.polite // it may be about a later unlock
	t.remove(w)
	if t.courtesy.rivals.vain {
		t.courtesy.rivals.stayedAway()
	}
	if w.Shared {
		t.letIn(w)
	} else if t.sub != nil && !t.maybeFree() { // without a subscription nobody could rely on it
		t.localHold = time.Now().Add(ttl)
	}
	if t.first != nil {
		t.stopTimer()
		t.subscribe()
		t.setTimer(ttl)
		if news {
			t.wakeFirst()
		}
		t.dispatch()
	}
	t.removeIfEmpty(w.turn != nil && !w.yields) // it waited, so others want the lock, too
}

// Leave takes a waiter that gives up out of the queue. It wakes the next waiter in two cases:
//
//   - The waiter had the turn, or was due: a cancelled waiter loses no wake-up. One that was stopped has left that to
//     the next waiter before.
//   - It had the process's place, which the next cannot have ([Heir]), though it may take another.
//
// If the waiter does not have the turn, somebody else may be about to get the lock for it. Then it may be too late to
// leave, or the claimant leaves for it.
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
	if w.askingConcurrently {
		w.goBack()
		t.removeIfEmpty(false)
		return Left
	}
	w.bequeath()
	pass := t.current == w || w.place != nil && !t.queue.Each || w.isDue()
	t.remove(w)
	if pass {
		t.wakeFirst()
	}
	t.removeIfEmpty(false)
	return Left
}

// Unanswered passes the error of an attempt on to all who were waiting when it began, unless they persist: attempts one after the other
// would only keep them waiting. The caller has the turn, and leaves afterwards, or makes another attempt.
func (w *Waiter) Unanswered(err error) {
	t := w.topic
	t.hub.mu.Lock()
	defer t.hub.mu.Unlock()
	if !w.askingConcurrently { // the queue does not wait for a waiter beside it
		t.stopAll(err, func(x *Waiter) bool { return x != w && !x.Persists && x.since < t.turns })
		t.turns++ // another attempt is like a turn for those that come from now on
	}
}

// bequeath leaves the process's place to the next waiter, if that can have it. The place is known to exist, for w
// sleeps, so the next waiter sleeps on, and the process keeps its position.
func (w *Waiter) bequeath() {
	t := w.topic
	if w.place == nil || t.queue.Each || t.current != nil {
		return
	}
	x := t.first
	if x == w {
		x = w.next
	}
	if x == nil {
		return
	}
	if heir, ok := x.Value.(Heir); ok && heir.Inherit(w.Value) {
		x.place, w.place = w.place, nil
		x.place.waiter, t.places[x.place.owner] = x, x
	}
}

// park prepares a waiter without the turn for its signals.
func (w *Waiter) park() {
	if w.turn == nil { // it is new, or had the turn at once
		w.turn = make(chan struct{}, 1)
		w.topic.countParked(w, 1)
	}
	if h := w.topic.hub; (h.closed || h.draining && !w.Ahead) && w.err == nil {
		w.stop(ErrClosed)
	}
	w.watch()
}

// stop makes a waiter leave, even a claimed one; one with the turn gets the error from Held.
func (w *Waiter) stop(err error) {
	if w.topic.stop(w, err) {
		w.topic.wakeFirst()
	}
	w.topic.tellClaimed()
}

// tellClaimed makes a claimed waiter that was stopped leave, before its claim has ended.
func (t *topic) tellClaimed() {
	if w := t.current; w != nil && w.err != nil && w.claim == claimed {
		w.signal()
	}
}

func (w *Waiter) signal() {
	select {
	case w.turn <- struct{}{}:
	default:
	}
}

// hurries reports whether a pause would take much of the time that the waiter has.
func (w *Waiter) hurries(pause time.Duration) bool {
	soon := func(end time.Time) bool { return time.Until(end) < 2*pause }
	return !w.Until.IsZero() && soon(w.Until) || w.Hurry != 0 && soon(time.UnixMilli(w.Hurry))
}
