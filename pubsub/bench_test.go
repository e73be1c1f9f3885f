package pubsub

import "testing"

// BenchmarkUncontended measures a lock that nobody else wants: the hub sends nothing for it, and allocates nothing,
// as it reuses an earlier topic.
func BenchmarkUncontended(b *testing.B) {
	h := New(nil, me)
	defer h.Close()
	q := queue(plain("c"))
	var w Waiter
	b.ReportAllocs()
	for b.Loop() {
		w = Waiter{}
		h.Join(&w, q)
		w.Done(-1)
	}
}
