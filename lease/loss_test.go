package lease

import (
	"context"
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

func TestReplyAfterLossIsIgnored(t *testing.T) {
	for _, v := range []Verdict{Renewed, Gone, Failed} {
		inBubble(t, func(t *testing.T, r *Renewer, s *store) {
			s.answer = after(time.Minute, v)
			h, until := keepOne(r, true)
			sleep(time.Hour)
			h.wantLost(t, until, expired)
			h.wantUntil(t, r, until)
			s.wantCalls(1, "calls")
		})
	}
}

func TestGone(t *testing.T) {
	inBubble(t, func(t *testing.T, r *Renewer, s *store) {
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
		r.Keep(&bad.Lease, keeper{bad.item, nil, bad.lost}, until, watchdog)
		for i := range 10 {
			h := newHold(i + 1)
			good = append(good, h)
			r.Keep(&h.Lease, keeper{h.item, nil, h.lost}, until, watchdog)
		}
		sleep(time.Hour)
		bad.wantLost(t, s.taken()[0].at.Add(time.Second), foundGone)
		bad.wantUntil(t, r, until)
		wantKept(t, good...)
	})
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
