package lease

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// A call times out after Options.Timeout or a sixth of the watchdog time, whichever is shorter.
func TestTimeout(t *testing.T) {
	for given, want := range map[time.Duration]time.Duration{
		0: watchdog / 6, time.Second: time.Second, 3 * time.Second: 3 * time.Second, time.Minute: watchdog / 6,
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newStore(t)
			var took time.Duration
			s.answer = func(ctx context.Context, q request) ([]Verdict, error) {
				vs, err := stuck(ctx, q)
				if took == 0 { // the first
					took = time.Since(q.at)
				}
				return vs, err
			}
			r := NewRenewer(s.renew, Options{Watchdog: watchdog, Timeout: given})
			keep(r, 1, nil, time.Now().Add(watchdog), watchdog)
			sleep(due + want)
			r.Close()
			if took != want {
				t.Errorf("%v: a call took %v, want %v", given, took, want)
			}
		})
	}
}

// Close waits that long, and no longer, for calls that ignore their ctx.
func TestCloseLeavesCallsThatHeedNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		release := make(chan struct{})
		s.answer = func(_ context.Context, q request) ([]Verdict, error) {
			<-release
			return all(Gone, len(q.items)), nil
		}
		r := NewRenewer(s.renew, Options{Watchdog: watchdog, Timeout: 2 * time.Second})
		var hs []*hold
		for i := range 10 {
			h := keep(r, i, i, time.Now().Add(watchdog), watchdog)
			hs = append(hs, h)
		}
		sleep(due)
		for range 2 {
			before := time.Now()
			r.Close()
			if d := time.Since(before); d != 2*time.Second {
				t.Errorf("Close took %v", d)
			}
		}
		close(release)
		sleep(time.Hour)
		wantKept(t, hs...)
	})
}
