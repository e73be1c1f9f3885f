package lease

import (
	"math"
	"time"
)

// never is later than any instant.
const never = time.Duration(math.MaxInt64)

// heap is a binary heap of leases by instant. It records each lease's place, so that any can be moved or removed in
// O(log n).
//
// It does not use container/heap. Entries hold the instant beside the pointer, so sifting does not touch the compared
// leases (up to 100,000, scattered over memory), and comparisons need no interface call.
type heap struct {
	// pos is the index into Lease.pos where this heap notes its place, counted from 1: 0, as in the zero Lease, means
	// "not in this heap".
	pos     int
	entries []entry
}

type entry struct {
	at time.Duration
	l  *Lease
}

// first returns the earliest instant, or never.
func (h *heap) first() time.Duration {
	if len(h.entries) == 0 {
		return never
	}
	return h.entries[0].at
}

func (h *heap) push(l *Lease, at time.Duration) {
	h.entries = append(h.entries, entry{})
	h.up(len(h.entries)-1, entry{at, l})
}

// pop removes and returns the earliest lease.
func (h *heap) pop() *Lease {
	l := h.entries[0].l
	h.remove(l)
	return l
}

func (h *heap) remove(l *Lease) {
	i := int(l.pos[h.pos]) - 1
	l.pos[h.pos] = 0
	n := len(h.entries) - 1
	last := h.entries[n]
	h.entries[n] = entry{} // or the array would keep the lease from the collector
	h.entries = h.entries[:n]
	if i < n {
		h.settle(i, last)
	}
}

// at returns the instant of a lease in the heap.
func (h *heap) at(l *Lease) time.Duration { return h.entries[l.pos[h.pos]-1].at }

// move gives a lease in the heap another instant.
func (h *heap) move(l *Lease, at time.Duration) {
	h.settle(int(l.pos[h.pos])-1, entry{at, l})
}

// settle puts e in its place, beginning at the free slot i.
func (h *heap) settle(i int, e entry) {
	if i > 0 && e.at < h.entries[(i-1)/2].at {
		h.up(i, e)
	} else {
		h.down(i, e)
	}
}

func (h *heap) up(i int, e entry) {
	for i > 0 {
		parent := (i - 1) / 2
		if h.entries[parent].at <= e.at {
			break
		}
		h.set(i, h.entries[parent])
		i = parent
	}
	h.set(i, e)
}

func (h *heap) down(i int, e entry) {
	for {
		child := 2*i + 1
		if child >= len(h.entries) {
			break
		}
		if right := child + 1; right < len(h.entries) && h.entries[right].at < h.entries[child].at {
			child = right
		}
		if e.at <= h.entries[child].at {
			break
		}
		h.set(i, h.entries[child])
		i = child
	}
	h.set(i, e)
}

func (h *heap) set(i int, e entry) {
	h.entries[i] = e
	e.l.pos[h.pos] = int32(i + 1)
}
