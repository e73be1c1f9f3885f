package pubsub

import "time"

// The states of a waiter:
//
//	new        not joined yet
//	waiting    in the queue
//	due        waiting, and gets the turn as soon as nobody in front of it is due and nobody has it
//	turn       topic.current: its caller makes an attempt
//	apart      out of the queue: its caller makes an attempt to get a share, beside others
//	claimed    topic.current: a holder of this process makes an attempt for it
//	abandoned  claimed, and its caller has gone
//	handed     out of the queue with the lock, by its claimant or by another process
//	stopped    has an error, and is to leave
//	out        has left the queue
//
// The steps from one to another follow. Wake, stop and given come from elsewhere, the other events are calls
// for the waiter itself. TestNoWaiterSleepsThroughAnUnlock reads the rows: each step of its model has
// one, and its model takes each of them.
//
//	event      from         to
//	Join       new       -> turn       nobody else is in the queue, and no hold of this process is known; or it goes ahead of all
//	Join       new       -> waiting
//	Join       new       -> due        each waiter has a place, and the subscription is live
//	Join       new       -> due        it goes ahead of all, and somebody has the turn
//	Join       new       -> stopped    the hub is closed or draining, or its time is over
//	Join       new       -> apart      as the first of these, for a share of its own; or all others there ask for a share, or wait for one
//	JoinFirst  new       -> turn       nobody else is in the queue
//	JoinFirst  new       -> apart      the same, or all others there ask for a share, or wait for one, for a share
//	JoinFirst  new       -> new
//	wake       waiting   -> turn       by a message, a confirmation, the timer, Wake, or one that left
//	wake       waiting   -> due        the same, while another has the turn or is claimed
//	wake       due       -> turn       the other one's turn or claim has ended
//	wake       waiting   -> apart      one before it got a share, and so may this one
//	wake       waiting   -> handed     one before it got a share, and this one can have that, too
//	stop       waiting   -> stopped    Stop, Drain, its time is over, the subscription is refused, or Unanswered
//	stop       due       -> stopped
//	given      waiting   -> handed     by another process, as the owner of the place that it took
//	given      due       -> handed
//	given      stopped   -> handed
//	given      turn      -> turn       it hears of it in Held
//	given      claimed   -> claimed    it hears of it when the claim ends
//	given      abandoned -> abandoned
//	Held       turn      -> waiting
//	Held       turn      -> turn       it was woken since its turn began
//	Held       turn      -> due        the same, and one in front of it is due, too
//	Held       turn      -> stopped    it was stopped since
//	Held       turn      -> handed     it was given the lock since
//	Held       apart     -> waiting    at the end of the queue
//	Held       apart     -> turn       it is the first there, and there was news since it went apart, or may have been
//	Held       apart     -> stopped    the hub is closed or draining, or its time is over
//	Done       turn      -> out
//	Done       apart     -> out
//	Leave      waiting   -> out        wakes the next one if it had the only place of the process, and could not leave it to that one
//	Leave      due       -> out        wakes the next one
//	Leave      turn      -> out        wakes the next one
//	Leave      apart     -> out
//	Leave      stopped   -> out        wakes the next one, unless only its time is over, it had no place, and there was no news
//	Leave      claimed   -> abandoned
//	Leave      abandoned -> abandoned
//	Leave      handed    -> handed
//	Claim      waiting   -> claimed    the first that is not stopped
//	Pass       waiting   -> handed     the first that is not stopped, if this process is known to have the lock, and it can have that as it is
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
// A waiter that has the turn, or is claimed, stays so when it is woken, stopped or given the lock; Waiter.due,
// Waiter.err and Waiter.given remember that until the turn or the claim ends. [Hub.Stop], [Hub.Drain] and the end of its time
// signal to a claimed one all the same, so that its caller can leave. One that leaves in its turn leaves the lock that it was
// given, too: its caller releases the field in Redis.

// Waiter is one place in a queue; its zero value is ready for [Hub.Join]. Its methods are for the
// goroutine that joined, except where they say otherwise.
type Waiter struct {
	// Value is for whoever claims the waiter. It is set before Join. It may be an [Heir], a [Taker], and a [Sharer].
	Value any
	// Until is when it waits no longer, except for the end of its turn or of a claim; zero: it has
	// no such time. It is set before Join.
	Until time.Time
	// Shared says that it waits for a share of the lock, which others can have, too. It is set before Join. One that gets
	// a share lets those directly behind it in, if they want one as well and can have the same ([Sharer]); or they ask at the same time.
	Shared bool
	// Joint says of a Shared one that others can have its share. So those that come while it asks wait for its answer.
	Joint bool
	// Ahead puts it before all others: it has what they wait for. It is set before Join.
	Ahead bool

	due                bool // gets the turn when it is the first of those that are due
	askingConcurrently bool // it asks beside the queue
	admittedBehind     bool // behind one that got a share
	claim              claim
	topic              *topic
	prev, next         *Waiter
	turn               chan struct{} // capacity 1: whoever sends holds Hub.mu and never blocks
	err                error         // why waiting is in vain
	since              uint64        // topic.turns when it joined the queue, or topic.news when it went apart
	place              *queueEntry   // in Redis's queue, or about to be; nil: none
	given              *Grant        // it has the lock from another process
	expiry             *expiry       // nil until it waits, or if it has no Until
}

// Heir is the Value of a waiter that may go on as the owner that another one had a place as.
type Heir interface {
	// Inherit is called when a waiter leaves that has the process's place: the next one, which sleeps, is that owner from then on. It
	// reports false if it cannot be. from is the Value of the one that leaves. It must not call the hub.
	Inherit(from any) bool
}

// Taker is the Value of a waiter that can be passed a lock by the holder before it, see [Hub.Pass].
type Taker interface {
	// Take is called for the next waiter, which sleeps. It reports false if it cannot have the lock as it is. from is what the holder gave to
	// Pass; outsiders, whether somebody who is not in line was told of an unlock a short while ago. It must not call the hub.
	Take(from any, outsiders bool) bool
}

// Sharer is the Value of a waiter that can have the share that one before it got.
type Sharer interface {
	// Share is called for a waiter behind one that got a share, whose Value with is. It reports false if it cannot have the same. It must not
	// call the hub.
	Share(with any) bool
}

// Turn is ready when there is news for the waiter, see [Waiter.News].
func (w *Waiter) Turn() <-chan struct{} { return w.turn }

// News says what Turn was ready for:
//
//   - the waiter has the turn; or
//   - granted: it has the lock, and is out of the queue; or
//   - err: waiting is in vain, because its time is over ([ErrExpired]), the hub is closed
//     ([ErrClosed]), or the server refuses the subscription or did not answer the one that had the
//     turn. Then it has to leave, and a turn that it got in the same moment is for the next one.
func (w *Waiter) News() (granted bool, err error) {
	h := w.topic.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	if w.claim == handed {
		return true, nil
	}
	return false, w.err
}

// longest is how long a waiter sleeps if the lock has no expiry: nobody says when that ends, if somebody deletes it. So long is its place
// kept, too, see acquire.lua.
const longest = time.Minute

// Follows reports whether the waiter asks because one before it got a share.
func (w *Waiter) Follows() bool {
	h := w.topic.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	return w.admittedBehind
}

// Exclusive is the next one before it that wants more than a share; nil: none does. It may be called on any goroutine.
func (w *Waiter) Exclusive() *Waiter {
	h := w.topic.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	for x := w.prev; x != nil; x = x.prev {
		if !x.Shared && x.err == nil {
			return x
		}
	}
	return nil
}

// Waited reports whether it was put to sleep, or would have been. It is for a waiter that has left the queue.
func (w *Waiter) Waited() bool { return w.turn != nil }

// Behind is how many wait behind it, up to a bound.
func (w *Waiter) Behind(most int) (n int) {
	h := w.topic.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	for x := w.next; x != nil && n < most; x = x.next {
		n++
	}
	return n
}

// Held ends the turn of a waiter whose attempt found the lock held. The waiter stays where it is and
// gets the turn again after the next unlock, and not later than ttl from now; a negative one is that of a lock without an
// expiry. placed says that the waiter has the process's place, see [Waiter.TakePlace].
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
			t.makeDue(w) // the news may have been '00', for those who have no place
		}
	}
	switch {
	case placed:
		t.placeless = false
	case t.heard && t.places == 0 && t.queue.Places && !t.placeless:
		t.placeless = true
		t.sub.update()
	}
	w.held(ttl)
}

// held ends a turn or a claim.
func (w *Waiter) held(ttl time.Duration) {
	t := w.topic
	w.park()
	if w.given != nil {
		w.given.Crossed = true
		w.handOver(w.given.Lease)
		return
	}
	t.current = nil
	if w.err != nil {
		t.makeDue(w) // when it leaves, the next one asks, and subscribes
		w.signal()
	} else {
		t.subscribe()
		t.setTimer(ttl)
	}
	t.dispatch()
}

// rejoin puts a waiter that asked apart, and was refused, at the end of the queue. If it is the first there, its attempt counts
// unless there was news since it began.
func (w *Waiter) rejoin(ttl time.Duration) {
	t := w.topic
	counts := w.since == t.news && t.sub != nil && t.sub.live()
	w.goBack()
	w.admittedBehind, w.since = false, t.turns
	t.push(w)
	w.park()
	switch {
	case w.err != nil:
		t.makeDue(w)
		w.signal()
	case t.first == w && counts:
		t.need = true
		t.setTimer(ttl)
	default:
		t.subscribe()
		t.setTimer(ttl)
	}
	t.dispatch()
}

// goBack ends what goApart began.
func (w *Waiter) goBack() {
	w.askingConcurrently = false
	w.topic.apart--
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
	if w.askingConcurrently {
		w.goBack()
		t.removeIfEmpty()
		return
	}
	t.remove(w)
	news := w.due || t.polite // it may be about a later unlock
	t.stopTimer()
	if w.Shared {
		t.letIn(w)
	} else if t.sub != nil && !t.maybeFree() { // without a subscription nobody could rely on it
		t.localHold = time.Now().Add(ttl)
	}
	if t.first != nil {
		t.subscribe()
		t.setTimer(ttl)
		if news {
			t.wakeFirst()
		}
	} else if t.sub != nil && w.turn != nil { // it waited, so others want the lock, too
		t.sub.startLinger()
	}
	t.dispatch()
	t.removeIfEmpty()
}

// Leave takes a waiter that gives up out of the queue. If it had the turn, or was due to get it,
// the next one gets it instead: a wake-up is never lost with a cancelled waiter. The same if it had the process's place and the next one
// cannot have that ([Heir]), but may take another; or if it leaves with any error but ErrExpired, for somebody may have joined behind it since;
// or with that one, if nobody was left to ask when the lock may have become free.
//
// If the waiter does not have the turn, somebody else may be about to get the lock for it: then it
// may be too late to leave, or up to its claimant to finish.
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
		t.removeIfEmpty()
		return Left
	}
	failed := w.err != nil && w.err != ErrExpired //nolint:errorlint // never wrapped in here
	missed := w.err != nil && t.places == 0 && t.maybeFree()
	w.bequeath()
	pass := t.current == w || w.place != nil && !t.queue.Each || w.due || failed || missed
	t.remove(w)
	if pass {
		t.wakeFirst()
	}
	t.removeIfEmpty()
	return Left
}

// Unanswered passes on why an attempt failed to all who were waiting when it began: to try again one
// after the other would only keep them waiting. The caller has the turn, and leaves afterwards.
func (w *Waiter) Unanswered(err error) {
	t := w.topic
	t.hub.mu.Lock()
	defer t.hub.mu.Unlock()
	for x := t.first; x != nil && !w.askingConcurrently; x = x.next { // the queue does not wait for one that asks beside it
		if x != w && x.since < t.turns {
			x.err = err
			x.signal()
		}
	}
}

// bequeath leaves the process's place to the next waiter, if that can have it. It is known to be there, for w sleeps, so the next one sleeps on, and the
// process keeps its turn.
func (w *Waiter) bequeath() {
	t := w.topic
	if w.place == nil || t.queue.Each || t.current != nil {
		return
	}
	for x := t.first; x != nil; x = x.next {
		if x == w || x.err != nil {
			continue
		}
		if heir, ok := x.Value.(Heir); ok && heir.Inherit(w.Value) {
			x.place, w.place = w.place, nil
		}
		return
	}
}

// park prepares a waiter that does not have the turn for what may come.
func (w *Waiter) park() {
	w.topic.slept = true
	if w.turn == nil { // it is new, or had the turn at once
		w.turn = make(chan struct{}, 1)
	}
	if h := w.topic.hub; (h.closed || h.draining && !w.Ahead) && w.err == nil {
		w.stop(ErrClosed)
	}
	w.watch()
}

// stop tells a waiter to leave, also one that is claimed; one that has the turn hears of it in Held.
func (w *Waiter) stop(err error) {
	w.err = err
	if w.topic.current != w && !w.askingConcurrently || w.claim == claimed {
		w.signal()
	}
}

func (w *Waiter) signal() {
	select {
	case w.turn <- struct{}{}:
	default:
	}
}
