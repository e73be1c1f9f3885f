package lease

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/testing/bubble"
)

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
			flies := h.place == inCall // its call may still be on the way to the store
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
