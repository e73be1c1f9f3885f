package lease

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

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
			bubble(t, func(t *testing.T, r *Renewer, s *store) {
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
