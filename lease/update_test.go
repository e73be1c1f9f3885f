package lease

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// keepOne keeps a new hold for one watchdog time, renewed or not, and also returns the lease's end.
func keepOne(r *Renewer, renewed bool) (*hold, time.Time) {
	until := time.Now().Add(watchdog)
	h := keep(r, 1, nil, until, renewedIf(renewed))
	return h, until
}

func TestUpdateTurnsRenewalOff(t *testing.T) {
	run(t, "off", func(t *testing.T, r *Renewer, s *store) {
		h, until := keepOne(r, true)
		r.Update(&h.Lease, until, 0)
		sleep(time.Hour)
		h.wantLost(t, until, expired)
		s.wantCalls(0, "renewed")
	})
	run(t, "off during a backoff", func(t *testing.T, r *Renewer, s *store) {
		s.answer = failing(errors.New("cut"))
		h, until := keepOne(r, true)
		sleep(due)
		r.Update(&h.Lease, until, 0)
		s.taken()
		sleep(time.Hour)
		h.wantLost(t, until, expired)
		s.wantCalls(0, "renewed")
	})
}

func TestUpdateTurnsRenewalOn(t *testing.T) {
	run(t, "on", func(t *testing.T, r *Renewer, s *store) {
		h, until := keepOne(r, false)
		sleep(20 * time.Second)
		r.Update(&h.Lease, until, watchdog)
		synctest.Wait()
		s.wantCalls(1, "not renewed at once, though overdue")
		h.wantUntil(t, r, time.Now().Add(watchdog))
		sleep(time.Hour)
		h.wantKept(t)
	})
	run(t, "on, with a long lease", func(t *testing.T, r *Renewer, s *store) {
		h, _ := keepOne(r, false)
		until := time.Now().Add(10 * time.Minute)
		r.Update(&h.Lease, until, watchdog)
		sleep(9 * time.Minute)
		s.wantCalls(0, "renewed when that would have shortened the lease")
		sleep(time.Hour)
		h.wantKept(t)
	})
}

func TestUpdateMovesTheEnd(t *testing.T) {
	run(t, "later", func(t *testing.T, r *Renewer, s *store) {
		h, _ := keepOne(r, true)
		for range 100 { // re-entries, each of which extends the lease
			sleep(8 * time.Second)
			r.Update(&h.Lease, time.Now().Add(watchdog), watchdog)
		}
		s.wantCalls(0, "renewals in between")
		sleep(due)
		s.wantCalls(1, "renewals after")
		h.wantKept(t)
	})
	run(t, "earlier", func(t *testing.T, r *Renewer, s *store) {
		h, until := keepOne(r, false)
		r.Update(&h.Lease, until.Add(-time.Second), 0)
		h.wantUntil(t, r, until)
		sleep(time.Hour)
		h.wantLost(t, until, expired)
	})
}

func TestUpdateAfterLossOrStop(t *testing.T) {
	inBubble(t, func(t *testing.T, r *Renewer, s *store) {
		h, until := keepOne(r, false)
		g, _ := keepOne(r, false)
		r.Stop(&g.Lease)
		sleep(watchdog)
		r.Update(&h.Lease, until.Add(time.Hour), watchdog)
		r.Update(&g.Lease, until.Add(time.Hour), watchdog)
		sleep(2 * time.Hour)
		h.wantLost(t, until, expired)
		g.wantKept(t)
		if len(s.taken()) != 0 || !r.Until(&h.Lease).Equal(until) || !r.Until(&g.Lease).Equal(until) {
			t.Error("came back")
		}
	})
}

// Update while a call is in flight takes effect when the call ends.
func TestUpdateWhileInFlight(t *testing.T) {
	type outcome struct {
		switches []bool // of renewed, during the call
		verdict  Verdict
	}
	for _, o := range []outcome{
		{[]bool{false}, Renewed}, {[]bool{false}, Failed}, {[]bool{false}, Gone},
		{[]bool{false, true}, Renewed}, {[]bool{false, true}, Failed}, {[]bool{false, true}, Gone},
	} {
		inBubble(t, func(t *testing.T, r *Renewer, s *store) {
			s.answer = after(2*time.Second, o.verdict)
			h, until := keepOne(r, true)
			sleep(due)
			sent := s.taken()[0].at
			for _, on := range o.switches {
				r.Update(&h.Lease, until, renewedIf(on))
			}
			sleep(watchdog - due)
			n := len(s.taken())
			on := o.switches[len(o.switches)-1]
			switch {
			case o.verdict == Gone:
				h.wantLost(t, sent.Add(2*time.Second), foundGone)
			case !on || o.verdict == Failed:
				h.wantLost(t, until, expired)
			default:
				h.wantKept(t)
			}
			if renewed := on && o.verdict != Gone; renewed != (n > 0) {
				t.Errorf("%v: %d calls after the first", o, n)
			}
		})
	}
	run(t, "later", func(t *testing.T, r *Renewer, s *store) {
		s.answer = after(2*time.Second, Renewed)
		h, _ := keepOne(r, true)
		sleep(due)
		until := time.Now().Add(10 * time.Minute)
		r.Update(&h.Lease, until, watchdog)
		s.taken()
		sleep(9 * time.Minute)
		if got := r.Until(&h.Lease); !got.Equal(until) || len(s.taken()) != 0 {
			t.Errorf("trusted until %v, want %v", got, until)
		}
		sleep(time.Hour)
		h.wantKept(t)
	})
}
