package lease

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"
)

func TestFailuresAreRetriedUntilTheEnd(t *testing.T) {
	failures := map[string]func(q request) ([]Verdict, error){
		"error":   func(request) ([]Verdict, error) { return nil, errors.New("cut") },
		"both":    func(q request) ([]Verdict, error) { return all(Renewed, len(q.items)), errors.New("cut") },
		"verdict": func(q request) ([]Verdict, error) { return all(Failed, len(q.items)), nil },
		"few":     func(request) ([]Verdict, error) { return nil, nil },
		"many":    func(q request) ([]Verdict, error) { return all(Renewed, len(q.items)+1), nil },
	}
	for name, fail := range failures {
		run(t, name, func(t *testing.T, r *Renewer, s *store) {
			s.answer = func(_ context.Context, q request) ([]Verdict, error) { return fail(q) }
			h, until := keepOne(r, true)
			sleep(watchdog)
			h.wantLost(t, until, expired)
			qs := s.taken()
			backoff := 300 * time.Millisecond
			for i := range len(qs) - 1 {
				want := min(backoff, max(until.Sub(qs[i].at)/2, 300*time.Millisecond))
				if gap := qs[i+1].at.Sub(qs[i].at); gap < want*9/10 || gap > want {
					t.Errorf("try %d after %v, want %v less a tenth", i+2, gap, want)
				}
				backoff = min(2*backoff, time.Second)
			}
			if left := until.Sub(qs[len(qs)-1].at); left > 300*time.Millisecond {
				t.Errorf("gave up %v before the end", left)
			}
			if len(qs) < 22 || len(qs) > 28 {
				t.Errorf("%d tries", len(qs))
			}
		})
	}
}

// A lease keeps its retry backoff when other leases come due.
func TestBackoffIsNotCutShortByOthers(t *testing.T) {
	inBubble(t, func(t *testing.T, r *Renewer, s *store) {
		s.answer = func(_ context.Context, q request) ([]Verdict, error) {
			if q.group == "bad" {
				return nil, errors.New("cut")
			}
			return all(Renewed, len(q.items)), nil
		}
		keep(r, 0, "bad", time.Now().Add(watchdog), watchdog)
		for i := range 300 {
			keep(r, i+1, i, time.Now().Add(watchdog), watchdog)
			time.Sleep(100 * time.Millisecond)
		}
		n := 0
		for _, q := range s.taken() {
			if q.group == "bad" {
				n++
			}
		}
		if n < 22 || n > 28 {
			t.Errorf("%d tries", n)
		}
	})
}

// After an outage every lease is saved in its remaining time, although only a part is sent at a time.
func TestRecoveryAfterOutage(t *testing.T) {
	for _, outage := range []string{"errors", "silence"} {
		t.Run(outage, func(t *testing.T) {
			inBubbleWith(t, Options{Batch: 10}, func(t *testing.T, r *Renewer, s *store) {
				heal := time.Now().Add(20 * time.Second)
				s.answer = func(ctx context.Context, q request) ([]Verdict, error) {
					if time.Now().Before(heal) {
						if outage == "silence" {
							return stuck(ctx, q)
						}
						time.Sleep(time.Millisecond)
						return nil, errors.New("connection refused")
					}
					time.Sleep(50 * time.Millisecond)
					return all(Renewed, len(q.items)), nil
				}
				hs, _ := keepAll(r, 500, "g")
				sleep(time.Minute)
				wantKept(t, hs...)
			})
		})
	}
}

// The backoff stays short enough for a brief recovery to save the lease, at any time and after any mix of failures.
func TestShortRecoveryIsUsed(t *testing.T) {
	const recovery = watchdog/30 + 100*time.Millisecond
	fail := func(err error) func(context.Context, time.Duration) error {
		return func(context.Context, time.Duration) error { return err }
	}
	paused := func(ctx context.Context, d time.Duration) error { // calls in progress at its end are answered
		if d <= 0 {
			d = time.Hour
		}
		select {
		case <-time.After(d):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for name, c := range map[string]struct {
		fail   func(ctx context.Context, d time.Duration) error // with d to go until the recovery
		others int                                              // in the same group, renewed all the time
	}{
		"unanswered":             {fail(errors.New("connection refused")), 0},
		"paused":                 {paused, 0},
		"refused":                {fail(ErrRefused), 0},
		"refused, unlike others": {fail(ErrRefused), 150},
	} {
		t.Run(name, func(t *testing.T) {
			for after := 10 * time.Second; after < watchdog-recovery; after += 700 * time.Millisecond {
				inBubble(t, func(t *testing.T, r *Renewer, s *store) {
					h, from := newHold(0), time.Now().Add(after)
					s.answer = func(ctx context.Context, q request) ([]Verdict, error) {
						d := time.Until(from)
						if slices.Contains(q.items, h.item) && (d > 0 || d <= -recovery) {
							if err := c.fail(ctx, d); err != nil {
								return nil, err
							}
						}
						return all(Renewed, len(q.items)), nil
					}
					r.Keep(&h.Lease, keeper{h.item, nil, h.lost}, time.Now().Add(watchdog), watchdog)
					for i := range c.others {
						keep(r, i+1, nil, time.Now().Add(watchdog), watchdog)
					}
					sleep(watchdog)
					h.wantKept(t)
				})
			}
		})
	}
}

// If a store refuses many leases, the number of requests per lease drops.
func TestStoreThatRefusesAllIsSpared(t *testing.T) {
	inBubble(t, func(t *testing.T, r *Renewer, s *store) {
		s.answer = failing(ErrRefused)
		const n = 1000
		until := time.Now().Add(watchdog)
		for i := range n {
			keep(r, i, nil, until, watchdog)
		}
		sleep(watchdog)
		if calls := len(s.taken()); calls > 15*n {
			t.Errorf("%d calls for %d leases", calls, n)
		}
	})
}

// A lease with a failed renewal has less time left than newly due leases, so it is sent first.
func TestRetryGoesFirst(t *testing.T) {
	inBubbleWith(t, Options{Batch: 1}, func(t *testing.T, r *Renewer, s *store) {
		old, heal := newHold(0), time.Now().Add(21*time.Second)
		s.answer = func(_ context.Context, q request) ([]Verdict, error) {
			if q.items[0] == old.item && time.Now().Before(heal) {
				return nil, errors.New("cut")
			}
			time.Sleep(2 * time.Second)
			return all(Renewed, len(q.items)), nil
		}
		r.Keep(&old.Lease, keeper{old.item, nil, old.lost}, time.Now().Add(watchdog), watchdog)
		sleep(due)
		for i := range 10 * parallel { // due while old still fails, with calls that take 20 s
			keep(r, i+1, nil, time.Now().Add(watchdog), watchdog)
		}
		sleep(watchdog - due)
		old.wantKept(t)
	})
}
