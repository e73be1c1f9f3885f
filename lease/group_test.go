package lease

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"
)

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
