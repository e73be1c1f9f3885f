package lease

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-rlock/rlock/internal/testing/bubble"
)

// watchdog is the watchdog time of the tests. Renewals are due every 10 s, plus or minus 0.5 s of jitter, the first up to 1.5 s earlier.
// Calls time out after 5 s.
const watchdog = 30 * time.Second

// due is a time after which every lease has been renewed.
const due = 10560 * time.Millisecond

// request records one call of the renew function.
type request struct {
	at    time.Time
	group any
	ttl   time.Duration
	items []Item
}

// store implements the renew function. It fails the test if an item is in two calls at once or is forbidden, or if a call is too big.
type store struct {
	t      testing.TB
	answer func(ctx context.Context, q request) ([]Verdict, error) // nil: renews everything
	batch  int

	mu        sync.Mutex
	requests  []request
	inFlight  map[Item]bool
	calls     map[any]int // calls in flight, by group
	most      int         // peak number of calls in flight for one group
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

// taken returns the requests since the last taken.
func (s *store) taken() []request {
	s.mu.Lock()
	defer s.mu.Unlock()
	qs := s.requests
	s.requests = nil
	return qs
}

// wantCalls requires that many calls since the last taken.
func (s *store) wantCalls(want int, what string) {
	s.t.Helper()
	if n := len(s.taken()); n != want {
		s.t.Errorf("%d calls, want %d: %s", n, want, what)
	}
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

// after gives each item the verdict, after a delay.
func after(delay time.Duration, v Verdict) func(context.Context, request) ([]Verdict, error) {
	return func(_ context.Context, q request) ([]Verdict, error) {
		time.Sleep(delay)
		return all(v, len(q.items)), nil
	}
}

func failing(err error) func(context.Context, request) ([]Verdict, error) {
	return func(context.Context, request) ([]Verdict, error) { return nil, err }
}

// stuck answers only when the call's ctx ends.
func stuck(ctx context.Context, _ request) ([]Verdict, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// hold is a lease with its test records.
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

// keep keeps a new hold.
func keep(r *Renewer, i int, group any, until time.Time, ttl time.Duration) *hold {
	h := newHold(i)
	r.Keep(&h.Lease, keeper{h.item, group, h.lost}, until, ttl)
	return h
}

// keepAll keeps n new holds, renewed.
func keepAll(r *Renewer, n int, group any) (all []*hold, until time.Time) {
	until = time.Now().Add(watchdog)
	for i := range n {
		all = append(all, keep(r, i, group, until, watchdog))
	}
	return all, until
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

func wantKept(t testing.TB, all ...*hold) {
	t.Helper()
	for _, h := range all {
		h.wantKept(t)
	}
}

func (h *hold) wantUntil(t testing.TB, r *Renewer, want time.Time) {
	t.Helper()
	if got := r.Until(&h.Lease); !got.Equal(want) {
		t.Errorf("trusted until %v, want %v", got, want)
	}
}

// Reasons for wantLost: values of Loss.Gone.
const (
	expired   = false
	foundGone = true
)

// wantLost requires exactly one loss, at the given time and for the given reason.
func (h *hold) wantLost(t testing.TB, at time.Time, reason bool) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.loss) != 1 || h.loss[0].Gone != reason || !h.at.Equal(at) || !h.loss[0].Until.Equal(at) {
		t.Errorf("%s: lost %+v at %v; want gone %t at %v", h.item.Name, h.loss, h.at, reason, at)
	}
}

// inBubble runs fn with a renewer in a synctest bubble, which also fails if Close leaks a goroutine.
func inBubble(t *testing.T, fn func(t *testing.T, r *Renewer, s *store)) {
	t.Helper()
	inBubbleWith(t, Options{}, fn)
}

// inBubbleWith is bubble with options.
func inBubbleWith(t *testing.T, o Options, fn func(t *testing.T, r *Renewer, s *store)) {
	t.Helper()
	o.Watchdog = watchdog
	bubble.Test(t, func(t *testing.T) {
		s := newStore(t)
		s.batch = cmp.Or(o.Batch, s.batch)
		r := NewRenewer(s.renew, o)
		defer r.Close()
		fn(t, r, s)
	})
}

// run runs a subtest in a bubble.
func run(t *testing.T, name string, fn func(t *testing.T, r *Renewer, s *store)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { inBubble(t, fn) })
}

// sleep advances the bubble's clock and lets everything due run.
func sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// keeper implements Keeper with functions.
type keeper struct {
	item  Item
	group any
	lost  func(Loss)
}

func (k keeper) Closed() {}

func (k keeper) Item() Item  { return k.item }
func (k keeper) Group() any  { return k.group }
func (k keeper) Lost(l Loss) { k.lost(l) }

// renewedIf returns the ttl of a lease: the watchdog time if it is renewed, otherwise 0.
func renewedIf(renewed bool) time.Duration {
	if renewed {
		return watchdog
	}
	return 0
}
