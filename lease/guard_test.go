package lease

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

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

func TestGuardOfALostLease(t *testing.T) {
	t.Parallel()
	run(t, "its key is gone", func(t *testing.T, r *Renewer, s *store) {
		s.answer = after(0, Gone)
		h, _ := guarded(r, time.Hour, false)
		sleep(due)
		if len(h.loss) != 1 || !h.loss[0].Gone {
			t.Errorf("lost: %v", h.loss)
		}
	})
	run(t, "nobody answers", func(t *testing.T, r *Renewer, s *store) {
		s.answer = stuck
		h, until := guarded(r, 2*watchdog, false)
		sleep(time.Hour)
		h.wantLost(t, until, expired)
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
