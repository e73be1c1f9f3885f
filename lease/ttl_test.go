package lease

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-rlock/rlock/internal/testing/bubble"
)

// period returns the bounds of a renewal period: the longest is slightly over a third of ttl.
func period(ttl time.Duration) (shortest, longest time.Duration) { return ttl * 19 / 60, ttl * 19 / 54 }

// Leases with different ttls do not share calls. Each is renewed every third of its own ttl, and for that ttl.
func TestLeasesHaveTheirOwnTTL(t *testing.T) {
	inBubble(t, func(t *testing.T, r *Renewer, s *store) {
		began := time.Now()
		const long = 20 * time.Minute
		hs := make(map[Item]*hold)
		of := make(map[Item]time.Duration)
		for i, ttl := range []time.Duration{watchdog, 3 * time.Second, 500 * time.Millisecond, 10 * time.Minute, 3 * time.Second} {
			h := newHold(i)
			hs[h.item], of[h.item] = h, ttl
			r.Keep(&h.Lease, keeper{h.item, "g", h.lost}, began.Add(ttl), ttl)
		}
		sleep(long)
		last, calls := make(map[Item]time.Time), make(map[time.Duration]int)
		for _, q := range s.taken() {
			for _, it := range q.items {
				ttl := of[it]
				if q.ttl != ttl {
					t.Fatalf("%v is renewed for %v, want %v", it, q.ttl, ttl)
				}
				before, ok := last[it]
				if !ok {
					before = began
				}
				if _, longest := period(ttl); q.at.Sub(before) > longest {
					t.Fatalf("%v: %v to a renewal", it, q.at.Sub(before))
				}
				last[it] = q.at
			}
			calls[q.ttl]++
		}
		for ttl, n := range calls {
			if shortest, _ := period(ttl); n > int(long/shortest)+2 {
				t.Errorf("%v: %d calls", ttl, n)
			}
		}
		for it, h := range hs {
			h.wantKept(t)
			if last[it].IsZero() || !r.Until(&h.Lease).Equal(last[it].Add(of[it])) {
				t.Errorf("%v is trusted until %v, last renewed at %v", it, r.Until(&h.Lease), last[it])
			}
		}
		// Without answers, each lease is lost when its own ttl is over.
		s.mu.Lock()
		s.answer = stuck
		s.mu.Unlock()
		until := make(map[Item]time.Time)
		for it, h := range hs {
			until[it] = r.Until(&h.Lease)
		}
		sleep(time.Hour)
		for it, h := range hs {
			h.wantLost(t, until[it], expired)
		}
	})
}

// Leases of equal ttl share calls: n of them cost n/Batch calls per period, whatever ttls other leases have.
func TestBatchesOfEachTTL(t *testing.T) {
	inBubble(t, func(t *testing.T, r *Renewer, s *store) {
		const n, short = 1000, 3 * time.Second
		for i := range n {
			for k, ttl := range []time.Duration{watchdog, short} {
				keep(r, 2*i+k, nil, time.Now().Add(ttl), ttl)
			}
			time.Sleep(watchdog / 3 / n) // acquired over one period
		}
		sleep(3 * watchdog) // until batches have formed
		s.taken()
		sleep(watchdog)
		calls := make(map[time.Duration]int)
		for _, q := range s.taken() {
			calls[q.ttl]++
		}
		if most := 3 * n / 100 * 12 / 10; calls[watchdog] > most || calls[short] > 10*most {
			t.Errorf("%v", calls)
		}
	})
}

// A longer ttl makes a renewal due at once. A shorter ttl makes it due when the remaining time has dropped to it.
func TestUpdateChangesTheTTL(t *testing.T) {
	for _, guarded := range []bool{false, true} {
		inBubble(t, func(t *testing.T, r *Renewer, s *store) {
			const short = 3 * time.Second
			h := newHold(1)
			if guarded {
				h.Guard()
			}
			r.Keep(&h.Lease, keeper{h.item, nil, h.lost}, time.Now().Add(short), short)
			sleep(4 * short)
			s.taken()
			r.Update(&h.Lease, time.Time{}, watchdog)
			longer := time.Now()
			sleep(short)
			qs := s.taken()
			if len(qs) == 0 || qs[0].ttl != watchdog || !guarded && !qs[0].at.Equal(longer) {
				t.Fatalf("guarded %t: %+v", guarded, qs)
			}
			until := r.Until(&h.Lease)
			if !until.Equal(qs[len(qs)-1].at.Add(watchdog)) {
				t.Fatalf("trusted for %v", time.Until(until))
			}
			r.Update(&h.Lease, time.Time{}, short)
			sleep(time.Until(until.Add(-short)))
			for _, q := range s.taken() {
				if !guarded || q.items[0].Lease < until.Sub(q.at) {
					t.Errorf("guarded %t: renewed though that makes it no longer: %+v", guarded, q)
				}
			}
			if !r.Until(&h.Lease).Equal(until) {
				t.Error("the trusted time has changed")
			}
			sleep(time.Minute)
			h.wantKept(t)
			for _, q := range s.taken() {
				if q.ttl != short {
					t.Errorf("renewed for %v", q.ttl)
				}
			}
			if left := time.Until(r.Until(&h.Lease)); left > short || left < short/2 {
				t.Errorf("trusted for %v", left)
			}
		})
	}
}

// Changing the ttl never makes a lease trusted longer than the store keeps it, and never delays assertions of a guarded lease.
func TestUpdatesOfTheTTLAtAnyMoment(t *testing.T) {
	for _, guarded := range []bool{false, true} {
		for _, first := range []time.Duration{0, 3 * time.Second, watchdog} {
			for step := range 40 {
				inBubble(t, func(t *testing.T, r *Renewer, s *store) {
					var told time.Time // the store's expiry
					s.answer = func(_ context.Context, q request) ([]Verdict, error) {
						time.Sleep(100 * time.Millisecond)
						lasts := q.ttl
						if l := q.items[0].Lease; l > 0 {
							lasts = l
						}
						s.mu.Lock()
						if until := q.at.Add(lasts); until.After(told) {
							told = until
						}
						s.mu.Unlock()
						time.Sleep(200 * time.Millisecond)
						return all(Renewed, len(q.items)), nil
					}
					h, ttls := newHold(1), []time.Duration{0, 3 * time.Second, watchdog}
					if guarded {
						h.Guard()
					}
					told = time.Now().Add(watchdog)
					r.Keep(&h.Lease, keeper{h.item, nil, h.lost}, told, first)
					for i := 0; len(h.loss) == 0 && i < 100; i++ {
						sleep(time.Duration(20+7*step) * time.Millisecond)
						r.Update(&h.Lease, time.Time{}, ttls[(i+step)%3])
						s.mu.Lock()
						if until := r.Until(&h.Lease); until.After(told) {
							t.Fatalf("guarded %t, %v, step %d: trusted %v longer than the store has it", guarded, first, step, until.Sub(told))
						}
						s.mu.Unlock()
					}
					r.Update(&h.Lease, time.Time{}, 3*time.Second)
					sleep(time.Minute)
					h.wantKept(t)
				})
			}
		}
	}
}

// Switching renewal on while the store is being sent the remaining time adds no trusted time.
func TestGuardedLeaseIsRenewedDuringACall(t *testing.T) {
	inBubble(t, func(t *testing.T, r *Renewer, s *store) {
		s.answer = after(time.Second, Renewed)
		h, until := newHold(1), time.Now().Add(watchdog/2)
		h.Guard()
		r.Keep(&h.Lease, keeper{h.item, nil, h.lost}, until, 0)
		told := func() (items []Item) {
			s.mu.Lock()
			defer s.mu.Unlock()
			for _, q := range s.requests {
				items = append(items, q.items...)
			}
			return items
		}
		for len(told()) == 0 {
			sleep(10 * time.Millisecond)
		}
		r.Update(&h.Lease, time.Time{}, watchdog)
		sleep(time.Second)
		if !r.Until(&h.Lease).Equal(until) {
			t.Errorf("trusted for %v, and the store got %v", time.Until(r.Until(&h.Lease)), told()[0].Lease)
		}
		sleep(time.Hour)
		h.wantKept(t)
	})
}

// A call times out after Options.Timeout or a sixth of its ttl, whichever is shorter.
func TestTimeout(t *testing.T) {
	for _, row := range []struct{ given, ttl, want time.Duration }{
		{0, watchdog, watchdog / 6},
		{time.Second, watchdog, time.Second},
		{3 * time.Second, watchdog, 3 * time.Second},
		{time.Minute, watchdog, watchdog / 6},
		{3 * time.Second, 600 * time.Millisecond, 100 * time.Millisecond},
		{3 * time.Second, time.Hour, 3 * time.Second},
	} {
		inBubbleWith(t, Options{Timeout: row.given}, func(t *testing.T, r *Renewer, s *store) {
			var longest time.Duration
			s.answer = func(ctx context.Context, q request) ([]Verdict, error) {
				vs, err := stuck(ctx, q)
				s.mu.Lock()
				defer s.mu.Unlock()
				longest = max(longest, time.Since(q.at))
				return vs, err
			}
			keep(r, 1, nil, time.Now().Add(row.ttl), row.ttl)
			sleep(2 * row.ttl)
			if longest != row.want {
				t.Errorf("%v: a call took %v", row, longest)
			}
		})
	}
}

// Close waits that long, and no longer, for calls that ignore their ctx.
func TestCloseLeavesCallsThatHeedNothing(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newStore(t)
		release := make(chan struct{})
		s.answer = func(_ context.Context, q request) ([]Verdict, error) {
			<-release
			return all(Gone, len(q.items)), nil
		}
		r := NewRenewer(s.renew, Options{Watchdog: watchdog, Timeout: 2 * time.Second})
		var hs []*hold
		for i := range 10 {
			hs = append(hs, keep(r, i, i, time.Now().Add(watchdog), watchdog))
		}
		sleep(due)
		for range 2 {
			before := time.Now()
			r.Close()
			if d := time.Since(before); d != 2*time.Second {
				t.Errorf("Close took %v", d)
			}
		}
		close(release)
		sleep(time.Hour)
		wantKept(t, hs...)
	})
}

// guarded keeps a new hold with a guarded lease for that duration, renewed or not, and also returns the lease's end.
func guarded(r *Renewer, lasts time.Duration, renewed bool) (*hold, time.Time) {
	h, until := newHold(1), time.Now().Add(lasts)
	h.Guard()
	r.Keep(&h.Lease, keeper{h.item, nil, h.lost}, until, renewedIf(renewed))
	return h, until
}

// requireAsserted requires exactly one call after a period, with that remaining time.
func requireAsserted(t *testing.T, s *store, want time.Duration) {
	t.Helper()
	sleep(due)
	qs := s.taken()
	if len(qs) != 1 || len(qs[0].items) != 1 {
		t.Fatalf("%d calls in a period", len(qs))
	}
	want += time.Since(qs[0].at) // counted from sending
	if got := qs[0].items[0].Lease; got < want || got > want+time.Millisecond {
		t.Errorf("asserted for %v, want %v", got, want)
	}
}

// A guarded lease is asserted every period with its remaining time, and is still lost at its end.
func TestGuardOfAFixedLease(t *testing.T) {
	t.Parallel()
	run(t, "a fixed lease", func(t *testing.T, r *Renewer, s *store) {
		h, until := guarded(r, 3*watchdog, false)
		for time.Until(until) > watchdog {
			requireAsserted(t, s, time.Until(until.Add(-due)))
			if !r.Until(&h.Lease).Equal(until) {
				t.Fatal("that made it longer")
			}
		}
		r.Update(&h.Lease, until.Add(watchdog), 0)
		until = until.Add(watchdog)
		sleep(time.Until(until))
		h.wantLost(t, until, expired)
		s.taken()
		sleep(time.Hour)
		s.wantCalls(0, "asserted after its end")
	})
	run(t, "a short one", func(t *testing.T, r *Renewer, s *store) {
		h, until := guarded(r, watchdog/4, false)
		sleep(time.Hour)
		h.wantLost(t, until, expired)
		s.wantCalls(0, "asserted")
	})
}

func TestGuardOfARenewedLease(t *testing.T) {
	t.Parallel()
	run(t, "renewed, and trusted for long", func(t *testing.T, r *Renewer, s *store) {
		h, until := guarded(r, 2*watchdog, true)
		requireAsserted(t, s, time.Until(until.Add(-due)))
		for range 3 { // occasional re-entries do not delay it
			sleep(due / 4)
			r.Update(&h.Lease, until, watchdog)
		}
		sleep(due / 4)
		s.wantCalls(1, "put off")
		sleep(time.Hour)
		h.wantKept(t)
		qs := s.taken()
		if got := qs[len(qs)-1].items[0].Lease; got != watchdog+time.Millisecond && got != watchdog {
			t.Errorf("renewed for %v", got)
		}
	})
	run(t, "up to its limit", func(t *testing.T, r *Renewer, s *store) {
		h := newHold(1)
		limit := time.Now().Add(watchdog)
		h.Guard()
		r.Limit(&h.Lease, limit)
		r.Keep(&h.Lease, keeper{h.item, nil, h.lost}, time.Now().Add(watchdog), watchdog)
		requireAsserted(t, s, time.Until(limit.Add(-due)))
		requireAsserted(t, s, time.Until(limit.Add(-due)))
		sleep(time.Hour)
		if len(h.loss) != 1 || !h.loss[0].Limit {
			t.Errorf("lost: %v", h.loss)
		}
	})
}

// A limit ends the trusted time, however often the lease is renewed. Renewals that cannot extend the lease stop.
func TestLimit(t *testing.T) {
	const limit = 75 * time.Second
	keep := func(r *Renewer, lasts time.Duration, renewed bool) (h *hold, end time.Time) {
		h, end = newHold(1), time.Now().Add(limit)
		r.Limit(&h.Lease, end)
		r.Keep(&h.Lease, keeper{h.item, nil, h.lost}, time.Now().Add(lasts), renewedIf(renewed))
		return h, end
	}
	wantLimit := func(t *testing.T, h *hold, end time.Time) {
		t.Helper()
		sleep(time.Hour)
		h.wantLost(t, end, expired)
		if !h.loss[0].Limit {
			t.Errorf("the loss does not report the limit: %+v", h.loss[0])
		}
	}
	run(t, "renewed", func(t *testing.T, r *Renewer, s *store) {
		h, end := keep(r, watchdog, true)
		sleep(limit - time.Second)
		h.wantKept(t)
		calls := s.taken()
		if first := end.Add(-watchdog); len(calls) < 4 || calls[len(calls)-1].at.Before(first) ||
			!calls[len(calls)-2].at.Before(first) {
			t.Errorf("renewed at %v, want no more than one after %v", calls, first)
		}
		wantLimit(t, h, end)
		s.wantCalls(0, "renewed after the limit")
	})
	t.Run("long from the start", func(t *testing.T) {
		for _, renewed := range []bool{false, true} {
			inBubble(t, func(t *testing.T, r *Renewer, s *store) {
				h, end := keep(r, time.Hour, renewed)
				h.wantUntil(t, r, end)
				wantLimit(t, h, end)
				s.wantCalls(0, "renewed")
			})
		}
	})
	run(t, "updated", func(t *testing.T, r *Renewer, s *store) {
		h, end := keep(r, time.Second, false)
		r.Update(&h.Lease, time.Now().Add(time.Hour), watchdog)
		wantLimit(t, h, end)
		s.wantCalls(0, "renewed")
	})
	run(t, "no answer", func(t *testing.T, r *Renewer, s *store) {
		s.answer = failing(errors.New("cut"))
		h, _ := keep(r, watchdog, true)
		until := time.Now().Add(watchdog)
		sleep(time.Hour)
		h.wantLost(t, until, expired)
		if h.loss[0].Limit {
			t.Error("the loss was not due to the limit")
		}
	})
	run(t, "found gone", func(t *testing.T, r *Renewer, s *store) {
		s.answer = after(0, Gone)
		h, _ := keep(r, watchdog, true)
		sleep(due)
		synctest.Wait()
		if len(h.loss) != 1 || !h.loss[0].Gone || h.loss[0].Limit {
			t.Errorf("lost %+v, want gone", h.loss)
		}
	})
}

// A renewal that was sent before Soon does not say what the owner needs to know: the next one follows it.
func TestSoonDuringACall(t *testing.T) {
	inBubble(t, func(t *testing.T, r *Renewer, s *store) {
		h := keep(r, 1, nil, time.Now().Add(watchdog), watchdog)
		answers := make(chan bool, 2)
		s.mu.Lock()
		s.answer = func(_ context.Context, q request) ([]Verdict, error) {
			<-answers
			return all(Renewed, len(q.items)), nil
		}
		s.mu.Unlock()
		r.Soon(&h.Lease)
		synctest.Wait()
		sleep(time.Second)
		asked := time.Now()
		for range 2 {
			r.Soon(&h.Lease)
		}
		answers <- true
		answers <- true
		synctest.Wait()
		h.wantUntil(t, r, asked.Add(watchdog))
		if qs := s.taken(); len(qs) != 2 {
			t.Fatalf("calls %v", qs)
		}
		close(answers)
	})
}

// Soon makes the next renewal due now. The later ones follow from that, and it does nothing for a lease that is not renewed, or has
// ended.
func TestSoon(t *testing.T) {
	inBubble(t, func(t *testing.T, r *Renewer, s *store) {
		h, fixed := keep(r, 1, nil, time.Now().Add(watchdog), watchdog), keep(r, 2, nil, time.Now().Add(watchdog), 0)
		sleep(time.Second)
		asked := time.Now()
		r.Soon(&h.Lease)
		r.Soon(&fixed.Lease)
		synctest.Wait()
		h.wantUntil(t, r, asked.Add(watchdog))
		if qs := s.taken(); len(qs) != 1 || len(qs[0].items) != 1 || !qs[0].at.Equal(asked) {
			t.Fatalf("calls %v", qs)
		}
		sleep(watchdog)
		shortest, longest := period(watchdog)
		qs := s.taken()
		if gap := qs[0].at.Sub(asked); gap < shortest || gap > longest {
			t.Errorf("the next one is %v later", gap)
		}
		s.mu.Lock()
		s.answer = stuck
		s.mu.Unlock()
		r.Soon(&h.Lease)
		synctest.Wait()
		r.Soon(&h.Lease)
		synctest.Wait()
		if qs := s.taken(); len(qs) != 1 {
			t.Errorf("calls %v", qs)
		}
		r.Stop(&h.Lease)
		s.forbid(h.item)
		r.Soon(&h.Lease)
		sleep(time.Minute)
		r.Close()
		r.Soon(&h.Lease)
	})
}
