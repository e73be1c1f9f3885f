package lease

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"
	"unsafe"
)

func renewAll(_ context.Context, _ any, _ time.Duration, items []Item) ([]Verdict, error) {
	return all(Renewed, len(items)), nil
}

// settle runs the loop by hand until it would sleep.
func settle(r *Renewer) {
	for {
		wait, _ := r.turn()
		if wait > 0 {
			r.wg.Wait() // the calls
			if wait, _ = r.turn(); wait > 0 {
				return
			}
		}
	}
}

// BenchmarkPeriod measures the cost of keeping n leases for one period (10 s at the default watchdog time), without the renew function. It
// moves the clock by hand, with no loop goroutine and no waiting.
func BenchmarkPeriod(b *testing.B) {
	for _, n := range []int{10_000, 100_000} {
		for _, groups := range []int{1, 16384} {
			b.Run(fmt.Sprintf("leases=%d/groups=%d", n, groups), func(b *testing.B) {
				calls := make(chan int, 1)
				calls <- 0
				r := newRenewer(func(ctx context.Context, g any, ttl time.Duration, items []Item) ([]Verdict, error) {
					calls <- <-calls + 1
					return renewAll(ctx, g, ttl, items)
				}, Options{Watchdog: watchdog})
				var now time.Duration
				r.clock = func() time.Duration { return now }
				leases := make([]Lease, n)
				for i := range leases {
					sent := r.epoch.Add(rand.N(r.ttl / 3)) // acquired over one period
					r.Keep(&leases[i], keeper{Item{Name: "name", Owner: "owner"}, i % groups, func(l Loss) { b.Error(l) }}, sent.Add(r.ttl), watchdog)
				}
				pass := func() { // a period passes: from one due time to the next
					for end := now + r.ttl/3; ; {
						wait, _ := r.turn()
						if wait == 0 {
							continue
						}
						if now+wait > end {
							now = end
							return
						}
						now += wait
						settle(r)
					}
				}
				for range 20 { // groups and batches form
					pass()
				}
				<-calls
				calls <- 0
				b.ReportAllocs()
				for b.Loop() {
					pass()
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/lease")
				b.ReportMetric(float64(<-calls)/float64(b.N), "calls/op")
				runtime.KeepAlive(leases)
			})
		}
	}
}

// BenchmarkDueAtOnce measures the longest delay of callers and losses while the loop collects 100,000 leases due at once.
func BenchmarkDueAtOnce(b *testing.B) {
	var longest time.Duration
	for b.Loop() {
		r := newRenewer(renewAll, Options{Watchdog: watchdog})
		var now time.Duration
		r.clock = func() time.Duration { return now }
		leases := make([]Lease, 100_000)
		for i := range leases {
			r.Keep(&leases[i], keeper{Item{Name: "name", Owner: "owner"}, i % 16384, nil}, r.epoch.Add(watchdog), watchdog)
		}
		now = watchdog / 2
		for len(r.dues.entries) > 0 {
			before := time.Now()
			r.turn()
			longest = max(longest, time.Since(before))
		}
	}
	b.ReportMetric(float64(longest.Microseconds()), "µs-longest-turn")
}

func BenchmarkKeepStop(b *testing.B) {
	for _, n := range []int{0, 1000, 100_000} {
		b.Run(fmt.Sprintf("held=%d", n), func(b *testing.B) {
			r := NewRenewer(renewAll, Options{Watchdog: watchdog})
			defer r.Close()
			held := make([]Lease, n+1)
			until := time.Now().Add(watchdog)
			for i := range held {
				r.Keep(&held[i], keeper{Item{Name: "name", Owner: "owner"}, 1, func(Loss) {}}, until, watchdog)
			}
			lost := func(Loss) {}
			var group any = 1
			var l Lease
			b.ReportAllocs()
			for b.Loop() {
				l.state = idle // as if new
				r.Keep(&l, keeper{Item{Name: "name", Owner: "owner"}, group, lost}, time.Now().Add(watchdog), watchdog)
				r.Stop(&l)
			}
		})
	}
}

func TestKeepStopDoNotAllocate(t *testing.T) {
	r := NewRenewer(renewAll, Options{Watchdog: time.Hour})
	defer r.Close()
	var l Lease
	var group any = 1
	var k Keeper = keeper{Item{Name: "name", Owner: "owner"}, group, func(Loss) {}}
	if n := testing.AllocsPerRun(1000, func() {
		l.state = idle
		r.Keep(&l, k, time.Now().Add(time.Hour), watchdog)
		r.Stop(&l)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Memory of a lease: embedded in the hold, and allocated besides.
func TestMemory(t *testing.T) {
	if size := unsafe.Sizeof(Lease{}); size > 160 {
		t.Errorf("a Lease is %d bytes", size)
	}
	const n = 20_000
	heapInUse := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	leases := make([]Lease, n)
	r := newRenewer(renewAll, Options{Watchdog: watchdog})
	var now time.Duration
	r.clock = func() time.Duration { return now }
	before := heapInUse()
	until, lost := time.Now().Add(watchdog), func(Loss) {}
	for i := range leases {
		r.Keep(&leases[i], keeper{Item{Name: "name", Owner: "owner"}, 1, lost}, until, watchdog)
	}
	now = r.ttl / 3
	settle(r)
	per := (int64(heapInUse()) - int64(before)) / n
	t.Logf("%d bytes embedded, %d beyond", unsafe.Sizeof(Lease{}), per)
	if per > 200 {
		t.Errorf("%d bytes a lease beyond the embedded ones", per)
	}
	runtime.KeepAlive(r)
}
