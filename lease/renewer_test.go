package lease

import (
	"testing"
	"time"
)

func TestRenewsEveryThird(t *testing.T) {
	inBubble(t, func(t *testing.T, r *Renewer, s *store) {
		h, last := newHold(1), time.Now()
		r.Keep(&h.Lease, keeper{h.item, "g", h.lost}, last.Add(watchdog), watchdog)
		distinct, began := map[time.Duration]bool{}, last
		for range 100 {
			sleep(due)
			for _, q := range s.taken() {
				gap := q.at.Sub(last)
				if gap < 9500*time.Millisecond || gap > due {
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
		if mean := last.Sub(began) / time.Duration(len(distinct)); mean < 9850*time.Millisecond || mean > 10200*time.Millisecond {
			t.Errorf("renewed every %v", mean)
		}
		if len(distinct) < 50 {
			t.Errorf("%d different periods in about 100: no jitter", len(distinct))
		}
		h.wantKept(t)
	})
}

func TestFixedEndsAtItsTime(t *testing.T) {
	inBubble(t, func(t *testing.T, r *Renewer, s *store) {
		var hs []*hold
		var untils []time.Time
		for i := range 100 {
			until := time.Now().Add(time.Duration(i*37%100) * time.Second)
			h := keep(r, i, nil, until, 0)
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
			h.wantLost(t, untils[i], expired)
			if got := r.Until(&h.Lease); !got.Equal(untils[i]) {
				t.Errorf("until %v, want %v", got, untils[i])
			}
		}
		s.wantCalls(0, "calls for fixed leases")
	})
}

func TestSlowReplyDoesNotStretch(t *testing.T) {
	inBubble(t, func(t *testing.T, r *Renewer, s *store) {
		s.answer = after(4*time.Second, Renewed)
		h, _ := keepOne(r, true)
		sleep(due + 4*time.Second) // one call, sent after 9.5 to 10.6 s
		qs := s.taken()
		if len(qs) != 1 {
			t.Fatalf("%d calls", len(qs))
		}
		h.wantUntil(t, r, qs[0].at.Add(watchdog))
		// The next period also counts from the time of sending.
		sleep(time.Until(qs[0].at.Add(due)))
		if qs := s.taken(); len(qs) != 1 {
			t.Errorf("%d calls in the second period", len(qs))
		}
	})
}

func TestCallbackMayCallIn(t *testing.T) {
	inBubble(t, func(t *testing.T, r *Renewer, s *store) {
		a, b, until := newHold(1), newHold(2), time.Now().Add(time.Second)
		r.Keep(&a.Lease, keeper{a.item, nil, func(l Loss) {
			a.lost(l)
			r.Stop(&a.Lease)
			r.Update(&a.Lease, until.Add(time.Hour), watchdog)
			r.Keep(&b.Lease, keeper{b.item, nil, b.lost}, r.Until(&a.Lease).Add(time.Second), 0)
		}}, until, 0)
		sleep(time.Hour)
		a.wantLost(t, until, expired)
		b.wantLost(t, until.Add(time.Second), expired)
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
	wantPanic("negative timeout", func() { NewRenewer(s.renew, Options{Watchdog: 1, Timeout: -1}) })
	r := NewRenewer(s.renew, Options{Watchdog: watchdog})
	defer r.Close()
	var l Lease
	r.Keep(&l, keeper{Item{}, nil, nil}, time.Now().Add(time.Hour), 0)
	wantPanic("kept twice", func() { r.Keep(&l, keeper{Item{}, nil, nil}, time.Now(), 0) })
	r.Stop(&l) // the mutex was released
}
