package lease

import (
	std "container/heap"
	"math"
	"time"
)

// never is later than any instant.
const never = time.Duration(math.MaxInt64)

// heap is a binary heap of leases by instant. It records each lease's place, so that any can be moved or removed in
// O(log n). Entries hold the instant beside the pointer, so comparing does not touch the leases (up to 100,000, scattered
// over memory).
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

func (h *heap) first() time.Duration {
	if len(h.entries) == 0 {
		return never
	}
	return h.entries[0].at
}

func (h *heap) push(l *Lease, at time.Duration) {
	h.entries = append(h.entries, entry{at, l})
	l.pos[h.pos] = int32(len(h.entries))
	std.Fix(h, len(h.entries)-1)
}

func (h *heap) pop() *Lease {
	l := h.entries[0].l
	h.remove(l)
	return l
}

func (h *heap) remove(l *Lease) {
	i, n := int(l.pos[h.pos])-1, len(h.entries)-1
	h.Swap(i, n)
	l.pos[h.pos] = 0
	h.entries[n] = entry{} // or the array would keep the lease from the collector
	if h.entries = h.entries[:n]; i < n {
		std.Fix(h, i)
	}
}

func (h *heap) at(l *Lease) time.Duration { return h.entries[l.pos[h.pos]-1].at }

func (h *heap) move(l *Lease, at time.Duration) {
	i := int(l.pos[h.pos]) - 1
	h.entries[i].at = at
	std.Fix(h, i)
}

// For package heap. Its Push and Pop, which allocate, are not used.
func (h *heap) Len() int           { return len(h.entries) }
func (h *heap) Less(i, j int) bool { return h.entries[i].at < h.entries[j].at }
func (*heap) Push(any)             {}
func (*heap) Pop() any             { return nil }

func (h *heap) Swap(i, j int) {
	e := h.entries
	e[i], e[j] = e[j], e[i]
	e[i].l.pos[h.pos], e[j].l.pos[h.pos] = int32(i)+1, int32(j)+1
}
