package pubsub

import "container/heap"

// waiters are those of a topic, in order, without those that were stopped, except for the current one. Hub.mu guards
// them. No operation walks past all, except for one that looks for the next barrier.
type waiters struct {
	first, last *Waiter
	front, back int64   // the next order of a waiter that goes ahead, and of one at the end
	dues        dues    // due waiters
	exclusive   int32   // waiters that want more than a share
	barrier     *Waiter // the first of those, unless it has an error; nil: none
	parked      int32   // waiters that have been put to sleep before
	keen        int32   // those of them that want more than a share
}

func (ws *waiters) push(w *Waiter) {
	ws.count(w, 1)
	w.order = ws.back
	ws.back++
	if w.prev = ws.last; ws.last != nil {
		ws.last.next = w
	} else {
		ws.first = w
	}
	ws.last = w
	if ws.barrier == nil && w.isBarrier() {
		ws.barrier = w
	}
}

// pushAhead is for a queue that is not empty.
func (ws *waiters) pushAhead(w *Waiter) {
	ws.count(w, 1)
	ws.front--
	w.order = ws.front
	w.next, ws.first.prev, ws.first = ws.first, w, w
	if w.isBarrier() {
		ws.barrier = w
	}
}

func (ws *waiters) unlink(w *Waiter) {
	ws.count(w, -1)
	ws.nextBarrier(w, ws.exclusive)
	if w.prev != nil {
		w.prev.next = w.next
	} else {
		ws.first = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	} else {
		ws.last = w.prev
	}
	w.prev, w.next = nil, nil
	ws.dues.remove(w)
}

// isBarrier reports whether waiters behind it wait for it, even if they want a share.
func (w *Waiter) isBarrier() bool { return !w.Shared && w.err == nil }

// nextBarrier looks for the next barrier if w was one, behind which others want more than a share. It passes each waiter once, unless w went
// ahead of all.
func (ws *waiters) nextBarrier(w *Waiter, others int32) {
	if ws.barrier != w {
		return
	}
	ws.barrier = nil
	for x := w.next; x != nil && others > 0; x = x.next {
		if x.isBarrier() {
			ws.barrier = x
			return
		}
	}
}

func (ws *waiters) count(w *Waiter, n int32) {
	if !w.Shared {
		ws.exclusive += n
	}
	if w.turn != nil {
		ws.countParked(w, n)
	}
}

// countParked counts a waiter of the queue that has been put to sleep.
func (ws *waiters) countParked(w *Waiter, n int32) {
	ws.parked += n
	if !w.Shared {
		ws.keen += n
	}
}

// dues are the due waiters: a heap, with the first in the queue on top.
type dues []*Waiter

func (w *Waiter) isDue() bool { return w.dueAt > 0 }

func (d *dues) add(w *Waiter) {
	if !w.isDue() {
		heap.Push(d, w)
	}
}

func (d *dues) remove(w *Waiter) {
	if w.isDue() {
		heap.Remove(d, int(w.dueAt)-1)
	}
}

func (d *dues) Len() int           { return len(*d) }
func (d *dues) Less(i, j int) bool { return (*d)[i].order < (*d)[j].order }

func (d *dues) Swap(i, j int) {
	a, b := &(*d)[i], &(*d)[j]
	*a, *b = *b, *a
	(*a).dueAt, (*b).dueAt = int32(i)+1, int32(j)+1
}

func (d *dues) Push(x any) {
	w, _ := x.(*Waiter)
	*d = append(*d, w)
	w.dueAt = int32(len(*d))
}

func (d *dues) Pop() any {
	last := len(*d) - 1
	w := (*d)[last]
	(*d)[last] = nil
	*d, w.dueAt = (*d)[:last], 0
	return w
}
