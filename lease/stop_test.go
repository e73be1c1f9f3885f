package lease

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestStop(t *testing.T) {
	inBubble(t, func(t *testing.T, r *Renewer, s *store) {
		var zero Lease
		r.Stop(&zero)
		if !r.Until(&zero).IsZero() {
			t.Error("a lease never kept")
		}
		until := time.Now().Add(watchdog)
		h, f := newHold(1), newHold(2)
		r.Keep(&h.Lease, keeper{h.item, nil, h.lost}, until, watchdog)
		r.Keep(&f.Lease, keeper{f.item, nil, f.lost}, until, 0)
		r.Stop(&h.Lease)
		r.Stop(&f.Lease)
		r.Stop(&h.Lease)
		sleep(time.Hour)
		h.wantKept(t)
		f.wantKept(t)
		s.wantCalls(0, "renewed after Stop")
		h.wantUntil(t, r, until)
	})
}

func TestCloseWithStuckCalls(t *testing.T) {
	inBubble(t, func(t *testing.T, r *Renewer, s *store) {
		s.answer = stuck
		var hs []*hold
		for i := range 500 {
			hs = append(hs, keep(r, i, i%20, time.Now().Add(watchdog), renewedIf(i%3 > 0)))
		}
		sleep(due)
		r.Stop(&hs[1].Lease)
		before := time.Now()
		r.Close() // the bubble reports leaked goroutines
		r.Close()
		if d := time.Since(before); d != 0 {
			t.Errorf("Close took %v", d)
		}
		if len(s.taken()) == 0 {
			t.Error("no call was in flight")
		}
		until := time.Now().Add(time.Second)
		late := keep(r, -1, nil, until, watchdog)
		late.wantUntil(t, r, until)
		r.Update(&hs[2].Lease, time.Now().Add(time.Hour), watchdog)
		r.Stop(&late.Lease)
		r.Stop(&hs[2].Lease)
		sleep(time.Hour)
		for _, h := range append(hs, late) {
			h.wantKept(t)
		}
		s.wantCalls(0, "renewed after Close")
	})
}

// closedKeeper counts the calls of Closed.
type closedKeeper struct {
	keeper
	closed *atomic.Int32
}

func (k closedKeeper) Closed() { k.closed.Add(1) }

// G9: Close calls Closed for exactly the leases it gives up, before it waits for a call.
func TestCloseTellsKeepers(t *testing.T) {
	inBubble(t, func(t *testing.T, r *Renewer, s *store) {
		end := make(chan struct{})
		s.answer = func(_ context.Context, q request) ([]Verdict, error) {
			<-end // ignores its ctx
			return all(Renewed, len(q.items)), nil
		}
		keep := func(i int, ttl time.Duration, renewed bool) (*hold, *atomic.Int32) {
			h, told := newHold(i), new(atomic.Int32)
			if !r.Keep(&h.Lease, closedKeeper{keeper{h.item, nil, h.lost}, told}, time.Now().Add(ttl), renewedIf(renewed)) {
				t.Error("not kept")
			}
			return h, told
		}
		_, renewed := keep(1, watchdog, true)
		_, fixed := keep(2, watchdog, false)
		_, lost := keep(3, time.Second, false)
		h, stopped := keep(4, watchdog, true)
		r.Stop(&h.Lease)
		sleep(due)
		closed := make(chan struct{})
		go func() {
			r.Close()
			close(closed)
		}()
		synctest.Wait()
		if renewed.Load() != 1 || fixed.Load() != 1 || lost.Load() != 0 || stopped.Load() != 0 {
			t.Errorf("Closed was called %d, %d, %d and %d times, want 1, 1, 0 and 0", renewed.Load(), fixed.Load(), lost.Load(), stopped.Load())
		}
		close(end)
		<-closed
		r.Close()
		if renewed.Load() != 1 || fixed.Load() != 1 {
			t.Error("Closed was called again")
		}
		late, told := newHold(5), new(atomic.Int32)
		if r.Keep(&late.Lease, closedKeeper{keeper{late.item, nil, late.lost}, told}, time.Now().Add(watchdog), watchdog) || told.Load() != 0 {
			t.Error("kept after Close")
		}
	})
}

// Results of calls that end during Close are discarded.
func TestCloseWhileCallsEnd(t *testing.T) {
	inBubble(t, func(t *testing.T, r *Renewer, s *store) {
		s.answer = after(2*time.Second, Gone)
		h, _ := keepOne(r, true)
		sleep(due)
		before := time.Now()
		r.Close()
		if time.Since(before) == 0 {
			t.Error("Close did not wait for the call")
		}
		sleep(time.Hour)
		h.wantKept(t)
	})
}

// After Close the end of a lease that it gave up is reported to those who ask.
func TestOverdue(t *testing.T) {
	inBubble(t, func(t *testing.T, r *Renewer, _ *store) {
		renewed, until := keepOne(r, true)
		fixed, _ := keepOne(r, false)
		stopped, _ := keepOne(r, true)
		bounded := newHold(1)
		r.Limit(&bounded.Lease, until)
		r.Keep(&bounded.Lease, keeper{bounded.item, nil, bounded.lost}, until, watchdog)
		never := newHold(1)
		r.Stop(&stopped.Lease)
		all := map[string]*hold{"renewed": renewed, "fixed": fixed, "bounded": bounded, "stopped": stopped, "never": never}
		none := func(when string) {
			t.Helper()
			for name, h := range all {
				if _, ok := r.Overdue(&h.Lease); ok {
					t.Errorf("%s: the %s one is overdue", when, name)
				}
			}
		}
		none("before Close")
		r.Close()
		none("before the end")
		sleep(watchdog)
		for range 2 {
			for name, want := range map[string]Loss{
				"renewed": {Until: until, Renewed: true}, "fixed": {Until: until}, "bounded": {Until: until, Renewed: true, Limit: true},
			} {
				if got, ok := r.Overdue(&all[name].Lease); !ok || got != want {
					t.Errorf("the %s one: %v, want %v", name, got, want)
				}
			}
		}
		all = map[string]*hold{"stopped": stopped, "never": never}
		none("at the end")
	})
}

// A renewal in flight during a release may find the name already released. That is no loss, but the end of the trusted time still is.
func TestReleasingWhileInFlight(t *testing.T) {
	for _, verdict := range []Verdict{Renewed, Failed, Gone} {
		inBubble(t, func(t *testing.T, r *Renewer, s *store) {
			s.answer = after(2*time.Second, verdict)
			stopped, slow, until := newHold(1), newHold(2), time.Now().Add(watchdog)
			r.Keep(&stopped.Lease, keeper{stopped.item, nil, stopped.lost}, until, watchdog)
			r.Keep(&slow.Lease, keeper{slow.item, nil, slow.lost}, until, watchdog)
			sleep(due)
			s.taken()
			r.Releasing(&stopped.Lease)
			r.Releasing(&slow.Lease)
			sleep(3 * time.Second)
			r.Stop(&stopped.Lease)
			sleep(time.Hour)
			stopped.wantKept(t)
			slow.wantLost(t, until, expired)
			if calls := s.taken(); len(calls) > 0 {
				t.Errorf("%d calls after the first", len(calls))
			}
		})
	}
}

// keepOne keeps a new hold for one watchdog time, renewed or not, and also returns the lease's end.
func keepOne(r *Renewer, renewed bool) (*hold, time.Time) {
	until := time.Now().Add(watchdog)
	h := keep(r, 1, nil, until, renewedIf(renewed))
	return h, until
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
