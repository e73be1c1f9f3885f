package lease

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestUpdate(t *testing.T) {
	keep := func(r *Renewer, renewed bool) (*hold, time.Time) {
		h, until := newHold(1), time.Now().Add(watchdog)
		r.Keep(&h.Lease, keeper{h.item, nil, h.lost}, until, renewedIf(renewed))
		return h, until
	}
	t.Run("off", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *Renewer, s *store) {
			h, until := keep(r, true)
			r.Update(&h.Lease, until, 0)
			sleep(time.Hour)
			h.wantLost(t, until, expired)
			if len(s.taken()) != 0 {
				t.Error("renewed")
			}
		})
	})
	t.Run("off during a backoff", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *Renewer, s *store) {
			s.answer = func(context.Context, request) ([]Verdict, error) { return nil, errors.New("cut") }
			h, until := keep(r, true)
			sleep(due)
			r.Update(&h.Lease, until, 0)
			s.taken()
			sleep(time.Hour)
			h.wantLost(t, until, expired)
			if len(s.taken()) != 0 {
				t.Error("renewed")
			}
		})
	})
	t.Run("on", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *Renewer, s *store) {
			h, until := keep(r, false)
			sleep(20 * time.Second)
			r.Update(&h.Lease, until, watchdog)
			synctest.Wait()
			if len(s.taken()) != 1 {
				t.Error("not renewed at once, though overdue")
			}
			if got, want := r.Until(&h.Lease), time.Now().Add(watchdog); !got.Equal(want) {
				t.Errorf("trusted until %v, want %v", got, want)
			}
			sleep(time.Hour)
			h.wantKept(t)
		})
	})
	t.Run("on, with a long lease", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *Renewer, s *store) {
			h, _ := keep(r, false)
			until := time.Now().Add(10 * time.Minute)
			r.Update(&h.Lease, until, watchdog)
			sleep(9 * time.Minute)
			if len(s.taken()) != 0 {
				t.Error("renewed when that would have shortened the lease")
			}
			sleep(time.Hour)
			h.wantKept(t)
		})
	})
	t.Run("later", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *Renewer, s *store) {
			h, _ := keep(r, true)
			for range 100 { // re-entries, each of which extends the expiry
				sleep(8 * time.Second)
				r.Update(&h.Lease, time.Now().Add(watchdog), watchdog)
			}
			if n := len(s.taken()); n != 0 {
				t.Errorf("%d renewals in between", n)
			}
			sleep(due)
			if n := len(s.taken()); n != 1 {
				t.Errorf("%d renewals after", n)
			}
			h.wantKept(t)
		})
	})
	t.Run("earlier", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *Renewer, s *store) {
			h, until := keep(r, false)
			r.Update(&h.Lease, until.Add(-time.Second), 0)
			if got := r.Until(&h.Lease); !got.Equal(until) {
				t.Errorf("trusted until %v, want %v", got, until)
			}
			sleep(time.Hour)
			h.wantLost(t, until, expired)
		})
	})
	t.Run("after loss or stop", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *Renewer, s *store) {
			h, until := keep(r, false)
			g, _ := keep(r, false)
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
	})
}

// Update while a call is in flight: the effect at the end of the call.
func TestUpdateWhileInFlight(t *testing.T) {
	type outcome struct {
		switches []bool // of renewed, during the call
		verdict  Verdict
	}
	for _, o := range []outcome{
		{[]bool{false}, Renewed}, {[]bool{false}, Failed}, {[]bool{false}, Gone},
		{[]bool{false, true}, Renewed}, {[]bool{false, true}, Failed}, {[]bool{false, true}, Gone},
	} {
		bubble(t, func(t *testing.T, r *Renewer, s *store) {
			s.answer = func(_ context.Context, q request) ([]Verdict, error) {
				time.Sleep(2 * time.Second)
				return all(o.verdict, len(q.items)), nil
			}
			h, until := newHold(1), time.Now().Add(watchdog)
			r.Keep(&h.Lease, keeper{h.item, nil, h.lost}, until, watchdog)
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
	t.Run("later", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *Renewer, s *store) {
			s.answer = func(_ context.Context, q request) ([]Verdict, error) {
				time.Sleep(2 * time.Second)
				return all(Renewed, len(q.items)), nil
			}
			h := newHold(1)
			r.Keep(&h.Lease, keeper{h.item, nil, h.lost}, time.Now().Add(watchdog), watchdog)
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
	})
}

// A guarded lease is asserted each period for its remaining time, renewed or not, and lost at its end all the same.
func TestGuard(t *testing.T) {
	t.Parallel()
	guard := func(r *Renewer, lasts time.Duration, renewed bool) (*hold, time.Time) {
		h, until := newHold(1), time.Now().Add(lasts)
		h.Guard()
		r.Keep(&h.Lease, keeper{h.item, nil, h.lost}, until, renewedIf(renewed))
		return h, until
	}
	// asserts requires one call after a period, for that time.
	asserts := func(t *testing.T, s *store, want time.Duration) {
		t.Helper()
		sleep(due)
		qs := s.taken()
		if len(qs) != 1 || len(qs[0].items) != 1 {
			t.Fatalf("%d calls in a period", len(qs))
		}
		want += time.Since(qs[0].at) // since it was sent
		if got := qs[0].items[0].Lease; got < want || got > want+time.Millisecond {
			t.Errorf("asserted for %v, want %v", got, want)
		}
	}
	t.Run("a fixed lease", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *Renewer, s *store) {
			h, until := guard(r, 3*watchdog, false)
			for time.Until(until) > watchdog {
				asserts(t, s, time.Until(until.Add(-due)))
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
			if len(s.taken()) != 0 {
				t.Error("asserted after its end")
			}
		})
	})
	t.Run("a short one", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *Renewer, s *store) {
			h, until := guard(r, watchdog/4, false)
			sleep(time.Hour)
			h.wantLost(t, until, expired)
			if len(s.taken()) != 0 {
				t.Error("asserted")
			}
		})
	})
	t.Run("renewed, and trusted for long", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *Renewer, s *store) {
			h, until := guard(r, 2*watchdog, true)
			asserts(t, s, time.Until(until.Add(-due)))
			for range 3 { // a re-entry now and then does not delay it
				sleep(due / 4)
				r.Update(&h.Lease, until, watchdog)
			}
			sleep(due / 4)
			if len(s.taken()) != 1 {
				t.Error("put off")
			}
			sleep(time.Hour)
			h.wantKept(t)
			qs := s.taken()
			if got := qs[len(qs)-1].items[0].Lease; got != watchdog+time.Millisecond && got != watchdog {
				t.Errorf("renewed for %v", got)
			}
		})
	})
	t.Run("up to its limit", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *Renewer, s *store) {
			h := newHold(1)
			limit := time.Now().Add(watchdog)
			h.Guard()
			r.Limit(&h.Lease, limit)
			r.Keep(&h.Lease, keeper{h.item, nil, h.lost}, time.Now().Add(watchdog), watchdog)
			asserts(t, s, time.Until(limit.Add(-due)))
			asserts(t, s, time.Until(limit.Add(-due)))
			sleep(time.Hour)
			if len(h.loss) != 1 || !h.loss[0].Limit {
				t.Errorf("lost: %v", h.loss)
			}
		})
	})
	t.Run("its key is gone", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *Renewer, s *store) {
			s.answer = func(_ context.Context, q request) ([]Verdict, error) { return all(Gone, len(q.items)), nil }
			h, _ := guard(r, time.Hour, false)
			sleep(due)
			if len(h.loss) != 1 || !h.loss[0].Gone {
				t.Errorf("lost: %v", h.loss)
			}
		})
	})
	t.Run("nobody answers", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *Renewer, s *store) {
			s.answer = stuck
			h, until := guard(r, 2*watchdog, false)
			sleep(time.Hour)
			h.wantLost(t, until, expired)
		})
	})
}
