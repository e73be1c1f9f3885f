package lease

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"
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
