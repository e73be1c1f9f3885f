package lease

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"
)

// theLoss requires exactly one loss of the hold, and returns it.
func (h *hold) theLoss(t testing.TB) Loss {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.loss) != 1 {
		t.Fatalf("%s: lost %d times", h.item.Name, len(h.loss))
	}
	return h.loss[0]
}

// A loss carries the last renewal error, exactly as the renew function returned it.
func TestLossSaysWhy(t *testing.T) {
	cut, refused := errors.New("cut"), fmt.Errorf("NOPERM: %w", ErrRefused)
	fail := func(err error) func(int, request) ([]Verdict, error) {
		return func(int, request) ([]Verdict, error) { return nil, err }
	}
	answer := func(v Verdict) func(int, request) ([]Verdict, error) {
		return func(_ int, q request) ([]Verdict, error) { return all(v, len(q.items)), nil }
	}
	for name, c := range map[string]struct {
		answer func(call int, q request) ([]Verdict, error)
		gone   bool
		want   error
	}{
		"unanswered": {fail(cut), expired, cut},
		"refused":    {fail(refused), expired, refused},
		"failed":     {answer(Failed), expired, ErrFailed},
		"gone":       {answer(Gone), foundGone, nil},
		"the last": {func(call int, q request) ([]Verdict, error) {
			if call < 5 {
				return nil, cut
			}
			return nil, refused
		}, expired, refused},
		"gone after a failure": {func(call int, q request) ([]Verdict, error) {
			if call == 0 {
				return nil, cut
			}
			return answer(Gone)(call, q)
		}, foundGone, cut},
		"a success between": {func(call int, q request) ([]Verdict, error) {
			switch call {
			case 0:
				return nil, cut
			case 1:
				return answer(Renewed)(call, q)
			}
			return answer(Gone)(call, q)
		}, foundGone, nil},
	} {
		run(t, name, func(t *testing.T, r *Renewer, s *store) {
			call := 0
			s.answer = func(_ context.Context, q request) ([]Verdict, error) {
				call++
				return c.answer(call-1, q)
			}
			h, _ := keepOne(r, true)
			sleep(time.Hour)
			if l := h.theLoss(t); l.Gone != c.gone || l.Err != c.want || !l.Renewed {
				t.Errorf("%+v, want gone %t, error %v", l, c.gone, c.want)
			}
		})
	}
	run(t, "wrong number of verdicts", func(t *testing.T, r *Renewer, s *store) {
		s.answer = func(context.Context, request) ([]Verdict, error) { return all(Renewed, 2), nil }
		h, _ := keepOne(r, true)
		sleep(watchdog)
		if l := h.theLoss(t); !errors.Is(l.Err, ErrRefused) {
			t.Errorf("%+v", l)
		}
	})
}

// Items of one group that are refused individually keep their own errors, whatever the other answers are.
func TestEachRefusedLeaseHasItsError(t *testing.T) {
	inBubble(t, func(t *testing.T, r *Renewer, s *store) {
		bad, hs := map[Item]error{}, make([]*hold, 100)
		s.answer = func(_ context.Context, q request) ([]Verdict, error) {
			for _, it := range q.items {
				if err := bad[it]; err != nil && len(q.items) == 1 {
					return nil, err
				} else if err != nil {
					return nil, ErrRefused
				}
			}
			return all(Renewed, len(q.items)), nil
		}
		for i := range hs {
			hs[i] = newHold(i)
			if i%10 == 0 {
				bad[hs[i].item] = fmt.Errorf("%w: %d", ErrRefused, i)
			}
		}
		for _, h := range hs {
			r.Keep(&h.Lease, keeper{h.item, nil, h.lost}, time.Now().Add(watchdog), watchdog)
		}
		sleep(watchdog)
		for _, h := range hs {
			if err := bad[h.item]; err == nil {
				h.wantKept(t)
			} else if l := h.theLoss(t); l.Err != err {
				t.Errorf("%s: %v, want %v", h.item.Name, l.Err, err)
			}
		}
	})
}

// In a silent group some leases end before they are sent. Those behind the probes report the group's error.
func TestLeaseThatWasNeverSentHasItsGroupsError(t *testing.T) {
	inBubbleWith(t, Options{Batch: 1}, func(t *testing.T, r *Renewer, s *store) {
		s.answer = stuck
		var hs []*hold
		for i := range 2 * parallel {
			hs = append(hs, keep(r, i, nil, time.Now().Add(watchdog), watchdog))
		}
		sleep(watchdog)
		sent := map[Item]bool{}
		for _, q := range s.taken() {
			sent[q.items[0]] = true
		}
		if len(sent) == len(hs) {
			t.Error("all were sent: the test covers too little")
		}
		for _, h := range hs {
			if l := h.theLoss(t); !errors.Is(l.Err, context.DeadlineExceeded) {
				t.Errorf("%s: %v", h.item.Name, l.Err)
			}
		}
	})
}

// A loss reports whether renewal was on. An external extension counts as a renewal.
func TestLossSaysWhetherToBeRenewed(t *testing.T) {
	inBubble(t, func(t *testing.T, r *Renewer, s *store) {
		cut := errors.New("cut")
		s.answer = failing(cut)
		keep := func(i int, renewed bool) *hold {
			h := keep(r, i, i, time.Now().Add(watchdog), renewedIf(renewed))
			return h
		}
		renewed, fixed, released, off, again := keep(1, true), keep(2, false), keep(3, true), keep(4, true), keep(5, true)
		fixedReleased := keep(6, false)
		sleep(20 * time.Second)
		r.Releasing(&released.Lease)
		r.Releasing(&fixedReleased.Lease)
		r.Update(&off.Lease, time.Time{}, 0)
		r.Update(&again.Lease, time.Now().Add(watchdog), 0)
		sleep(time.Hour)
		for name, c := range map[string]struct {
			h       *hold
			renewed bool
			err     error
		}{
			"renewed": {renewed, true, cut}, "fixed": {fixed, false, nil}, "released": {released, true, cut},
			"switched off": {off, false, nil}, "extended": {again, false, nil}, "fixed, released": {fixedReleased, false, nil},
		} {
			if l := c.h.theLoss(t); l.Gone || l.Renewed != c.renewed || l.Err != c.err {
				t.Errorf("%s: %+v", name, l)
			}
		}
	})
}
