package pubsub

import "time"

// A process that waits for a lock may have a place in a queue in Redis, under the future owner of one of its waiters.
// A release gives the lock to the first of that queue, and notifies that process alone, see release.lua.
//
// A waiter takes the place before the call that joins the queue is sent, so that the grant, which may arrive before
// the answer, finds it. It keeps the place until it has the lock, has left, or learns that it did not join.

// Grant is the content of the message to a process that got the lock.
type Grant struct {
	Lease time.Duration // from the moment of the grant
	Token int64         // fencing token; negative: none

	Crossed bool // it came while the waiter, or its claimant, was asking: the answer may be newer
}

// queueEntry is a waiter's place in Redis's queue, and a listener to the owner's own channel, on which Redisson
// notifies it.
type queueEntry struct {
	owner  string
	hub    *Hub
	waiter *Waiter // nil when it has left the place
	own    *share  // in the own channel; nil: not needed
}

func (e *queueEntry) live()        { e.wake() }
func (e *queueEntry) heard(string) { e.wake() }
func (e *queueEntry) lost()        {}
func (e *queueEntry) look()        {} // its queue has its own
func (e *queueEntry) told(string)  {}

func (e *queueEntry) wake() {
	e.hub.mu.Lock()
	defer e.hub.mu.Unlock()
	if w := e.waiter; w != nil {
		w.topic.wake(w)
	}
}

// refused: the waiter does without.
func (e *queueEntry) refused(error) {
	e.hub.mu.Lock()
	defer e.hub.mu.Unlock()
	e.deafen()
}

// deafen gives the own channel back. Hub.mu is held.
func (e *queueEntry) deafen() {
	if e.own != nil {
		e.own.leave()
		e.own = nil
	}
}

// Listens reports whether this process would hear of a grant to the waiter, which has the turn: it may then take the
// process's place.
func (w *Waiter) Listens() bool {
	t := w.topic
	t.hub.mu.Lock()
	defer t.hub.mu.Unlock()
	if t.sub == nil {
		return false
	}
	r := t.sub.reach()
	return r.live && r.told && w.mayHavePlace()
}

// Hears reports whether this process hears each message to all from now on, also if it would not hear of a grant.
func (w *Waiter) Hears() bool {
	t := w.topic
	t.hub.mu.Lock()
	defer t.hub.mu.Unlock()
	return t.isLive()
}

// TakePlace notes that the process is about to have a place in the queue under owner. The waiter has the turn, or is
// claimed by the caller. It returns false if another waiter has the place, or the process does not hear of grants.
func (w *Waiter) TakePlace(owner string) bool {
	t := w.topic
	t.hub.mu.Lock()
	defer t.hub.mu.Unlock()
	if !w.mayHavePlace() || t.sub == nil || !t.sub.reach().told {
		return false
	}
	if w.place != nil {
		w.leavePlace() // it may have lost the one under another owner
	}
	w.place = &queueEntry{owner: owner, hub: t.hub, waiter: w}
	if t.places == nil {
		t.places = make(map[string]*Waiter)
	}
	t.places[owner] = w
	t.courtesy.ahead = steps // until Redis says how many there are
	return true
}

// Hear subscribes to <unlock channel>:<owner>, the waiter's own channel, on which Redisson announces that the lock is
// free. The confirmation makes the waiter due. The waiter has the turn, and has taken a place. Hear does nothing if the
// place is gone: another process gave the waiter the lock before the answer that it had joined arrived on another
// connection.
func (w *Waiter) Hear() {
	t := w.topic
	t.hub.mu.Lock()
	defer t.hub.mu.Unlock()
	if w.place == nil || w.place.own != nil {
		return
	}
	own := t.queue.Channel.beside(":" + w.place.owner)
	w.place.own = t.hub.conns.listen(own, w.place, true, true)
	w.place.own.need()
}

// Given returns the grant of a waiter that got the lock from another process; nil for others.
func (w *Waiter) Given() *Grant { return w.given }

func (w *Waiter) mayHavePlace() bool {
	return w.place != nil || len(w.topic.places) == 0 || w.topic.queue.Each
}

// leavePlace forgets the place that w has, and ends the subscription to its channel.
func (w *Waiter) leavePlace() {
	w.place.waiter = nil
	w.place.deafen()
	delete(w.topic.places, w.place.owner)
	w.place = nil
}

// Saw notes what the waiter's attempt found, before [Waiter.Held]: the place of its process in Redis's queue, from 1 on,
// or 0 if it has none, and the client that has the lock.
func (w *Waiter) Saw(place int, client string) {
	t := w.topic
	t.hub.mu.Lock()
	defer t.hub.mu.Unlock()
	t.othersCame(w)
	if t.courtesy.ahead = int32(max(0, place-1)); t.queue.Shared && client != "" {
		t.courtesy.rivals.holder = client
	}
}
