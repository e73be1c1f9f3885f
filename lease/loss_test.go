package lease

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-rlock/rlock/internal/testing/bubble"
)

// G2: the loss is on time, even if the renew function ignores its ctx.
func TestLossIsOnTimeWhileCallsAreStuck(t *testing.T) {
	for _, kind := range []string{"until their ctx ends", "for ever"} {
		run(t, kind, func(t *testing.T, r *Renewer, s *store) {
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
			for i := range 400 {
				until := time.Now().Add(watchdog)
				h := keep(r, i, i%7, until, watchdog)
				hs, untils = append(hs, h), append(untils, until)
				time.Sleep(35 * time.Millisecond)
			}
			sleep(2 * watchdog)
			for i, h := range hs {
				h.wantLost(t, untils[i], expired)
			}
			if len(s.taken()) == 0 {
				t.Error("no call was made")
			}
		})
	}
}

// After the store's verdict and before the callback, a lease can be stopped but not revived.
func TestGoneIsFinalBeforeItIsReported(t *testing.T) {
	inBubble(t, func(t *testing.T, r *Renewer, s *store) {
		s.answer = after(time.Second, Gone)
		a, b, c, until := newHold(1), newHold(2), newHold(3), time.Now().Add(watchdog)
		r.Keep(&a.Lease, keeper{a.item, nil, a.lost}, until, watchdog)
		r.Keep(&b.Lease, keeper{b.item, nil, b.lost}, until, watchdog)
		// The callback of c occupies the loop past the verdict.
		sleep(9 * time.Second)
		for len(s.taken()) == 0 {
			sleep(time.Millisecond)
		}
		sent := time.Now()
		r.Keep(&c.Lease, keeper{c.item, nil, func(Loss) {
			time.Sleep(time.Second)
			r.Update(&a.Lease, until.Add(time.Hour), watchdog)
			r.Stop(&b.Lease)
		}}, sent.Add(999*time.Millisecond), 0)
		sleep(time.Hour)
		a.mu.Lock()
		if len(a.loss) != 1 || !a.loss[0].Gone || a.at.After(sent.Add(2*time.Second)) {
			t.Errorf("lost %v at %v", a.loss, a.at)
		}
		a.mu.Unlock()
		b.wantKept(t)
	})
}

// A store that no longer has a lease after its end says nothing new: it has expired.
func TestGoneAfterItsEnd(t *testing.T) {
	inBubble(t, func(t *testing.T, r *Renewer, s *store) {
		until := time.Now().Add(watchdog)
		s.answer = func(_ context.Context, q request) ([]Verdict, error) {
			time.Sleep(time.Until(until.Add(time.Second)))
			return all(Gone, len(q.items)), nil
		}
		a, b := newHold(1), newHold(2)
		r.Keep(&a.Lease, keeper{a.item, nil, a.lost}, until, watchdog)
		r.Keep(&b.Lease, keeper{b.item, nil, func(Loss) { time.Sleep(2 * time.Second) }}, until.Add(-time.Millisecond), 0) // the loop is late
		sleep(time.Hour)
		a.mu.Lock()
		defer a.mu.Unlock()
		if len(a.loss) != 1 || a.loss[0].Gone || !a.loss[0].Until.Equal(until) || !a.at.After(until.Add(time.Second)) {
			t.Errorf("lost %v at %v", a.loss, a.at)
		}
	})
}

// The next holder of a name in this process enters only after the previous holder was notified, even before the loop runs.
func TestCatchUp(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRenewer(renewAll, Options{Watchdog: watchdog}) // without its loop
		var ended []*hold
		for i := range 3 {
			ended = append(ended, keep(r, i, nil, time.Now().Add(time.Second), renewedIf(i%2 == 0)))
		}
		next := keep(r, 3, nil, time.Now().Add(time.Second+1), 0)
		time.Sleep(time.Second)
		r.CatchUp()
		for _, h := range ended {
			h.wantLost(t, time.Now(), expired)
		}
		next.wantKept(t)
	})
}

// CatchUp waits for a Lost in progress.
func TestCatchUpWaitsForALossUnderWay(t *testing.T) {
	inBubble(t, func(t *testing.T, r *Renewer, _ *store) {
		h := newHold(1)
		release := make(chan struct{})
		told := false
		r.Keep(&h.Lease, keeper{h.item, nil, func(Loss) { <-release; told = true }}, time.Now().Add(time.Second), 0)
		sleep(time.Second)
		caught := make(chan bool)
		go func() { // ends below
			r.CatchUp()
			caught <- told
		}()
		synctest.Wait()
		close(release)
		if !<-caught {
			t.Error("the previous holder was not notified")
		}
	})
}

// G9: Close returns only after every keeper was notified, even if Lost runs on a goroutine other than the renewer's.
func TestCloseWaitsForALossThatCatchUpPassesOn(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRenewer(renewAll, Options{Watchdog: watchdog}) // without its loop
		h := newHold(1)
		release := make(chan struct{})
		var told atomic.Bool
		r.Keep(&h.Lease, keeper{h.item, nil, func(Loss) { <-release; told.Store(true) }}, time.Now(), 0)
		go r.CatchUp() // returns with the loss
		synctest.Wait()
		closed := make(chan bool, 1)
		go func() { // ends below
			r.Close()
			closed <- told.Load()
		}()
		synctest.Wait()
		close(release)
		if !<-closed {
			t.Error("Close returned too early")
		}
	})
}

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
