package lease

import (
	"math"
	"time"
)

// never is later than any instant.
const never = time.Duration(math.MaxInt64)

// heap is a binary heap of leases by instant, which knows where each lease is, so that any can be moved or removed in
// O(log n).
//
// It is written out, not built on container/heap: entries hold the instant beside the pointer, so that sifting does not
// touch the leases that it compares (they are scattered over memory, and there may be 100,000), and there is no
// interface call for each comparison.
type heap struct {
	// pos is the index into Lease.pos at which this heap notes its place, counted from 1, so that 0 (the zero Lease) is
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

// pop removes and returns the lease of the earliest instant.
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

// at is the instant of a lease that is in the heap.
func (h *heap) at(l *Lease) time.Duration { return h.entries[l.pos[h.pos]-1].at }

// move gives a lease that is in the heap another instant.
func (h *heap) move(l *Lease, at time.Duration) {
	h.settle(int(l.pos[h.pos])-1, entry{at, l})
}

// settle puts e where it belongs, beginning at the free slot i.
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
