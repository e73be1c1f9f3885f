package lease

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestRenewsEveryThird(t *testing.T) {
	bubble(t, func(t *testing.T, r *Renewer, s *store) {
		h, last := newHold(1), time.Now()
		r.Keep(&h.Lease, keeper{h.item, "g", h.lost}, last.Add(watchdog), true)
		distinct := map[time.Duration]bool{}
		for range 100 {
			sleep(10 * time.Second)
			for _, q := range s.taken() {
				gap := q.at.Sub(last)
				if gap < 9*time.Second || gap > 10*time.Second {
					t.Errorf("renewed after %v", gap)
				}
				if q.group != "g" || q.ttl != watchdog || len(q.items) != 1 || q.items[0] != h.item {
					t.Errorf("request %+v", q)
				}
				distinct[gap], last = true, q.at
			}
			if got := r.Until(&h.Lease); !got.Equal(last.Add(watchdog)) {
				t.Fatalf("trusted until %v after a renewal at %v", got, last)
			}
		}
		if len(distinct) < 50 {
			t.Errorf("%d different periods in about 100: no jitter", len(distinct))
		}
		h.wantKept(t)
	})
}

func TestFixedEndsAtItsTime(t *testing.T) {
	bubble(t, func(t *testing.T, r *Renewer, s *store) {
		var hs []*hold
		var untils []time.Time
		for i := range 100 {
			h, until := newHold(i), time.Now().Add(time.Duration(i*37%100)*time.Second)
			r.Keep(&h.Lease, keeper{h.item, nil, h.lost}, until, false)
			hs, untils = append(hs, h), append(untils, until)
		}
		for i, h := range hs {
			sleep(time.Until(untils[i]) - 1)
			if time.Until(untils[i]) == 1 {
				h.wantKept(t)
			}
		}
		sleep(time.Hour)
		for i, h := range hs {
			h.wantLost(t, untils[i], ErrExpired)
			if got := r.Until(&h.Lease); !got.Equal(untils[i]) {
				t.Errorf("until %v, want %v", got, untils[i])
			}
		}
		if n := len(s.taken()); n != 0 {
			t.Errorf("%d calls for fixed leases", n)
		}
	})
}

// G2: on time, also when the renew function breaks its promise to return.
func TestLossIsOnTimeWhileCallsAreStuck(t *testing.T) {
	for _, kind := range []string{"until their ctx ends", "for ever"} {
		t.Run(kind, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *Renewer, s *store) {
				release := make(chan struct{})
				defer close(release)
				s.answer = stuck
				if kind == "for ever" {
					s.answer = func(_ context.Context, q request) ([]Verdict, error) {
						<-release
						return all(Renewed, len(q.items)), nil
					}
				}
				var hs []*hold
				var untils []time.Time
				for i := range 2000 {
					h, until := newHold(i), time.Now().Add(watchdog)
					r.Keep(&h.Lease, keeper{h.item, i % 7, h.lost}, until, true)
					hs, untils = append(hs, h), append(untils, until)
					time.Sleep(7 * time.Millisecond)
				}
				sleep(2 * watchdog)
				for i, h := range hs {
					h.wantLost(t, untils[i], ErrExpired)
				}
				if len(s.taken()) == 0 {
					t.Error("no call was made")
				}
			})
		})
	}
}

func TestSlowReplyDoesNotStretch(t *testing.T) {
	bubble(t, func(t *testing.T, r *Renewer, s *store) {
		s.answer = func(_ context.Context, q request) ([]Verdict, error) {
			time.Sleep(4 * time.Second)
			return all(Renewed, len(q.items)), nil
		}
		h := newHold(1)
		r.Keep(&h.Lease, keeper{h.item, nil, h.lost}, time.Now().Add(watchdog), true)
		sleep(14 * time.Second) // one call, sent after 9 to 10 s
		qs := s.taken()
		if len(qs) != 1 {
			t.Fatalf("%d calls", len(qs))
		}
		if got, want := r.Until(&h.Lease), qs[0].at.Add(watchdog); !got.Equal(want) {
			t.Errorf("trusted until %v, want %v", got, want)
		}
		// The period, too, counts from the sending.
		sleep(time.Until(qs[0].at.Add(10 * time.Second)))
		if qs := s.taken(); len(qs) != 1 {
			t.Errorf("%d calls in the second period", len(qs))
		}
	})
}

func TestReplyAfterLossIsIgnored(t *testing.T) {
	for _, v := range []Verdict{Renewed, Gone, Failed} {
		bubble(t, func(t *testing.T, r *Renewer, s *store) {
			s.answer = func(_ context.Context, q request) ([]Verdict, error) {
				time.Sleep(time.Minute)
				return all(v, len(q.items)), nil
			}
			h, until := newHold(1), time.Now().Add(watchdog)
			r.Keep(&h.Lease, keeper{h.item, nil, h.lost}, until, true)
			sleep(time.Hour)
			h.wantLost(t, until, ErrExpired)
			if got := r.Until(&h.Lease); !got.Equal(until) {
				t.Errorf("trusted until %v, want %v", got, until)
			}
			if n := len(s.taken()); n != 1 {
				t.Errorf("%d calls", n)
			}
		})
	}
}

func TestFailuresAreRetriedUntilTheEnd(t *testing.T) {
	failures := map[string]func(q request) ([]Verdict, error){
		"error":   func(request) ([]Verdict, error) { return nil, errors.New("cut") },
		"both":    func(q request) ([]Verdict, error) { return all(Renewed, len(q.items)), errors.New("cut") },
		"verdict": func(q request) ([]Verdict, error) { return all(Failed, len(q.items)), nil },
		"few":     func(request) ([]Verdict, error) { return nil, nil },
		"many":    func(q request) ([]Verdict, error) { return all(Renewed, len(q.items)+1), nil },
	}
	for name, fail := range failures {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *Renewer, s *store) {
				s.answer = func(_ context.Context, q request) ([]Verdict, error) { return fail(q) }
				h, until := newHold(1), time.Now().Add(watchdog)
				r.Keep(&h.Lease, keeper{h.item, nil, h.lost}, until, true)
				sleep(watchdog)
				h.wantLost(t, until, ErrExpired)
				qs := s.taken()
				backoff := 300 * time.Millisecond
				for i := range len(qs) - 1 {
					want := min(backoff, max(until.Sub(qs[i].at)/2, 300*time.Millisecond))
					if gap := qs[i+1].at.Sub(qs[i].at); gap < want*9/10 || gap > want {
						t.Errorf("try %d after %v, want %v less a tenth", i+2, gap, want)
					}
					backoff = min(2*backoff, 5*time.Second)
				}
				if left := until.Sub(qs[len(qs)-1].at); left > 300*time.Millisecond {
					t.Errorf("gave up %v before the end", left)
				}
				if len(qs) < 8 || len(qs) > 15 {
					t.Errorf("%d tries", len(qs))
				}
			})
		})
	}
}

func TestLateSuccessSavesTheLease(t *testing.T) {
	bubble(t, func(t *testing.T, r *Renewer, s *store) {
		heal := time.Now().Add(watchdog - time.Second)
		s.answer = func(ctx context.Context, q request) ([]Verdict, error) {
			if time.Now().Before(heal) {
				return nil, errors.New("LOADING")
			}
			return all(Renewed, len(q.items)), nil
		}
		h := newHold(1)
		r.Keep(&h.Lease, keeper{h.item, nil, h.lost}, time.Now().Add(watchdog), true)
		sleep(watchdog)
		qs := s.taken()
		if got, want := r.Until(&h.Lease), qs[len(qs)-1].at.Add(watchdog); !got.Equal(want) {
			t.Errorf("trusted until %v, want %v", got, want)
		}
		sleep(time.Hour)
		h.wantKept(t)
		if n := len(s.taken()); n < 360 || n > 400 {
			t.Errorf("%d calls in the hour after", n)
		}
	})
}

// The retries of a lease keep their backoff when others come due around them.
func TestBackoffIsNotCutShortByOthers(t *testing.T) {
	bubble(t, func(t *testing.T, r *Renewer, s *store) {
		s.answer = func(_ context.Context, q request) ([]Verdict, error) {
			if q.group == "bad" {
				return nil, errors.New("cut")
			}
			return all(Renewed, len(q.items)), nil
		}
		h := newHold(0)
		r.Keep(&h.Lease, keeper{h.item, "bad", h.lost}, time.Now().Add(watchdog), true)
		for i := range 300 {
			o := newHold(i + 1)
			r.Keep(&o.Lease, keeper{o.item, i, o.lost}, time.Now().Add(watchdog), true)
			time.Sleep(100 * time.Millisecond)
		}
		n := 0
		for _, q := range s.taken() {
			if q.group == "bad" {
				n++
			}
		}
		if n < 8 || n > 15 {
			t.Errorf("%d tries", n)
		}
	})
}

func TestGone(t *testing.T) {
	bubble(t, func(t *testing.T, r *Renewer, s *store) {
		bad := newHold(0)
		s.answer = func(_ context.Context, q request) ([]Verdict, error) {
			time.Sleep(time.Second)
			vs := all(Renewed, len(q.items))
			for i, it := range q.items {
				if it == bad.item {
					vs[i] = Gone
				}
			}
			return vs, nil
		}
		var good []*hold
		until := time.Now().Add(watchdog)
		r.Keep(&bad.Lease, keeper{bad.item, nil, bad.lost}, until, true)
		for i := range 10 {
			h := newHold(i + 1)
			good = append(good, h)
			r.Keep(&h.Lease, keeper{h.item, nil, h.lost}, until, true)
		}
		sleep(time.Hour)
		bad.wantLost(t, s.taken()[0].at.Add(time.Second), ErrGone)
		if got := r.Until(&bad.Lease); !got.Equal(until) {
			t.Errorf("trusted until %v, want %v", got, until)
		}
		for _, h := range good {
			h.wantKept(t)
		}
	})
}

// Between the word of the store and the callback, the lease can't come back,
// but it can be stopped.
func TestGoneIsFinalBeforeItIsReported(t *testing.T) {
	bubble(t, func(t *testing.T, r *Renewer, s *store) {
		s.answer = func(_ context.Context, q request) ([]Verdict, error) {
			time.Sleep(time.Second)
			return all(Gone, len(q.items)), nil
		}
		a, b, c, until := newHold(1), newHold(2), newHold(3), time.Now().Add(watchdog)
		r.Keep(&a.Lease, keeper{a.item, nil, a.lost}, until, true)
		r.Keep(&b.Lease, keeper{b.item, nil, b.lost}, until, true)
		// The callback of c keeps the loop busy over the moment of the verdict.
		sleep(9 * time.Second)
		for len(s.taken()) == 0 {
			sleep(time.Millisecond)
		}
		sent := time.Now()
		r.Keep(&c.Lease, keeper{c.item, nil, func(error) {
			time.Sleep(time.Second)
			r.Update(&a.Lease, until.Add(time.Hour), true)
			r.Stop(&b.Lease)
		}}, sent.Add(999*time.Millisecond), false)
		sleep(time.Hour)
		a.mu.Lock()
		if len(a.loss) != 1 || a.loss[0] != ErrGone || a.at.After(sent.Add(2*time.Second)) {
			t.Errorf("lost %v at %v", a.loss, a.at)
		}
		a.mu.Unlock()
		b.wantKept(t)
	})
}

func TestUpdate(t *testing.T) {
	keep := func(r *Renewer, renewed bool) (*hold, time.Time) {
		h, until := newHold(1), time.Now().Add(watchdog)
		r.Keep(&h.Lease, keeper{h.item, nil, h.lost}, until, renewed)
		return h, until
	}
	t.Run("off", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *Renewer, s *store) {
			h, until := keep(r, true)
			r.Update(&h.Lease, until, false)
			sleep(time.Hour)
			h.wantLost(t, until, ErrExpired)
			if len(s.taken()) != 0 {
				t.Error("renewed")
			}
		})
	})
	t.Run("off during a backoff", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *Renewer, s *store) {
			s.answer = func(context.Context, request) ([]Verdict, error) { return nil, errors.New("cut") }
			h, until := keep(r, true)
			sleep(10 * time.Second)
			r.Update(&h.Lease, until, false)
			s.taken()
			sleep(time.Hour)
			h.wantLost(t, until, ErrExpired)
			if len(s.taken()) != 0 {
				t.Error("renewed")
			}
		})
	})
	t.Run("on", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *Renewer, s *store) {
			h, until := keep(r, false)
			sleep(20 * time.Second)
			r.Update(&h.Lease, until, true)
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
			r.Update(&h.Lease, until, true)
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
				r.Update(&h.Lease, time.Now().Add(watchdog), true)
			}
			if n := len(s.taken()); n != 0 {
				t.Errorf("%d renewals in between", n)
			}
			sleep(10 * time.Second)
			if n := len(s.taken()); n != 1 {
				t.Errorf("%d renewals after", n)
			}
			h.wantKept(t)
		})
	})
	t.Run("earlier", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *Renewer, s *store) {
			h, until := keep(r, false)
			r.Update(&h.Lease, until.Add(-time.Second), false)
			if got := r.Until(&h.Lease); !got.Equal(until) {
				t.Errorf("trusted until %v, want %v", got, until)
			}
			sleep(time.Hour)
			h.wantLost(t, until, ErrExpired)
		})
	})
	t.Run("after loss or stop", func(t *testing.T) {
		bubble(t, func(t *testing.T, r *Renewer, s *store) {
			h, until := keep(r, false)
			g, _ := keep(r, false)
			r.Stop(&g.Lease)
			sleep(watchdog)
			r.Update(&h.Lease, until.Add(time.Hour), true)
			r.Update(&g.Lease, until.Add(time.Hour), true)
			sleep(2 * time.Hour)
			h.wantLost(t, until, ErrExpired)
			g.wantKept(t)
			if len(s.taken()) != 0 || !r.Until(&h.Lease).Equal(until) || !r.Until(&g.Lease).Equal(until) {
				t.Error("came back")
			}
		})
	})
}

// Update while a call is in flight: what the end of the call makes of it.
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
			r.Keep(&h.Lease, keeper{h.item, nil, h.lost}, until, true)
			sleep(10 * time.Second)
			sent := s.taken()[0].at
			for _, on := range o.switches {
				r.Update(&h.Lease, until, on)
			}
			sleep(watchdog - 10*time.Second)
			n := len(s.taken())
			on := o.switches[len(o.switches)-1]
			switch {
			case o.verdict == Gone:
				h.wantLost(t, sent.Add(2*time.Second), ErrGone)
			case !on || o.verdict == Failed:
				h.wantLost(t, until, ErrExpired)
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
			r.Keep(&h.Lease, keeper{h.item, nil, h.lost}, time.Now().Add(watchdog), true)
			sleep(10 * time.Second)
			until := time.Now().Add(10 * time.Minute)
			r.Update(&h.Lease, until, true)
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

func TestStop(t *testing.T) {
	bubble(t, func(t *testing.T, r *Renewer, s *store) {
		var zero Lease
		if r.Stop(&zero) != nil || !r.Until(&zero).IsZero() {
			t.Error("a lease never kept")
		}
		until := time.Now().Add(watchdog)
		h, f := newHold(1), newHold(2)
		r.Keep(&h.Lease, keeper{h.item, nil, h.lost}, until, true)
		r.Keep(&f.Lease, keeper{f.item, nil, f.lost}, until, false)
		if r.Stop(&h.Lease) != nil || r.Stop(&f.Lease) != nil || r.Stop(&h.Lease) != nil {
			t.Error("nothing was in flight")
		}
		sleep(time.Hour)
		h.wantKept(t)
		f.wantKept(t)
		if len(s.taken()) != 0 {
			t.Error("renewed after Stop")
		}
		if got := r.Until(&h.Lease); !got.Equal(until) {
			t.Errorf("trusted until %v, want %v", got, until)
		}
	})
}

// G7: the channel closes when the call that may still renew the key has ended.
func TestStopWithCallInFlight(t *testing.T) {
	for _, when := range []string{"kept", "lost"} {
		for _, v := range []Verdict{Renewed, Gone, Failed} {
			bubble(t, func(t *testing.T, r *Renewer, s *store) {
				release := make(chan struct{})
				s.answer = func(_ context.Context, q request) ([]Verdict, error) {
					<-release
					return all(v, len(q.items)), nil
				}
				h, until := newHold(1), time.Now().Add(watchdog)
				r.Keep(&h.Lease, keeper{h.item, nil, h.lost}, until, true)
				sleep(10 * time.Second)
				if when == "lost" {
					sleep(watchdog)
				}
				done := r.Stop(&h.Lease)
				if done == nil || r.Stop(&h.Lease) != done {
					t.Fatal("no channel, or another")
				}
				s.forbid(h.item)
				sleep(time.Minute)
				select {
				case <-done:
					t.Error("closed while the call is in flight")
				default:
				}
				close(release)
				synctest.Wait()
				select {
				case <-done:
				default:
					t.Error("not closed when the call had ended")
				}
				if r.Stop(&h.Lease) != nil {
					t.Error("a channel after the call has ended")
				}
				sleep(time.Hour)
				if when == "lost" {
					h.wantLost(t, until, ErrExpired)
				} else {
					h.wantKept(t)
				}
			})
		}
	}
}

func TestCloseWithStuckCalls(t *testing.T) {
	bubble(t, func(t *testing.T, r *Renewer, s *store) {
		s.answer = stuck
		var hs []*hold
		for i := range 500 {
			h := newHold(i)
			r.Keep(&h.Lease, keeper{h.item, i % 20, h.lost}, time.Now().Add(watchdog), i%3 > 0)
			hs = append(hs, h)
		}
		sleep(10 * time.Second)
		done := r.Stop(&hs[1].Lease)
		before := time.Now()
		r.Close() // the bubble reports goroutines left behind
		r.Close()
		if d := time.Since(before); d != 0 {
			t.Errorf("Close took %v", d)
		}
		select {
		case <-done:
		default:
			t.Error("the call has ended, but its channel is open")
		}
		if len(s.taken()) == 0 {
			t.Error("no call was in flight")
		}
		late, until := newHold(-1), time.Now().Add(time.Second)
		r.Keep(&late.Lease, keeper{late.item, nil, late.lost}, until, true)
		if got := r.Until(&late.Lease); !got.Equal(until) {
			t.Errorf("Until of a lease kept after Close: %v", got)
		}
		r.Update(&hs[2].Lease, time.Now().Add(time.Hour), true)
		if r.Stop(&late.Lease) != nil || r.Stop(&hs[2].Lease) != nil {
			t.Error("Stop after Close")
		}
		sleep(time.Hour)
		for _, h := range append(hs, late) {
			h.wantKept(t)
		}
		if len(s.taken()) != 0 {
			t.Error("renewed after Close")
		}
	})
}

// Close while calls end on their own: what they report is dropped.
func TestCloseWhileCallsEnd(t *testing.T) {
	bubble(t, func(t *testing.T, r *Renewer, s *store) {
		s.answer = func(_ context.Context, q request) ([]Verdict, error) {
			time.Sleep(time.Second)
			return all(Gone, len(q.items)), nil
		}
		h := newHold(1)
		r.Keep(&h.Lease, keeper{h.item, nil, h.lost}, time.Now().Add(watchdog), true)
		sleep(10 * time.Second)
		before := time.Now()
		r.Close()
		if time.Since(before) == 0 {
			t.Error("Close did not wait for the call")
		}
		sleep(time.Hour)
		h.wantKept(t)
	})
}

func TestCallbackMayCallIn(t *testing.T) {
	bubble(t, func(t *testing.T, r *Renewer, s *store) {
		a, b, until := newHold(1), newHold(2), time.Now().Add(time.Second)
		r.Keep(&a.Lease, keeper{a.item, nil, func(err error) {
			a.lost(err)
			r.Stop(&a.Lease)
			r.Update(&a.Lease, until.Add(time.Hour), true)
			r.Keep(&b.Lease, keeper{b.item, nil, b.lost}, r.Until(&a.Lease).Add(time.Second), false)
		}}, until, false)
		sleep(time.Hour)
		a.wantLost(t, until, ErrExpired)
		b.wantLost(t, until.Add(time.Second), ErrExpired)
	})
}

func TestPanics(t *testing.T) {
	wantPanic := func(name string, fn func()) {
		t.Helper()
		defer func() {
			if recover() == nil {
				t.Errorf("%s: no panic", name)
			}
		}()
		fn()
	}
	s := newStore(t)
	wantPanic("no renew function", func() { NewRenewer(nil, Options{Watchdog: 1}) })
	wantPanic("no watchdog time", func() { NewRenewer(s.renew, Options{}) })
	wantPanic("negative batch", func() { NewRenewer(s.renew, Options{Watchdog: 1, Batch: -1}) })
	r := NewRenewer(s.renew, Options{Watchdog: watchdog})
	defer r.Close()
	var l Lease
	r.Keep(&l, keeper{Item{}, nil, nil}, time.Now().Add(time.Hour), false)
	wantPanic("kept twice", func() { r.Keep(&l, keeper{Item{}, nil, nil}, time.Now(), false) })
	if r.Stop(&l) != nil { // the mutex is free
		t.Error("channel")
	}
}
