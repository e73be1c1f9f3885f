package lease

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// watchdog is the watchdog time of the tests: renewals are due every 10 s, give or take half a second of jitter, and
// up to 1.5 s earlier for the first time; a call times out after 5 s.
const watchdog = 30 * time.Second

// due is the time after which a lease has been renewed again.
const due = 10560 * time.Millisecond

// request is a renew call as the store saw it.
type request struct {
	at    time.Time
	group any
	ttl   time.Duration
	items []Item
}

// store stands for the renew function. It fails the test when an item is in two calls at once, when a call is too
// big, and when an item was forbidden.
type store struct {
	t      testing.TB
	answer func(ctx context.Context, q request) ([]Verdict, error) // nil: everything is renewed
	batch  int

	mu        sync.Mutex
	requests  []request
	inFlight  map[Item]bool
	calls     map[any]int // in flight, by group
	most      int         // most calls of one group ever in flight
	forbidden map[Item]bool
}

func newStore(t testing.TB) *store {
	return &store{
		t: t, batch: 100,
		inFlight: map[Item]bool{}, calls: map[any]int{}, forbidden: map[Item]bool{},
	}
}

func (s *store) renew(ctx context.Context, group any, ttl time.Duration, items []Item) ([]Verdict, error) {
	q := request{time.Now(), group, ttl, items}
	s.mu.Lock()
	s.requests = append(s.requests, q)
	s.calls[group]++
	s.most = max(s.most, s.calls[group])
	if len(items) == 0 || len(items) > s.batch {
		s.t.Errorf("a call of %d items", len(items))
	}
	for _, it := range items {
		if s.inFlight[it] {
			s.t.Errorf("%v is in two calls at once", it)
		}
		if s.forbidden[it] {
			s.t.Errorf("%v was renewed after Stop", it)
		}
		s.inFlight[it] = true
	}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.calls[group]--
		for _, it := range items {
			delete(s.inFlight, it)
		}
	}()
	if s.answer == nil {
		return all(Renewed, len(items)), nil
	}
	return s.answer(ctx, q)
}

// taken returns the requests since its last call.
func (s *store) taken() []request {
	s.mu.Lock()
	defer s.mu.Unlock()
	qs := s.requests
	s.requests = nil
	return qs
}

func (s *store) forbid(it Item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forbidden[it] = true
}

func all(v Verdict, n int) []Verdict {
	vs := make([]Verdict, n)
	for i := range vs {
		vs[i] = v
	}
	return vs
}

// stuck answers when the ctx of the call ends.
func stuck(ctx context.Context, _ request) ([]Verdict, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// hold is a lease with the test's records of it.
type hold struct {
	Lease
	item Item
	mu   sync.Mutex
	loss []Loss
	at   time.Time
}

func newHold(i int) *hold {
	return &hold{item: Item{Name: fmt.Sprintf("name:%d", i), Owner: "owner"}}
}

func (h *hold) lost(l Loss) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.loss = append(h.loss, l)
	h.at = time.Now()
}

func (h *hold) wantKept(t testing.TB) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.loss) != 0 {
		t.Errorf("%s: lost: %v", h.item.Name, h.loss)
	}
}

// The reasons for wantLost: Loss.Gone.
const (
	expired   = false
	foundGone = true
)

// wantLost checks that the hold was lost once, at that time, and for that reason.
func (h *hold) wantLost(t testing.TB, at time.Time, reason bool) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.loss) != 1 || h.loss[0].Gone != reason || !h.at.Equal(at) || !h.loss[0].Until.Equal(at) {
		t.Errorf("%s: lost %+v at %v; want gone %t at %v", h.item.Name, h.loss, h.at, reason, at)
	}
}

// bubble runs fn with a renewer in a synctest bubble, which also fails when
// Close leaves a goroutine behind.
func bubble(t *testing.T, fn func(t *testing.T, r *Renewer, s *store)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		r := NewRenewer(s.renew, Options{Watchdog: watchdog})
		defer r.Close()
		fn(t, r, s)
	})
}

// sleep lets time pass inside a bubble, with everything that is due in it.
func sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}
