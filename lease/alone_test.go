package lease

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"
)

// A key that fails every call ends up in calls of its own.
func TestPoisonedItemFailsAlone(t *testing.T) {
	inBubble(t, func(t *testing.T, r *Renewer, s *store) {
		bad := newHold(50)
		s.answer = func(_ context.Context, q request) ([]Verdict, error) {
			if slices.Contains(q.items, bad.item) {
				return nil, fmt.Errorf("NOPERM: %w", ErrRefused)
			}
			return all(Renewed, len(q.items)), nil
		}
		var good []*hold
		until := time.Now().Add(watchdog)
		for i := range 100 {
			h := newHold(i)
			if i == 50 {
				h = bad
			} else {
				good = append(good, h)
			}
			r.Keep(&h.Lease, keeper{h.item, nil, h.lost}, until, watchdog)
		}
		sleep(watchdog)
		bad.wantLost(t, until, expired)
		qs := s.taken()
		if len(qs[0].items) != 100 {
			t.Fatalf("first call of %d", len(qs[0].items))
		}
		for i, q := range qs[1:] {
			if i < 100 && len(q.items) != 1 {
				t.Errorf("retry %d is a call of %d", i, len(q.items))
			}
			if i >= 100 && len(q.items) > 1 && slices.Contains(q.items, bad.item) {
				t.Error("the failing lease was batched again")
			}
		}
		sleep(time.Minute)
		s.taken()
		sleep(10 * time.Minute)
		calls, items := 0, 0
		for _, q := range s.taken() {
			calls, items = calls+1, items+len(q.items)
		}
		if items < 99*58 || calls > items/50 {
			t.Errorf("%d calls for %d items: not batched again", calls, items)
		}
		wantKept(t, good...)
	})
}

// An error for a single item is still an answer: the batch stays together.
func TestFailedVerdictDoesNotSplit(t *testing.T) {
	inBubble(t, func(t *testing.T, r *Renewer, s *store) {
		first := true
		s.answer = func(_ context.Context, q request) ([]Verdict, error) {
			v := Renewed
			if first {
				v, first = Failed, false
			}
			return all(v, len(q.items)), nil
		}
		keepAll(r, 100, nil)
		sleep(11 * time.Second)
		if qs := s.taken(); len(qs) != 2 || len(qs[1].items) != 100 {
			t.Errorf("%d calls", len(qs))
		}
	})
}

// Leases queued to be sent alone can leave the queue too.
func TestQueuedAlone(t *testing.T) {
	inBubble(t, func(t *testing.T, r *Renewer, s *store) {
		s.answer = func(ctx context.Context, q request) ([]Verdict, error) {
			if len(q.items) > 1 {
				return nil, ErrRefused
			}
			return stuck(ctx, q)
		}
		hs, _ := keepAll(r, parallel*100+98, "g")
		sleep(13 * time.Second) // the batches were refused, so the maximum number of single-lease calls is in flight
		waiting := 0
		for _, h := range hs {
			r.mu.Lock()
			waits := h.place == queued && h.alone()
			r.mu.Unlock()
			if waits {
				waiting++
				r.Stop(&h.Lease)
				s.forbid(h.item)
			}
		}
		if waiting != 98 {
			t.Errorf("%d wait", waiting)
		}
		sleep(time.Hour)
	})
}

// An external extension ends a backoff. A lease that failed on its own is batched again only after it has succeeded on its own.
func TestUpdateAfterFailure(t *testing.T) {
	inBubble(t, func(t *testing.T, r *Renewer, s *store) {
		bad, good := newHold(1), newHold(2)
		s.answer = func(_ context.Context, q request) ([]Verdict, error) {
			if slices.Contains(q.items, bad.item) {
				return nil, ErrRefused
			}
			return all(Renewed, len(q.items)), nil
		}
		r.Keep(&bad.Lease, keeper{bad.item, "g", bad.lost}, time.Now().Add(watchdog), watchdog)
		sleep(15 * time.Second) // several attempts
		again := time.Now()
		r.Update(&bad.Lease, again.Add(watchdog), watchdog)
		s.taken()
		r.Keep(&good.Lease, keeper{good.item, "g", good.lost}, again.Add(watchdog-due), watchdog) // due now
		r.mu.Lock()
		r.groups[groupKey{"g", watchdog}].failure = nil
		r.mu.Unlock()
		sleep(11 * time.Second)
		var tries []time.Time
		for _, q := range s.taken() {
			if len(q.items) != 1 {
				t.Errorf("%v together", q.items)
			}
			if q.items[0] == bad.item {
				tries = append(tries, q.at)
			}
		}
		if len(tries) < 2 || tries[0].Sub(again) < 9*time.Second || tries[1].Sub(tries[0]) > 300*time.Millisecond {
			t.Errorf("tries %v after %v", tries, again)
		}
	})
}
