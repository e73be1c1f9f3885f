package lease

import (
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestBatches(t *testing.T) {
	const n, batch = 200, 10
	inBubbleWith(t, Options{Batch: batch}, func(t *testing.T, r *Renewer, s *store) { // kept at once
		hs, _ := keepAll(r, n, nil)
		sleep(due)
		s.wantCalls(n/batch, "in the first period")
		const periods = 30
		sleep(periods * 10 * time.Second)
		if calls := len(s.taken()); calls < (periods-1)*n/batch || calls > periods*n/batch {
			t.Errorf("%d calls in %d periods", calls, periods)
		}
		wantKept(t, hs...)
	})
	inBubbleWith(t, Options{Batch: batch}, func(t *testing.T, r *Renewer, s *store) { // kept over time
		const n = 50
		hs := make([]*hold, n)
		for i := range hs {
			hs[i] = keep(r, i, nil, time.Now().Add(watchdog), watchdog)
			time.Sleep(rand.N(200 * time.Millisecond))
		}
		sleep(time.Minute) // merge
		s.taken()
		// Renewals are 10.028 s apart on average, with a deviation of 0.3 s: the bound is five deviations away. Fewer leases over
		// more periods leave room.
		const periods = 600
		sleep(periods * 10 * time.Second)
		if calls := len(s.taken()); calls < periods*29/30*n/batch || calls > periods*n/batch {
			t.Errorf("%d calls in %d periods", calls, periods)
		}
		wantKept(t, hs...)
	})
	run(t, "groups", func(t *testing.T, r *Renewer, s *store) {
		type slot struct{ kind, n int }
		hs := make([]*hold, 5000)
		want := map[Item]any{}
		for i := range hs {
			hs[i] = newHold(i)
			g := slot{i % 2, i % 50}
			want[hs[i].item] = g
			r.Keep(&hs[i].Lease, keeper{hs[i].item, g, hs[i].lost}, time.Now().Add(watchdog), watchdog)
		}
		sleep(due)
		qs := s.taken()
		if len(qs) != 50 {
			t.Errorf("%d calls for 50 groups of 100", len(qs))
		}
		for _, q := range qs {
			for _, it := range q.items {
				if want[it] != q.group {
					t.Errorf("%v of group %v was sent with %v", it, want[it], q.group)
				}
			}
		}
		if len(r.groups) != 50 {
			t.Errorf("%d groups", len(r.groups))
		}
		for _, h := range hs {
			r.Stop(&h.Lease)
		}
		if len(r.groups) != 0 {
			t.Errorf("%d groups are left", len(r.groups))
		}
	})
}

func TestBatchOption(t *testing.T) {
	inBubbleWith(t, Options{Batch: 7}, func(t *testing.T, r *Renewer, s *store) {
		keepAll(r, 70, nil)
		sleep(due)
		s.wantCalls(10, "calls")
	})
}

// A new lease due soon joins a call for due leases; a lease due later does not.
func TestSlack(t *testing.T) {
	for gap, together := range map[time.Duration]bool{400 * time.Millisecond: true, 3 * time.Second: false} {
		inBubble(t, func(t *testing.T, r *Renewer, s *store) {
			a, b := newHold(1), newHold(2)
			r.Keep(&a.Lease, keeper{a.item, nil, a.lost}, time.Now().Add(watchdog), watchdog)
			r.Keep(&b.Lease, keeper{b.item, nil, b.lost}, time.Now().Add(watchdog+gap), watchdog)
			sleep(due)
			if qs := s.taken(); len(qs) != 1 || (len(qs[0].items) == 2) != together {
				t.Errorf("gap %v: %v", gap, qs)
			}
		})
	}
}

// A lease kept just after the loop collected everything due within the slack waits for its own due time.
func TestSlackEndsWithTheWakeUp(t *testing.T) {
	inBubble(t, func(t *testing.T, r *Renewer, s *store) {
		now := time.Now()
		a, b := newHold(1), newHold(2)
		r.Keep(&a.Lease, keeper{a.item, 1, a.lost}, now.Add(watchdog-due), watchdog) // due now
		synctest.Wait()
		r.Keep(&b.Lease, keeper{b.item, 2, b.lost}, now.Add(watchdog-9300*time.Millisecond), watchdog) // due in 0.2 to 1.3 s
		sleep(5 * time.Second)
		qs := s.taken()
		if len(qs) != 2 || !qs[0].at.Equal(now) || qs[1].at.Before(now.Add(200*time.Millisecond)) {
			t.Errorf("%v", qs)
		}
	})
}

// The leases of a small group end up in one call, however far apart they began. A longer lease stays separate.
func TestSmallGroupsMerge(t *testing.T) {
	inBubble(t, func(t *testing.T, r *Renewer, s *store) {
		var hs []*hold
		for i := range 6 {
			hs = append(hs, keep(r, i, "slot", time.Now().Add(watchdog), watchdog))
			time.Sleep(1600 * time.Millisecond)
		}
		sleep(20 * time.Second)
		s.taken()
		until := time.Now().Add(30 * time.Minute)
		r.Update(&hs[5].Lease, until, watchdog)
		sleep(20 * time.Minute)
		qs := s.taken()
		for _, q := range qs {
			if len(q.items) != 5 || slices.Contains(q.items, hs[5].item) {
				t.Errorf("a call of %v", q.items)
			}
		}
		if len(qs) < 117 || len(qs) > 122 {
			t.Errorf("%d calls in 120 periods", len(qs))
		}
		sleep(20 * time.Minute)
		s.taken()
		sleep(time.Minute)
		for _, q := range s.taken() {
			if len(q.items) != 6 {
				t.Errorf("a call of %v", q.items)
			}
		}
		wantKept(t, hs...)
	})
}
