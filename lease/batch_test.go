package lease

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
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

// A key that fails every call ends up in calls of its own.
func TestPoisonedItemFailsAlone(t *testing.T) {
	inBubble(t, func(t *testing.T, r *Renewer, s *store) {
		bad := newHold(50)
		s.answer = func(_ context.Context, q request) ([]Verdict, error) {
			if slices.Contains(q.items, bad.item) {
				return nil, fmt.Errorf("NOPERM: %w", ErrRefused)
			}
			return all(Renewed, len(q.items)), nil
		}
		var good []*hold
		until := time.Now().Add(watchdog)
		for i := range 100 {
			h := newHold(i)
			if i == 50 {
				h = bad
			} else {
				good = append(good, h)
			}
			r.Keep(&h.Lease, keeper{h.item, nil, h.lost}, until, watchdog)
		}
		sleep(watchdog)
		bad.wantLost(t, until, expired)
		qs := s.taken()
		if len(qs[0].items) != 100 {
			t.Fatalf("first call of %d", len(qs[0].items))
		}
		for i, q := range qs[1:] {
			if i < 100 && len(q.items) != 1 {
				t.Errorf("retry %d is a call of %d", i, len(q.items))
			}
			if i >= 100 && len(q.items) > 1 && slices.Contains(q.items, bad.item) {
				t.Error("the failing lease was batched again")
			}
		}
		sleep(time.Minute)
		s.taken()
		sleep(10 * time.Minute)
		calls, items := 0, 0
		for _, q := range s.taken() {
			calls, items = calls+1, items+len(q.items)
		}
		if items < 99*58 || calls > items/50 {
			t.Errorf("%d calls for %d items: not batched again", calls, items)
		}
		wantKept(t, good...)
	})
}

// An error for a single item is still an answer: the batch stays together.
func TestFailedVerdictDoesNotSplit(t *testing.T) {
	inBubble(t, func(t *testing.T, r *Renewer, s *store) {
		first := true
		s.answer = func(_ context.Context, q request) ([]Verdict, error) {
			v := Renewed
			if first {
				v, first = Failed, false
			}
			return all(v, len(q.items)), nil
		}
		keepAll(r, 100, nil)
		sleep(11 * time.Second)
		if qs := s.taken(); len(qs) != 2 || len(qs[1].items) != 100 {
			t.Errorf("%d calls", len(qs))
		}
	})
}

// Leases queued to be sent alone can leave the queue too.
func TestQueuedAlone(t *testing.T) {
	inBubble(t, func(t *testing.T, r *Renewer, s *store) {
		s.answer = func(ctx context.Context, q request) ([]Verdict, error) {
			if len(q.items) > 1 {
				return nil, ErrRefused
			}
			return stuck(ctx, q)
		}
		hs, _ := keepAll(r, parallel*100+98, "g")
		sleep(13 * time.Second) // the batches were refused, so the maximum number of single-lease calls is in flight
		waiting := 0
		for _, h := range hs {
			r.mu.Lock()
			waits := h.place == queued && h.alone()
			r.mu.Unlock()
			if waits {
				waiting++
				r.Stop(&h.Lease)
				s.forbid(h.item)
			}
		}
		if waiting != 98 {
			t.Errorf("%d wait", waiting)
		}
		sleep(time.Hour)
	})
}

func TestStuckGroupDelaysNoOther(t *testing.T) {
	inBubble(t, func(t *testing.T, r *Renewer, s *store) {
		s.answer = func(ctx context.Context, q request) ([]Verdict, error) {
			if q.group.(int)%3 == 0 {
				return stuck(ctx, q)
			}
			return all(Renewed, len(q.items)), nil
		}
		const groups = 600
		hs := make([]*hold, 2*groups)
		until := time.Now().Add(watchdog)
		for i := range hs {
			hs[i] = keep(r, i, i%groups, until, watchdog)
		}
		for range 20 {
			sleep(due)
			seen := map[any]bool{}
			for _, q := range s.taken() {
				seen[q.group] = true
			}
			for g := range groups {
				if g%3 != 0 && !seen[g] {
					t.Fatalf("group %d was not renewed in time", g)
				}
			}
		}
		for i, h := range hs {
			if i%groups%3 == 0 {
				h.wantLost(t, until, expired)
			} else {
				h.wantKept(t)
			}
		}
	})
}

func TestCallsInFlightAreBounded(t *testing.T) {
	const n = 800
	for name, c := range map[string]struct {
		most   int
		answer func(ctx context.Context, q request) ([]Verdict, error)
		kept   bool
	}{
		"slow": {64, func(_ context.Context, q request) ([]Verdict, error) {
			time.Sleep(time.Second)
			return all(Renewed, len(q.items)), nil
		}, true},
		"stuck": {64, stuck, false},
		"failing": {64, func(_ context.Context, q request) ([]Verdict, error) {
			time.Sleep(time.Second)
			return nil, errors.New("cut")
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			inBubbleWith(t, Options{Batch: 10}, func(t *testing.T, r *Renewer, s *store) {
				s.answer = c.answer
				hs, until := keepAll(r, n, "g")
				sleep(due)
				s.mu.Lock()
				most := s.most
				s.mu.Unlock()
				if most != c.most {
					t.Errorf("%d calls in flight, want %d", most, c.most)
				}
				sleep(6 * time.Second)
				s.mu.Lock()
				calls := s.calls["g"]
				s.mu.Unlock()
				if !c.kept && calls > probes {
					t.Errorf("%d calls in flight to a group that doesn't answer", calls)
				}
				if c.kept {
					sleep(time.Minute)
				} else {
					sleep(14 * time.Second)
				}
				for _, h := range hs {
					if c.kept {
						h.wantKept(t)
					} else {
						h.wantLost(t, until, expired)
					}
				}
			})
		})
	}
}

// Calls to a failing group carry only leases that are due.
func TestFailingGroupIsNotFilled(t *testing.T) {
	inBubble(t, func(t *testing.T, r *Renewer, s *store) {
		bad, other, late := newHold(1), newHold(2), newHold(3)
		s.answer = func(_ context.Context, q request) ([]Verdict, error) {
			if slices.Contains(q.items, bad.item) {
				return nil, errors.New("cut")
			}
			return all(Renewed, len(q.items)), nil
		}
		until := time.Now().Add(watchdog)
		r.Keep(&other.Lease, keeper{other.item, "g", other.lost}, until, watchdog)
		sleep(due)                                                                                                       // other was just renewed
		r.Keep(&bad.Lease, keeper{bad.item, "g", bad.lost}, time.Now().Add(watchdog), watchdog)                          // not due yet
		r.Keep(&late.Lease, keeper{late.item, "g", late.lost}, time.Now().Add(watchdog-9100*time.Millisecond), watchdog) // due within 1.5 s
		r.mu.Lock()
		r.groups[groupKey{"g", watchdog}].failure = &failure{}
		r.mu.Unlock()
		s.taken()
		sleep(1500 * time.Millisecond)
		qs := s.taken()
		if len(qs) != 1 || len(qs[0].items) != 1 || qs[0].items[0] != late.item {
			t.Errorf("%v", qs)
		}
	})
}

// A lease waiting for room in its group can be stopped, switched off and on, and lost.
func TestQueuedLeases(t *testing.T) {
	inBubbleWith(t, Options{Batch: 1}, func(t *testing.T, r *Renewer, s *store) {
		s.answer = stuck
		hs, until := keepAll(r, 64+30, "g")
		sleep(due)
		var waiting []*hold
		for _, h := range hs {
			if h.place == queued { // all goroutines sleep
				waiting = append(waiting, h)
			}
		}
		if len(waiting) != 30 {
			t.Fatalf("%d wait", len(waiting))
		}
		var stopped, off []*hold
		for i, j := range rand.Perm(len(waiting)) {
			switch h := waiting[j]; i % 3 {
			case 0:
				r.Stop(&h.Lease)
				s.forbid(h.item)
				stopped = append(stopped, h)
			case 1:
				r.Update(&h.Lease, until, 0)
				s.forbid(h.item)
				off = append(off, h)
			case 2:
				r.Update(&h.Lease, until, 0)
				r.Update(&h.Lease, until, watchdog)
			}
		}
		sleep(time.Hour)
		wantKept(t, stopped...)
		for _, h := range off {
			h.wantLost(t, until, expired)
		}
		if len(r.groups) != 0 {
			t.Errorf("%d groups are left", len(r.groups))
		}
	})
}

// So can leases waiting for a retry.
func TestQueuedRetries(t *testing.T) {
	inBubbleWith(t, Options{Batch: 1, Timeout: time.Second}, func(t *testing.T, r *Renewer, s *store) {
		heal := time.Now().Add(24 * time.Second)
		var calls atomic.Int32
		s.answer = func(_ context.Context, q request) ([]Verdict, error) {
			if calls.Add(1) <= 30 {
				return nil, errors.New("cut")
			}
			if time.Now().Before(heal) {
				time.Sleep(time.Until(heal))
				return nil, errors.New("cut")
			}
			return all(Renewed, len(q.items)), nil
		}
		hs, until := keepAll(r, 20, "g")
		sleep(20 * time.Second)
		waits, waiting := make([]bool, len(hs)), 0
		for i, h := range hs {
			if waits[i] = h.place == queued; waits[i] { // all goroutines sleep
				waiting++
			}
		}
		for i, h := range hs {
			if !waits[i] {
				continue
			}
			switch i % 4 {
			case 0:
				r.Update(&h.Lease, until, 0)
				s.forbid(h.item)
			case 1:
				r.Stop(&h.Lease)
				s.forbid(h.item)
			case 2:
				r.Update(&h.Lease, until.Add(time.Second), watchdog)
			}
		}
		if waiting != len(hs)-probes {
			t.Errorf("%d wait", waiting)
		}
		sleep(time.Minute)
		for i, h := range hs {
			if i%4 == 0 && waits[i] {
				h.wantLost(t, until, expired)
			} else {
				h.wantKept(t)
			}
		}
	})
}
