package tenure

import (
	"slices"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
)

// callers are the goroutines waiting, in order, for the right to make calls for a tenure. All fields are guarded by
// tenure.mu.
type callers struct {
	queue   []*CallSlotTurn
	gone    int             // how many of the queue have left it
	told    chan<- struct{} // gets a token when the tenure is lost; nil: no unlock waits for that
	count   follower
	longest time.Duration // the longest lease a re-entry was renewed for
	open    *openLevels   // nil until there is a second level
	cached  any           // see Cached
}

// CallSlotTurn is one goroutine's place in the queue.
type CallSlotTurn struct {
	Over  chan struct{} // closed when the right is granted, or the tenure is lost
	given bool
	gone  bool // it has left, and is still in the queue
}

// TryCallSlot takes the right to make calls for the tenure (I1) if it is free. It is for an unlock, which does not wait for the count
// in Redis.
func (t *Tenure) TryCallSlot() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	ok := !t.calling
	t.calling = true
	return ok
}

// CallSlot is TryCallSlot, and queues if the right is taken: the turn must end with takes or leaves. w is nil if the tenure was lost,
// because then no call is needed.
func (t *Tenure) CallSlot() (ok bool, w *CallSlotTurn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case !t.calling && !t.isStating():
		t.calling = true
		return true, nil
	case t.loss != nil:
		return false, nil
	}
	return false, t.join()
}

// join queues for the right. mu is held.
func (t *Tenure) join() *CallSlotTurn {
	if t.callers == nil {
		t.callers = new(callers)
	}
	w := &CallSlotTurn{Over: make(chan struct{})}
	t.callers.queue = append(t.callers.queue, w)
	return w
}

// TakeCallSlot is CallSlot again, for a turn that is over.
func (t *Tenure) TakeCallSlot(w *CallSlotTurn) (ok bool, next *CallSlotTurn) {
	if w.given {
		return true, nil
	}
	return t.CallSlot()
}

// LeaveCallSlot ends a turn without waiting. If the right was granted meanwhile, it goes to the next in line.
func (t *Tenure) LeaveCallSlot(w *CallSlotTurn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case w.given:
		t.pass()
	case !calls.IsClosed(w.Over): // otherwise a loss has emptied the queue
		t.callers.without(w)
	}
}

// AwaitCallSlot is CallSlot for an unlock: it waits for the right, even if the tenure is lost meanwhile.
func (t *Tenure) AwaitCallSlot() {
	for {
		t.mu.Lock()
		if !t.calling {
			t.calling = true
			t.mu.Unlock()
			return
		}
		w := t.join()
		t.mu.Unlock()
		if <-w.Over; w.given {
			return
		}
	}
}

// ReleaseCallSlot gives the right to make calls back.
func (t *Tenure) ReleaseCallSlot() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pass()
}

// without takes a turn out of the queue, later: a crowd that leaves must not walk the queue for each.
func (c *callers) without(w *CallSlotTurn) {
	w.gone = true
	if c.gone++; 2*c.gone > len(c.queue) {
		c.queue = slices.DeleteFunc(c.queue, func(w *CallSlotTurn) bool { return w.gone })
		c.gone = 0
	}
}

// next takes the first turn out of the queue; nil: there is none.
func (c *callers) next() *CallSlotTurn {
	for len(c.queue) > 0 {
		w := c.queue[0]
		c.queue[0] = nil
		if c.queue = c.queue[1:]; !w.gone {
			return w
		}
		c.gone--
	}
	return nil
}

// pass gives the right to the next in line and wakes only that goroutine: waking all n each time would take n²/2 wake-ups. mu is held.
func (t *Tenure) pass() {
	var next *CallSlotTurn
	if t.callers != nil && !t.callers.count.calling { // otherwise state passes it on
		next = t.callers.next()
	}
	if t.calling = next != nil; !t.calling {
		t.follow()
		return
	}
	next.given = true
	close(next.Over)
}

// wake wakes all of them, and an unlock, after a loss. mu is held.
func (t *Tenure) wake() {
	if t.callers == nil {
		return
	}
	select {
	case t.callers.told <- struct{}{}:
	default:
	}
	for _, w := range t.callers.queue {
		close(w.Over)
	}
	t.callers.queue, t.callers.gone = nil, 0
}
