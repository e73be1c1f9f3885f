package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/examples/internal/program"
	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// listens starts a process that accepts orders, and returns its address.
func listens(p *program.Program, name string, args ...string) (*program.Process, string) {
	c := p.Start(append([]string{"-name", name, "-listen", "127.0.0.1:0"}, args...)...)
	return c, strings.TrimPrefix(p.Await(name+": listens at "), name+": listens at ")
}

// post sends an order, and returns the status.
func post(t *testing.T, addr, order string) int {
	t.Helper()
	r, err := http.Post("http://"+addr+"/orders/"+order, "", nil) //nolint:noctx // a test
	require.NoError(t, err)
	require.NoError(t, r.Body.Close())
	return r.StatusCode
}

func isLocked(t *testing.T, c *rlock.Client, order string) bool {
	t.Helper()
	locked, err := c.Mutex("order:" + order).IsLocked(context.Background())
	require.NoError(t, err)
	return locked
}

func newClient(t *testing.T, s *redistest.Server) *rlock.Client {
	t.Helper()
	c, err := rlock.New(s.Client(t), rlock.Options{})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

// The handler's process is killed while its order is in the queue: nothing is lost, no other process gets the lock in between, and the order is shipped once.
func TestHandlerIsKilled(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	locks := newClient(t, s)
	p := program.Build(t, s.Addr())
	handler, addr := listens(p, "a")
	require.Equal(t, http.StatusAccepted, post(t, addr, "42"))
	handler.Kill()
	require.Equal(t, -1, handler.Wait())
	require.True(t, isLocked(t, locks, "42"), "the lock is in the queue, with the job")

	second, addr := listens(p, "b")
	require.Equal(t, http.StatusConflict, post(t, addr, "42"))
	worker := p.Start("-name", "w", "-work", "-job", "10ms")
	p.Await("w: ships 42, taken along")
	p.Await("w: shipped 42")
	redistest.Eventually(t, time.Minute, func() bool { return !isLocked(t, locks, "42") }, "it is through")
	require.Equal(t, http.StatusOK, post(t, addr, "42"), "shipped before")
	for _, process := range []*program.Process{second, worker} {
		process.Terminate()
		require.Zero(t, process.Wait())
	}
	for _, line := range p.Rest() {
		require.NotContains(t, line, "ships")
	}
}

// If the worker is killed as well, another worker takes over. The ticket is used up, so it locks the order anew after the dead worker's
// lease.
func TestWorkerIsKilled(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := program.Build(t, s.Addr())
	handler, addr := listens(p, "a")
	require.Equal(t, http.StatusAccepted, post(t, addr, "7"))
	handler.Kill()
	first := p.Start("-name", "v", "-work", "-job", "1h", "-lease", "1s")
	p.Await("v: ships 7, taken along")
	first.Kill()
	require.Equal(t, -1, first.Wait())
	second := p.Start("-name", "w", "-work", "-job", "10ms", "-idle", "100ms", "-lease", "1s")
	p.Await("w: ships 7, locked anew")
	p.Await("w: shipped 7")
	second.Terminate()
	require.Zero(t, second.Wait())
}

// Many orders and several workers: each order is shipped once, by a worker that took over its lock.
func TestJobs(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	locks := newClient(t, s)
	p := program.Build(t, s.Addr())
	handler, addr := listens(p, "a")
	const orders = 20
	processes := []*program.Process{handler}
	for _, name := range []string{"v", "w"} {
		processes = append(processes, p.Start("-name", name, "-work", "-job", "5ms"))
	}
	for i := range orders {
		require.Equal(t, http.StatusAccepted, post(t, addr, fmt.Sprint(i)))
	}
	redistest.Eventually(t, time.Minute, func() bool {
		for i := range orders {
			if isLocked(t, locks, fmt.Sprint(i)) {
				return false
			}
		}
		return true
	}, "all are through")
	for _, process := range processes {
		process.Terminate()
		require.Zero(t, process.Wait())
	}
	ships, done := make(map[string]int), 0
	for _, line := range p.Rest() {
		_, says, _ := strings.Cut(line, ": ")
		if order, ok := strings.CutPrefix(says, "ships "); ok {
			ships[order]++
		} else if strings.HasPrefix(says, "shipped ") {
			done++
		}
	}
	require.Equal(t, orders, done)
	require.Len(t, ships, orders)
	for i := range orders {
		require.Equal(t, 1, ships[fmt.Sprintf("%d, taken along", i)])
	}
}

func TestJobsNeedsToKnowWhich(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := program.Build(t, s.Addr())
	require.Equal(t, 1, p.Start("-name", "x").Wait())
	require.Equal(t, 1, p.Start("-name", "x", "-work", "-listen", ":0").Wait())
	require.Equal(t, []string{"x: give it either -listen ADDR or -work", "x: give it either -listen ADDR or -work"}, p.Rest())
}

// An order's id ends up in the log and in a lock's name, so it is checked first.
func TestJobsRefusesNames(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := program.Build(t, s.Addr())
	a, addr := listens(p, "a")
	for _, id := range []string{"42%0Aa:%20order%2043:%20accepted", "%1B%5B2J", "%00", "%FF", "a%20b", "%C3%A9", strings.Repeat("4", 65)} {
		require.Equal(t, http.StatusNotFound, post(t, addr, id), id)
	}
	a.Terminate()
	require.Zero(t, a.Wait())
	require.Empty(t, p.Rest())
}

// Orders are shipped after a restart of Redis as before, also without its data, and after kill -9 of the worker.
func TestJobsUnderFaults(t *testing.T) {
	t.Parallel()
	program.Faults(t, func(t *testing.T, f *program.Fault) {
		handler, addr := listens(f.Program, "a")
		worker := f.Start("-name", "v", "-work", "-job", "2s", "-lease", f.Lease())
		require.Equal(t, http.StatusAccepted, post(t, addr, "7"))
		f.Await("v: ships 7, taken along")
		f.Strike(worker)
		if f.Kills {
			worker = f.Start("-name", "w", "-work", "-job", "2s")
		}
		if f.Keeps { // otherwise the order was lost with the queue
			f.Find(": shipped 7$")
		}
		redistest.Eventually(t, time.Minute, func() bool { return post(t, addr, "8") == http.StatusAccepted }, "accepted")
		f.Find(": ships 8, taken along$")
		f.Find(": shipped 8$")
		for _, process := range []*program.Process{handler, worker} {
			process.Terminate()
			require.Zero(t, process.Wait())
		}
	})
}
