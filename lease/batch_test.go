package lease

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestBatches(t *testing.T) {
	const n = 10_000
	t.Run("kept at once", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *Renewer, s *store) {
			hs := make([]*hold, n)
			until := time.Now().Add(watchdog)
			for i := range hs {
				hs[i] = newHold(i)
				r.Keep(&hs[i].Lease, keeper{hs[i].item, nil, hs[i].lost}, until, true)
			}
			sleep(10 * time.Second)
			if calls := len(s.taken()); calls != n/100 {
				t.Errorf("%d calls in the first period", calls)
			}
			const periods = 30
			sleep(periods * 10 * time.Second)
			if calls := len(s.taken()); calls < periods*n/100 || calls > periods*n/100*6/5 {
				t.Errorf("%d calls in %d periods", calls, periods)
			}
			for _, h := range hs {
				h.wantKept(t)
			}
		})
	})
	t.Run("kept over time", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *Renewer, s *store) {
			hs := make([]*hold, n)
			for i := range hs {
				hs[i] = newHold(i)
				r.Keep(&hs[i].Lease, keeper{hs[i].item, nil, hs[i].lost}, time.Now().Add(watchdog), true)
				time.Sleep(rand.N(2 * time.Millisecond))
			}
			sleep(time.Minute) // merge
			s.taken()
			const periods = 30
			sleep(periods * 10 * time.Second)
			if calls := len(s.taken()); calls < periods*n/100 || calls > periods*n/100*5/4 {
				t.Errorf("%d calls in %d periods", calls, periods)
			}
			for _, h := range hs {
				h.wantKept(t)
			}
		})
	})
	t.Run("groups", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *Renewer, s *store) {
			type slot struct{ kind, n int }
			hs := make([]*hold, 5000)
			want := map[Item]any{}
			for i := range hs {
				hs[i] = newHold(i)
				g := slot{i % 2, i % 50}
				want[hs[i].item] = g
				r.Keep(&hs[i].Lease, keeper{hs[i].item, g, hs[i].lost}, time.Now().Add(watchdog), true)
			}
			sleep(10 * time.Second)
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
	})
}

// A lease that is soon due goes with one that is due; one that is not, doesn't.
func TestSlack(t *testing.T) {
	for gap, together := range map[time.Duration]bool{400 * time.Millisecond: true, 3 * time.Second: false} {
		bubble(t, func(t *testing.T, r *Renewer, s *store) {
			a, b := newHold(1), newHold(2)
			r.Keep(&a.Lease, keeper{a.item, nil, a.lost}, time.Now().Add(watchdog), true)
			r.Keep(&b.Lease, keeper{b.item, nil, b.lost}, time.Now().Add(watchdog+gap), true)
			sleep(10 * time.Second)
			if qs := s.taken(); len(qs) != 1 || (len(qs[0].items) == 2) != together {
				t.Errorf("gap %v: %v", gap, qs)
			}
		})
	}
}

// The leases of a small group come together, however far apart they began; but
// a longer lease is left alone.
func TestSmallGroupsMerge(t *testing.T) {
	bubble(t, func(t *testing.T, r *Renewer, s *store) {
		var hs []*hold
		for i := range 6 {
			h := newHold(i)
			r.Keep(&h.Lease, keeper{h.item, "slot", h.lost}, time.Now().Add(watchdog), true)
			hs = append(hs, h)
			time.Sleep(1600 * time.Millisecond)
		}
		sleep(20 * time.Second)
		s.taken()
		until := time.Now().Add(30 * time.Minute)
		r.Update(&hs[5].Lease, until, true)
		sleep(20 * time.Minute)
		qs := s.taken()
		for _, q := range qs {
			if len(q.items) != 5 || slices.Contains(q.items, hs[5].item) {
				t.Errorf("a call of %v", q.items)
			}
		}
		if len(qs) < 120 || len(qs) > 134 {
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
		for _, h := range hs {
			h.wantKept(t)
		}
	})
}

// Nothing is drawn into the calls of a group that gets no answer.
func TestFailingGroupIsNotFilled(t *testing.T) {
	bubble(t, func(t *testing.T, r *Renewer, s *store) {
		bad, other, late := newHold(1), newHold(2), newHold(3)
		s.answer = func(_ context.Context, q request) ([]Verdict, error) {
			if slices.Contains(q.items, bad.item) {
				return nil, errors.New("cut")
			}
			return all(Renewed, len(q.items)), nil
		}
		until := time.Now().Add(watchdog)
		r.Keep(&other.Lease, keeper{other.item, "g", other.lost}, until, true)
		sleep(10 * time.Second)                                                                                      // other has been renewed, and rests
		r.Keep(&bad.Lease, keeper{bad.item, "g", bad.lost}, time.Now().Add(watchdog), true)                          // not due yet
		r.Keep(&late.Lease, keeper{late.item, "g", late.lost}, time.Now().Add(watchdog-8500*time.Millisecond), true) // due within 1.5 s
		r.mu.Lock()
		r.groups["g"].failing = true
		r.mu.Unlock()
		s.taken()
		sleep(1500 * time.Millisecond)
		qs := s.taken()
		if len(qs) != 1 || len(qs[0].items) != 1 || qs[0].items[0] != late.item {
			t.Errorf("%v", qs)
		}
	})
}

func TestBatchOption(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		s.batch = 7
		r := NewRenewer(s.renew, Options{Watchdog: watchdog, Batch: 7})
		defer r.Close()
		for i := range 70 {
			h := newHold(i)
			r.Keep(&h.Lease, keeper{h.item, nil, h.lost}, time.Now().Add(watchdog), true)
		}
		sleep(10 * time.Second)
		if n := len(s.taken()); n != 10 {
			t.Errorf("%d calls", n)
		}
	})
}

// One key that fails whatever call it is in takes no other with it.
func TestPoisonedItemFailsAlone(t *testing.T) {
	bubble(t, func(t *testing.T, r *Renewer, s *store) {
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
			r.Keep(&h.Lease, keeper{h.item, nil, h.lost}, until, true)
		}
		sleep(watchdog)
		bad.wantLost(t, until, ErrExpired)
		qs := s.taken()
		if len(qs[0].items) != 100 {
			t.Fatalf("first call of %d", len(qs[0].items))
		}
		for i, q := range qs[1:] {
			if i < 100 && len(q.items) != 1 {
				t.Errorf("retry %d is a call of %d", i, len(q.items))
			}
			if i >= 100 && len(q.items) > 1 && slices.Contains(q.items, bad.item) {
				t.Error("the bad one was batched again")
			}
		}
		sleep(time.Minute)
		s.taken()
		sleep(10 * time.Minute)
		calls, items := 0, 0
		for _, q := range s.taken() {
			calls, items = calls+1, items+len(q.items)
		}
		if items < 99*60 || calls > items/50 {
			t.Errorf("%d calls for %d items: not batched again", calls, items)
		}
		for _, h := range good {
			h.wantKept(t)
		}
	})
}

// Verdicts are answers: a batch of which one item failed stays a batch.
func TestFailedVerdictDoesNotSplit(t *testing.T) {
	bubble(t, func(t *testing.T, r *Renewer, s *store) {
		first := true
		s.answer = func(_ context.Context, q request) ([]Verdict, error) {
			v := Renewed
			if first {
				v, first = Failed, false
			}
			return all(v, len(q.items)), nil
		}
		for i := range 100 {
			h := newHold(i)
			r.Keep(&h.Lease, keeper{h.item, nil, h.lost}, time.Now().Add(watchdog), true)
		}
		sleep(11 * time.Second)
		if qs := s.taken(); len(qs) != 2 || len(qs[1].items) != 100 {
			t.Errorf("%d calls", len(qs))
		}
	})
}

func TestStuckGroupDelaysNoOther(t *testing.T) {
	bubble(t, func(t *testing.T, r *Renewer, s *store) {
		s.answer = func(ctx context.Context, q request) ([]Verdict, error) {
			if q.group.(int)%3 == 0 {
				return stuck(ctx, q)
			}
			return all(Renewed, len(q.items)), nil
		}
		const groups = 3000
		hs := make([]*hold, 2*groups)
		until := time.Now().Add(watchdog)
		for i := range hs {
			hs[i] = newHold(i)
			r.Keep(&hs[i].Lease, keeper{hs[i].item, i % groups, hs[i].lost}, until, true)
		}
		for range 20 {
			sleep(10 * time.Second)
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
				h.wantLost(t, until, ErrExpired)
			} else {
				h.wantKept(t)
			}
		}
	})
}

func TestCallsInFlightAreBounded(t *testing.T) {
	const n = 20_000
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
			bubble(t, func(t *testing.T, r *Renewer, s *store) {
				s.answer = c.answer
				hs := make([]*hold, n)
				until := time.Now().Add(watchdog)
				for i := range hs {
					hs[i] = newHold(i)
					r.Keep(&hs[i].Lease, keeper{hs[i].item, "g", hs[i].lost}, until, true)
				}
				sleep(10 * time.Second)
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
						h.wantLost(t, until, ErrExpired)
					}
				}
			})
		})
	}
}

// After an outage everything is saved in the time that is left, though it is
// sent piece by piece.
func TestRecoveryAfterOutage(t *testing.T) {
	for _, outage := range []string{"errors", "silence"} {
		t.Run(outage, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *Renewer, s *store) {
				heal := time.Now().Add(20 * time.Second)
				s.answer = func(ctx context.Context, q request) ([]Verdict, error) {
					if time.Now().Before(heal) {
						if outage == "silence" {
							return stuck(ctx, q)
						}
						time.Sleep(time.Millisecond)
						return nil, errors.New("connection refused")
					}
					time.Sleep(50 * time.Millisecond)
					return all(Renewed, len(q.items)), nil
				}
				hs := make([]*hold, 10_000)
				until := time.Now().Add(watchdog)
				for i := range hs {
					hs[i] = newHold(i)
					r.Keep(&hs[i].Lease, keeper{hs[i].item, "g", hs[i].lost}, until, true)
				}
				sleep(time.Minute)
				for _, h := range hs {
					h.wantKept(t)
				}
			})
		})
	}
}

// A lease that waits for room in its group can be stopped, switched off and on,
// and lost.
func TestQueuedLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		s.batch = 1
		s.answer = stuck
		r := NewRenewer(s.renew, Options{Watchdog: watchdog, Batch: 1})
		defer r.Close()
		hs := make([]*hold, 64+30)
		until := time.Now().Add(watchdog)
		for i := range hs {
			hs[i] = newHold(i)
			r.Keep(&hs[i].Lease, keeper{hs[i].item, "g", hs[i].lost}, until, true)
		}
		sleep(10 * time.Second)
		var queued []*hold
		for _, h := range hs {
			if h.place == inQueue { // all goroutines sleep
				queued = append(queued, h)
			}
		}
		if len(queued) != 30 {
			t.Fatalf("%d wait", len(queued))
		}
		var stopped, off []*hold
		for i, j := range rand.Perm(len(queued)) {
			switch h := queued[j]; i % 3 {
			case 0:
				if r.Stop(&h.Lease) != nil {
					t.Error("not in flight, but a channel")
				}
				s.forbid(h.item)
				stopped = append(stopped, h)
			case 1:
				r.Update(&h.Lease, until, false)
				s.forbid(h.item)
				off = append(off, h)
			case 2:
				r.Update(&h.Lease, until, false)
				r.Update(&h.Lease, until, true)
			}
		}
		sleep(time.Hour)
		for _, h := range stopped {
			h.wantKept(t)
		}
		for _, h := range off {
			h.wantLost(t, until, ErrExpired)
		}
		if len(r.groups) != 0 {
			t.Errorf("%d groups are left", len(r.groups))
		}
	})
}

// Leases that wait to be sent alone can leave their queue too.
func TestQueuedAlone(t *testing.T) {
	bubble(t, func(t *testing.T, r *Renewer, s *store) {
		s.answer = func(ctx context.Context, q request) ([]Verdict, error) {
			if len(q.items) > 1 {
				return nil, ErrRefused
			}
			return stuck(ctx, q)
		}
		hs := make([]*hold, parallel*100+98)
		until := time.Now().Add(watchdog)
		for i := range hs {
			hs[i] = newHold(i)
			r.Keep(&hs[i].Lease, keeper{hs[i].item, "g", hs[i].lost}, until, true)
		}
		sleep(13 * time.Second) // the batches were refused, as many as may be are in flight alone
		waiting := 0
		for _, h := range hs {
			r.mu.Lock()
			queued := h.place == inQueue && h.alone
			r.mu.Unlock()
			if queued {
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

// A lease kept just after the loop has taken what was due within the slack waits
// for its own time.
func TestSlackEndsWithTheWakeUp(t *testing.T) {
	bubble(t, func(t *testing.T, r *Renewer, s *store) {
		now := time.Now()
		a, b := newHold(1), newHold(2)
		r.Keep(&a.Lease, keeper{a.item, 1, a.lost}, now.Add(watchdog-10*time.Second), true) // due now
		synctest.Wait()
		r.Keep(&b.Lease, keeper{b.item, 2, b.lost}, now.Add(watchdog-8800*time.Millisecond), true) // due in 0.2 to 1.2 s
		sleep(5 * time.Second)
		qs := s.taken()
		if len(qs) != 2 || !qs[0].at.Equal(now) || qs[1].at.Before(now.Add(200*time.Millisecond)) {
			t.Errorf("%v", qs)
		}
	})
}

// An extension by other means ends a backoff, but the lease that failed by
// itself isn't batched again before a call of its own has succeeded.
func TestUpdateAfterFailure(t *testing.T) {
	bubble(t, func(t *testing.T, r *Renewer, s *store) {
		bad, good := newHold(1), newHold(2)
		s.answer = func(_ context.Context, q request) ([]Verdict, error) {
			if slices.Contains(q.items, bad.item) {
				return nil, ErrRefused
			}
			return all(Renewed, len(q.items)), nil
		}
		r.Keep(&bad.Lease, keeper{bad.item, "g", bad.lost}, time.Now().Add(watchdog), true)
		sleep(15 * time.Second) // several tries
		again := time.Now()
		r.Update(&bad.Lease, again.Add(watchdog), true)
		s.taken()
		r.Keep(&good.Lease, keeper{good.item, "g", good.lost}, again.Add(watchdog-10*time.Second), true) // due now
		r.mu.Lock()
		r.groups["g"].failing = false
		r.mu.Unlock()
		sleep(11 * time.Second)
		var tries []time.Time
		for _, q := range s.taken() {
			if len(q.items) != 1 {
				t.Errorf("%v together", q.items)
			}
			if q.items[0] == bad.item {
				tries = append(tries, q.at)
			}
		}
		if len(tries) < 2 || tries[0].Sub(again) < 9*time.Second || tries[1].Sub(tries[0]) > 300*time.Millisecond {
			t.Errorf("tries %v after %v", tries, again)
		}
	})
}
