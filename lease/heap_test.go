package lease

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"
)

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
