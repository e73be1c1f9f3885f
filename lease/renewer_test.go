package lease

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-rlock/rlock/internal/testing/bubble"
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

func TestHeap(t *testing.T) {
	h := heap{pos: 1}
	model := map[*Lease]time.Duration{}
	check := func() {
		first := never
		for _, at := range model {
			first = min(first, at)
		}
		if h.first() != first || len(h.entries) != len(model) {
			t.Fatalf("first %d of %d, want %d of %d", h.first(), len(h.entries), first, len(model))
		}
		for i, e := range h.entries {
			if int(e.l.pos[1]) != i+1 || e.l.pos[0] != 0 || model[e.l] != e.at {
				t.Fatalf("entry %d is %+v, noted as %v", i, e, e.l.pos)
			}
		}
	}
	anyOf := func() *Lease {
		return h.entries[rand.IntN(len(h.entries))].l
	}
	for range 20_000 {
		at := time.Duration(rand.IntN(100))
		switch n := rand.IntN(10); {
		case n < 4 || len(model) == 0:
			l := new(Lease)
			h.push(l, at)
			model[l] = at
		case n < 6:
			l := anyOf()
			h.move(l, at)
			model[l] = at
		case n < 8:
			l := anyOf()
			h.remove(l)
			delete(model, l)
		default:
			at := h.first()
			l := h.pop()
			if model[l] != at || l.pos[1] != 0 {
				t.Fatal("pop")
			}
			delete(model, l)
		}
		check()
	}
}

// Callers wake the loop only for a time before its next wake-up.
func TestLoopIsNotWokenForNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, r *Renewer, s *store) {
		synctest.Wait() // the loop's first turn, after it started
		turns := 0
		clock := r.clock
		r.mu.Lock()
		r.clock = func() time.Duration { turns++; return clock() }
		r.mu.Unlock()

		keep(r, 0, nil, time.Now().Add(watchdog), watchdog)
		synctest.Wait()
		if turns != 1 {
			t.Errorf("%d turns for the first lease", turns)
		}
		sleep(2 * time.Second) // more than the jitter
		for i := range 1000 {
			h := keep(r, i+1, nil, time.Now().Add(watchdog), watchdog)
			r.Update(&h.Lease, time.Now().Add(watchdog+1), watchdog)
			r.Stop(&h.Lease)
			synctest.Wait()
		}
		if turns != 1 {
			t.Errorf("%d turns for later leases", turns)
		}
		keep(r, -1, nil, time.Now().Add(time.Second), 0)
		synctest.Wait()
		if turns != 2 {
			t.Errorf("%d turns after an earlier one", turns)
		}
	})
}

// If a process holds one lock at a time, briefly, the loop wakes only after the hold is gone.
func TestLoopIsNotWokenByEachHold(t *testing.T) {
	inBubble(t, func(t *testing.T, r *Renewer, s *store) {
		synctest.Wait()
		turns := 0
		clock := r.clock
		r.mu.Lock()
		r.clock = func() time.Duration { turns++; return clock() }
		r.mu.Unlock()
		// With jitter, a period takes 5.1 turns on average. Over 20 periods the deviation is 5.9, so one run in 600 exceeds 120. Over 80
		// periods the bound is six deviations away.
		const periods = 80
		for i := range 200 * periods {
			h := keep(r, i, nil, time.Now().Add(watchdog), watchdog)
			r.Stop(&h.Lease)
			synctest.Wait()
			sleep(watchdog / 3 / 200)
		}
		if turns > 6*periods {
			t.Errorf("%d turns in %d periods", turns, periods)
		}
		s.wantCalls(0, "calls for holds that had gone")
	})
}

// Random calls from many goroutines: each lease gets at most one Lost, never early and never after Stop.
func TestRandomLoad(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const wd = 60 * time.Millisecond
		s := newStore(t)
		s.answer = func(ctx context.Context, q request) ([]Verdict, error) {
			switch rand.IntN(8) {
			case 0:
				return nil, errors.New("cut")
			case 1:
				<-ctx.Done()
				return nil, ctx.Err()
			}
			vs := all(Renewed, len(q.items))
			for i := range vs {
				if rand.IntN(20) == 0 {
					vs[i] = Verdict(rand.IntN(3))
				}
			}
			return vs, nil
		}
		r := NewRenewer(s.renew, Options{Watchdog: wd})

		var serial, lostN, stoppedN atomic.Int64
		one := func() {
			h := newHold(int(serial.Add(1)))
			h.item.Owner = strconv.Itoa(int(serial.Load()))
			began := make(chan Loss, 2)
			sent := time.Now()
			lost := func(l Loss) {
				if left := time.Until(r.Until(&h.Lease)); !l.Gone && left > 0 {
					t.Errorf("lost %v early", left)
				}
				began <- l
			}
			r.Keep(&h.Lease, keeper{h.item, rand.IntN(5), lost}, sent.Add(wd), wd*time.Duration(min(1, rand.IntN(4))))
			timer := time.NewTimer(rand.N(3 * wd))
			defer timer.Stop()
			for range rand.IntN(3) {
				r.Update(&h.Lease, time.Now().Add(wd/2), wd*time.Duration(rand.IntN(2)))
			}
			select {
			case <-timer.C:
			case <-began:
				lostN.Add(1)
				r.Stop(&h.Lease)
				if len(began) != 0 {
					t.Error("lost twice")
				}
				return
			}
			r.Stop(&h.Lease)
			r.mu.Lock()
			flies := h.place == inCall || h.place == inCallSoon // its call may still be on the way to the store
			r.mu.Unlock()
			if !flies {
				s.forbid(h.item)
			}
			stoppedN.Add(1)
		}
		var wg sync.WaitGroup
		end := time.Now().Add(time.Second)
		for range 50 {
			wg.Go(func() {
				for time.Now().Before(end) {
					one()
				}
			})
		}
		wg.Wait()
		if lostN.Load() == 0 || stoppedN.Load() == 0 || len(s.taken()) == 0 {
			t.Errorf("lost %d, stopped %d: the test covers too little", lostN.Load(), stoppedN.Load())
		}
		r.mu.Lock()
		if len(r.ends.entries)+len(r.dues.entries) != 0 {
			t.Error("leases are left over")
		}
		for _, g := range r.groups {
			if g.members != 0 || g.calls == 0 { // a call that outlives its leases keeps the group until it ends
				t.Errorf("a group of %d is left over, with %d calls", g.members, g.calls)
			}
		}
		r.mu.Unlock()
		r.Close()
	})
}

// Close races with every other call.
func TestCloseRaces(t *testing.T) {
	const wd = 30 * time.Millisecond
	for range 20 {
		s := newStore(t)
		s.answer = stuck
		r := NewRenewer(s.renew, Options{Watchdog: wd})
		var closed atomic.Bool
		var wg sync.WaitGroup
		for g := range 8 {
			wg.Go(func() {
				for i := range 200 {
					h := newHold(1000*g + i)
					r.Keep(&h.Lease, keeper{h.item, i % 3, func(Loss) {
						if closed.Load() {
							t.Error("lost after Close")
						}
					}}, time.Now().Add(rand.N(15*time.Millisecond)), wd*time.Duration(i%2))
					r.Update(&h.Lease, time.Now().Add(time.Millisecond), wd)
					if i%3 == 0 {
						r.Stop(&h.Lease)
					}
				}
			})
		}
		for range 2 {
			wg.Go(func() {
				<-time.After(rand.N(5 * time.Millisecond))
				r.Close()
				closed.Store(true)
			})
		}
		wg.Wait()
	}
}
