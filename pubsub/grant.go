package pubsub

import (
	"strconv"
	"strings"
	"time"
)

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

// queueEntry is a waiter's place in Redis's queue.
type queueEntry struct {
	owner string
	own   *ownChannel // nil: not needed
}

// ownChannel is the channel on which Redisson notifies one waiter.
type ownChannel struct {
	waiter *Waiter // nil when it needs it no longer; Hub.mu guards it
	hub    *Hub
	share  *share
}

func (o *ownChannel) wake() {
	o.hub.mu.Lock()
	defer o.hub.mu.Unlock()
	if w := o.waiter; w != nil {
		w.topic.wake(w)
	}
}

func (o *ownChannel) live()        { o.wake() }
func (o *ownChannel) heard(string) { o.wake() }
func (o *ownChannel) lost()        {}
func (o *ownChannel) look()        {} // its queue has its own
func (o *ownChannel) told(string)  {}

// refused: the waiter does without.
func (o *ownChannel) refused(error) {
	o.hub.mu.Lock()
	defer o.hub.mu.Unlock()
	if o.waiter != nil {
		o.waiter.place.own = nil
		o.end()
	}
}

// end gives the channel back. Hub.mu is held.
func (o *ownChannel) end() {
	o.waiter = nil
	o.share.leave()
}

// Listens reports whether this process would hear of a grant to the waiter, which has the turn: it may then take the
// process's place.
func (w *Waiter) Listens() bool {
	t := w.topic
	t.hub.mu.Lock()
	defer t.hub.mu.Unlock()
	return t.isLive() && t.sub.reach().told && w.mayHavePlace()
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
	w.leavePlace() // it may have lost the one under another owner
	w.place = &queueEntry{owner: owner}
	t.places.add(w)
	t.ahead = steps // until Redis says how many there are
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
	o := &ownChannel{waiter: w, hub: t.hub}
	o.share = t.hub.conns.listen(t.queue.Channel.beside(":"+w.place.owner), o, true, true)
	o.share.need()
	w.place.own = o
}

// Given returns the grant of a waiter that got the lock from another process; nil for others.
func (w *Waiter) Given() *Grant { return w.given }

// mayHavePlace reports whether w has a place, or may take one.
func (w *Waiter) mayHavePlace() bool {
	return w.place != nil || w.topic.places.empty() || w.topic.queue.Each
}

// leavePlace forgets the place of w, if any, and ends the subscription to its channel.
func (w *Waiter) leavePlace() {
	if w.place == nil {
		return
	}
	if w.place.own != nil {
		w.place.own.end()
	}
	w.topic.places.remove(w)
	w.place = nil
}

// places are the waiters of a topic with a place. The zero value is empty.
type places struct {
	one  *Waiter            // mostly there is one
	more map[string]*Waiter // the others, by owner
}

func (p *places) empty() bool { return p.one == nil && len(p.more) == 0 }

func (p *places) len() int {
	if p.one == nil {
		return len(p.more)
	}
	return len(p.more) + 1
}

func (p *places) add(w *Waiter) {
	switch {
	case p.one == nil:
		p.one = w
		return
	case p.more == nil:
		p.more = make(map[string]*Waiter)
	}
	p.more[w.place.owner] = w
}

func (p *places) remove(w *Waiter) {
	if p.one == w {
		p.one = nil
	} else {
		delete(p.more, w.place.owner)
	}
}

// at returns the waiter with the place under owner, or nil.
func (p *places) at(owner string) *Waiter {
	if p.one != nil && p.one.place.owner == owner {
		return p.one
	}
	return p.more[owner]
}

// told handles a message to this process alone. A message of unknown form makes it look at the lock.
func (t *topic) told(payload string) {
	t.hub.mu.Lock()
	defer t.hub.mu.Unlock()
	m, known := ReadMessage(payload)
	w := t.places.at(m.Owner)
	switch {
	case m.Granted && w != nil:
		w.give(&Grant{Lease: m.Lease, Token: m.Token})
	case m.Granted: // its caller releases the lock, or finds another owner there
	case w != nil:
		t.wake(w)
	case (m.Owner == "" || !known) && !t.places.empty() && !t.queue.Each:
		t.lookIn(m.After)
	}
}

// give hands the lock to a waiter.
func (w *Waiter) give(g *Grant) {
	w.leavePlace()
	w.given = g
	if w.topic.current != w { // otherwise the end of its turn or claim applies it
		w.handOver(g.Lease)
	}
}

// lookIn makes the first waiter ask after d, or earlier; if d is 0, as soon as courtesy allows.
func (t *topic) lookIn(d time.Duration) {
	if d > 0 {
		t.setTimer(d)
		return
	}
	t.freed()
	t.ahead = 0
	if t.queue.Counts || t.lead > 1 || !t.stepAside() { // permits are reserved for the notified process
		t.wakeFirst()
	}
}

// heard handles a message to all listeners.
func (t *topic) heard(payload string) {
	t.hub.mu.Lock()
	defer t.hub.mu.Unlock()
	switch {
	case t.queue.Shared:
		t.toldWithoutQueue(payload)
	case !t.queue.Counts:
		t.toldAll(payload)
	case t.places.empty() || !strings.HasPrefix(payload, "0"):
		t.freed()
		t.wakeFirst()
	}
}

// toldAll handles a message where there is a queue in Redis. '00' is for processes without a place.
func (t *topic) toldAll(payload string) {
	t.freed()
	t.othersCame(t.first)
	if payload == "00" {
		t.ahead, t.lead = max(0, t.ahead-1), max(0, t.lead-1)
		t.outside = time.Now()
		if t.mayStepAside() {
			t.othersFirst()
		}
	}
	switch {
	case payload == "0" && !t.unlockedForAll():
	case payload == "00" && !t.places.empty() && !t.queue.Each:
	case payload == "1":
		t.wakeAll()
	default:
		t.inOrder(0)
	}
}

// toldWithoutQueue handles a message where there is none. '00' begins each of this library's. '<ms>', from 2 on, says that the remaining
// lease that waiters last saw may be too long, see read_release.lua. After '01' nobody has unlocked.
func (t *topic) toldWithoutQueue(payload string) {
	ours := t.ours
	t.ours = payload == "00"
	ms, _ := strconv.ParseInt(payload, 10, 64)
	switch {
	case t.ours:
	case ms > 1:
		if t.first != nil {
			t.setTimer(time.Duration(ms) * time.Millisecond)
		}
	case payload == "01":
		t.freed()
		t.inOrder(0)
	default:
		t.freed()
		t.unlockedWithoutQueue(ours)
	}
}
