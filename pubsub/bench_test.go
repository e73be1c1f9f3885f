package pubsub

import "testing"

// BenchmarkUncontended is the way of a lock that nobody else wants: the hub sends nothing for it. Its one allocation is
// the topic. A list of topics to be used again would save 50 ns of 165 (GOGC=400): too little beside a round trip.
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
