package main

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/examples/internal/program"
	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// shop is a process of the program.
type shop struct {
	*program.Process
	url string
}

func open(p *program.Program, args ...string) shop {
	process := p.Start(append([]string{"-listen", "127.0.0.1:0"}, args...)...)
	return shop{process, strings.TrimPrefix(p.Await("orders: http://"), "orders: ")}
}

// answered is a response.
type answered struct {
	status int
	retry  string
	body   string
	err    error
}

// post sends a request, on a goroutine that ends with it.
func (s shop) post(ctx context.Context, path string) <-chan answered {
	result := make(chan answered, 1)
	go func() {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+path, nil)
		if err != nil {
			result <- answered{err: err}
			return
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			result <- answered{err: err}
			return
		}
		defer func() { _ = response.Body.Close() }()
		body, err := io.ReadAll(response.Body)
		result <- answered{response.StatusCode, response.Header.Get("Retry-After"), strings.TrimSpace(string(body)), err}
	}()
	return result
}

// awaitWaiter returns once a process waits for the lock.
func awaitWaiter(t *testing.T, locks *rlock.Client, name string) {
	t.Helper()
	redistest.Eventually(t, time.Minute, func() bool {
		info, err := locks.Mutex(name).Info(context.Background())
		require.NoError(t, err)
		return len(info.Queue) == 1
	}, "it waits")
}

func newLocks(t *testing.T, s *redistest.Server) *rlock.Client {
	t.Helper()
	locks, err := rlock.New(s.Client(t), rlock.Options{})
	require.NoError(t, err)
	t.Cleanup(locks.Close)
	return locks
}

// Many requests to two processes ship an order once. Each error has its status.
func TestOrders(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := program.Build(t, s.Addr())
	ctx := context.Background()
	a, b := open(p, "-wait", "1m"), open(p, "-wait", "1m")
	var all []<-chan answered
	for range 5 {
		all = append(all, a.post(ctx, "/orders/42/ship"), b.post(ctx, "/orders/42/ship"))
	}
	for _, one := range all {
		require.Equal(t, answered{status: http.StatusOK, body: `{"id":"42","charged":true,"shipped":true}`}, <-one)
	}
	for _, want := range []string{"payment", "charged", "shipped"} {
		require.Equal(t, "orders: order 42: "+want, p.Line())
	}

	// Whatever the id, its lock's key is no order's data.
	require.Equal(t, http.StatusOK, (<-a.post(ctx, "/orders/42:data/charge")).status)
	for _, want := range []string{"payment", "charged"} {
		require.Equal(t, "orders: order 42:data: "+want, p.Line())
	}

	// Another process holds the order.
	locks := newLocks(t, s)
	_, unlock, err := locks.Mutex("order:43").Lock(ctx)
	require.NoError(t, err)
	c := open(p, "-wait", "0s")
	busy := answered{status: http.StatusConflict, retry: "1", body: "another request is working on this order"}
	require.Equal(t, busy, <-c.post(ctx, "/orders/43/charge"))
	require.Regexp(t, `^orders: POST /orders/43/charge: rlock: "order:43": not acquired.*: held by `+locks.ID(), p.Line())

	// The client does not wait for that long.
	gone, leave := context.WithCancel(ctx)
	left := a.post(gone, "/orders/43/charge")
	awaitWaiter(t, locks, "order:43")
	leave()
	require.ErrorIs(t, (<-left).err, context.Canceled)
	require.Regexp(t, `^orders: POST /orders/43/charge: rlock: "order:43": not acquired.*: context canceled$`, p.Line())
	require.NoError(t, unlock())

	// A client that disconnects does not stop a payment.
	gone, leave = context.WithCancel(ctx)
	left = a.post(gone, "/orders/45/charge")
	require.Equal(t, "orders: order 45: payment", p.Line())
	leave()
	require.ErrorIs(t, (<-left).err, context.Canceled)
	require.Equal(t, "orders: order 45: charged", p.Line())

	s.Stop()
	require.Equal(t, answered{status: http.StatusServiceUnavailable, retry: "5", body: "try again later"}, <-c.post(ctx, "/orders/44/ship"))
	require.Contains(t, p.Line(), `orders: POST /orders/44/ship: rlock: "order:44": `)
}

// A request's id ends up in the log and in a lock's name, so it is checked first.
func TestOrdersRefusesNames(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := program.Build(t, s.Addr())
	ctx := context.Background()
	a := open(p)
	refused := answered{status: http.StatusNotFound, body: "no such order"}
	for _, id := range []string{"42%0Aorders:%20order%2043:%20charged", "%1B%5B2J", "%00", "%FF", "a%20b", "%C3%A9", strings.Repeat("4", 65)} {
		require.Equal(t, refused, <-a.post(ctx, "/orders/"+id+"/charge"), id)
		require.Equal(t, refused, <-a.post(ctx, "/orders/"+id+"/ship"), id)
	}
	a.Terminate()
	require.Zero(t, a.Wait())
	require.Equal(t, []string{"orders: ends: no new requests, those under way go on", "orders: ended in order"}, p.Rest())
}

// A path is logged as sent, without the line breaks that it may encode.
func TestOrdersLogsPaths(t *testing.T) {
	var logged strings.Builder
	log.SetOutput(&logged)
	defer log.SetOutput(io.Discard)
	request := httptest.NewRequestWithContext(context.Background(), http.MethodPost, "/orders/4%0A2/charge", nil)
	fail(httptest.NewRecorder(), request, errors.New("other"))
	require.Contains(t, logged.String(), "POST /orders/4%0A2/charge: other\n")
}

// On SIGTERM a process finishes its requests. Those that take too long are cut off, and leave no lock behind.
func TestOrdersShutdown(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	locks := newLocks(t, s)
	p := program.Build(t, s.Addr())
	ctx := context.Background()
	a := open(p, "-payment", "3s")
	slow := a.post(ctx, "/orders/1/charge")
	require.Equal(t, "orders: order 1: payment", p.Line())
	a.Terminate()
	require.Equal(t, answered{status: http.StatusOK, body: `{"id":"1","charged":true,"shipped":false}`}, <-slow)
	require.Zero(t, a.Wait())
	for _, want := range []string{"ends: no new requests, those under way go on", "order 1: charged", "ended in order"} {
		require.Equal(t, "orders: "+want, p.Line())
	}

	b := open(p, "-payment", "1h", "-grace", "100ms")
	cutOff := b.post(ctx, "/orders/2/charge")
	require.Equal(t, "orders: order 2: payment", p.Line())
	c := open(p, "-payment", "1ms", "-wait", "1m")
	next := c.post(ctx, "/orders/2/charge")
	awaitWaiter(t, locks, "order:2")
	b.Terminate()
	require.Equal(t, http.StatusOK, (<-next).status)
	require.Equal(t, answered{status: http.StatusServiceUnavailable, retry: "5", body: "try again later"}, <-cutOff)
	require.Equal(t, 1, b.Wait())
	c.Terminate()
	require.Zero(t, c.Wait())
	require.Subset(t, p.Rest(), []string{
		`orders: POST /orders/2/charge: rlock: "order:2": client closed`,
		"orders: orders were cut off",
		"orders: context deadline exceeded",
		"orders: order 2: charged",
	})
}

func TestOrdersStatus(t *testing.T) {
	log.SetOutput(io.Discard)
	const none = -1 // no answer
	gone, leave := context.WithCancel(context.Background())
	leave()
	for _, row := range []struct {
		err    error
		ctx    context.Context
		status int
		retry  string
	}{
		{err: errors.Join(rlock.ErrNotRun, &rlock.NotAcquiredError{}), status: http.StatusConflict, retry: "1"},
		{err: &rlock.NotAcquiredError{}, status: http.StatusInternalServerError}, // of a lock that the service took inside
		{err: errors.Join(rlock.ErrNotRun, &rlock.NotAcquiredError{}, rlock.ErrUnreachable), status: http.StatusServiceUnavailable, retry: "5"},
		{err: rlock.ErrUnreachable, status: http.StatusServiceUnavailable, retry: "5"},
		{err: rlock.ErrClosed, status: http.StatusServiceUnavailable, retry: "5"},
		{err: &rlock.LostError{Reason: rlock.LostClosed}, status: http.StatusServiceUnavailable, retry: "5"},
		{err: &rlock.LostError{Reason: rlock.LostGone}, status: http.StatusInternalServerError},
		{err: errors.Join(rlock.ErrNotHeld, rlock.ErrLost), status: http.StatusInternalServerError},
		{err: errors.New("other"), status: http.StatusInternalServerError},
		{err: context.Canceled, ctx: gone, status: none},
	} {
		w := httptest.NewRecorder()
		w.Code = none
		fail(w, httptest.NewRequestWithContext(cmp.Or(row.ctx, context.Background()), http.MethodPost, "/", nil), row.err)
		require.Equal(t, row.status, w.Code, row.err)
		require.Equal(t, row.retry, w.Header().Get("Retry-After"), row.err)
	}
}

func TestOrdersWithoutRedis(t *testing.T) {
	t.Parallel()
	program.WithoutRedis(t)
}

// A restart of Redis interrupts a payment only if the lock was lost. After it, and after kill -9, the order can be charged.
func TestOrdersUnderFaults(t *testing.T) {
	t.Parallel()
	program.Faults(t, func(t *testing.T, f *program.Fault) {
		ctx := context.Background()
		payment := "1h"
		if f.Keeps && !f.Kills {
			payment = "3s"
		}
		a, b := open(f.Program, "-payment", payment), open(f.Program, "-payment", "1ms", "-wait", "1m")
		first := a.post(ctx, "/orders/1/charge")
		f.Await("orders: order 1: payment")
		f.Strike(a.Process)
		charged := answered{status: http.StatusOK, body: `{"id":"1","charged":true,"shipped":false}`}
		switch {
		case f.Kills:
			require.Error(t, (<-first).err)
		case f.Keeps:
			require.Equal(t, charged, <-first)
		default:
			require.Equal(t, answered{status: http.StatusInternalServerError, body: "the lock was lost on the way"}, <-first)
		}
		require.Equal(t, charged, <-b.post(ctx, "/orders/1/charge"))
	})
}
