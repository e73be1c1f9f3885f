package pubsub

// dues are the due waiters of a topic: a heap, with the first in the queue on top. Hub.mu guards it.
type dues []*Waiter

func (w *Waiter) isDue() bool { return w.dueAt > 0 }

func (d *dues) add(w *Waiter) {
	*d = append(*d, w)
	d.up(len(*d) - 1)
}

// remove takes w out, if it is due.
func (d *dues) remove(w *Waiter) {
	if !w.isDue() {
		return
	}
	at, last := int(w.dueAt)-1, len(*d)-1
	moved := (*d)[last]
	(*d)[last] = nil
	*d = (*d)[:last]
	w.dueAt = 0
	if at < last {
		d.put(at, moved)
		d.down(at)
		d.up(int(moved.dueAt) - 1)
	}
}

func (d *dues) put(at int, w *Waiter) { (*d)[at], w.dueAt = w, int32(at)+1 }

func (d *dues) up(at int) {
	w := (*d)[at]
	for at > 0 {
		above := (at - 1) / 2
		if (*d)[above].order < w.order {
			break
		}
		d.put(at, (*d)[above])
		at = above
	}
	d.put(at, w)
}

func (d *dues) down(at int) {
	w := (*d)[at]
	for below := 2*at + 1; below < len(*d); below = 2*at + 1 {
		if right := below + 1; right < len(*d) && (*d)[right].order < (*d)[below].order {
			below = right
		}
		if w.order < (*d)[below].order {
			break
		}
		d.put(at, (*d)[below])
		at = below
	}
	d.put(at, w)
}
