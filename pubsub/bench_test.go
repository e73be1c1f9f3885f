package pubsub

import "testing"

// BenchmarkUncontended measures a lock without competition: the hub sends nothing, and allocates nothing because it reuses a topic.
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
