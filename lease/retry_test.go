package lease

import (
	"context"
	"errors"
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
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *Renewer, s *store) {
				s.answer = func(_ context.Context, q request) ([]Verdict, error) { return fail(q) }
				h, until := newHold(1), time.Now().Add(watchdog)
				r.Keep(&h.Lease, h.item, nil, until, true, h.lost)
				sleep(watchdog)
				h.wantLost(t, until, ErrExpired)
				qs := s.taken()
				backoff := 300 * time.Millisecond
				for i := range len(qs) - 1 {
					want := min(backoff, max(until.Sub(qs[i].at)/2, 300*time.Millisecond))
					if gap := qs[i+1].at.Sub(qs[i].at); gap < want*9/10 || gap > want {
						t.Errorf("try %d after %v, want %v less a tenth", i+2, gap, want)
					}
					backoff = min(2*backoff, 5*time.Second)
				}
				if left := until.Sub(qs[len(qs)-1].at); left > 300*time.Millisecond {
					t.Errorf("gave up %v before the end", left)
				}
				if len(qs) < 8 || len(qs) > 15 {
					t.Errorf("%d tries", len(qs))
				}
			})
		})
	}
}

func TestLateSuccessSavesTheLease(t *testing.T) {
	bubble(t, func(t *testing.T, r *Renewer, s *store) {
		heal := time.Now().Add(watchdog - time.Second)
		s.answer = func(ctx context.Context, q request) ([]Verdict, error) {
			if time.Now().Before(heal) {
				return nil, errors.New("LOADING")
			}
			return all(Renewed, len(q.items)), nil
		}
		h := newHold(1)
		r.Keep(&h.Lease, h.item, nil, time.Now().Add(watchdog), true, h.lost)
		sleep(watchdog)
		qs := s.taken()
		if got, want := r.Until(&h.Lease), qs[len(qs)-1].at.Add(watchdog); !got.Equal(want) {
			t.Errorf("trusted until %v, want %v", got, want)
		}
		sleep(time.Hour)
		h.wantKept(t)
		if n := len(s.taken()); n < 360 || n > 400 {
			t.Errorf("%d calls in the hour after", n)
		}
	})
}

// The retries of a lease keep their backoff when others come due around them.
func TestBackoffIsNotCutShortByOthers(t *testing.T) {
	bubble(t, func(t *testing.T, r *Renewer, s *store) {
		s.answer = func(_ context.Context, q request) ([]Verdict, error) {
			if q.group == "bad" {
				return nil, errors.New("cut")
			}
			return all(Renewed, len(q.items)), nil
		}
		h := newHold(0)
		r.Keep(&h.Lease, h.item, "bad", time.Now().Add(watchdog), true, h.lost)
		for i := range 300 {
			o := newHold(i + 1)
			r.Keep(&o.Lease, o.item, i, time.Now().Add(watchdog), true, o.lost)
			time.Sleep(100 * time.Millisecond)
		}
		n := 0
		for _, q := range s.taken() {
			if q.group == "bad" {
				n++
			}
		}
		if n < 8 || n > 15 {
			t.Errorf("%d tries", n)
		}
	})
}

// After an outage everything is saved in the time that is left, though it is
// sent piece by piece.
func TestRecoveryAfterOutage(t *testing.T) {
	for _, outage := range []string{"errors", "silence"} {
		t.Run(outage, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *Renewer, s *store) {
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
				hs := make([]*hold, 10_000)
				until := time.Now().Add(watchdog)
				for i := range hs {
					hs[i] = newHold(i)
					r.Keep(&hs[i].Lease, hs[i].item, "g", until, true, hs[i].lost)
				}
				sleep(time.Minute)
				for _, h := range hs {
					h.wantKept(t)
				}
			})
		})
	}
}
