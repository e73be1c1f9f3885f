package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/examples/internal/program"
	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// listening returns how many processes wait for the value.
func listening(t *testing.T, s *redistest.Server) func() int {
	t.Helper()
	client, err := rlock.New(s.Client(t), rlock.Options{})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return func() int {
		info, err := client.RWMutex("cache:report:lock").Read().Info(context.Background())
		require.NoError(t, err)
		return info.Listening
	}
}

// callers returns how many callers of the process found the value, and how many waited for it.
func callers(t *testing.T, name, line string) (found, waited int) {
	t.Helper()
	n, _ := fmt.Sscanf(line, name+": %d found it, %d had it when it was built", &found, &waited)
	require.Equal(t, 2, n, line)
	return found, waited
}

// While one caller builds the value, the callers of two other processes wait for it. Later callers find it.
func TestCache(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	waiting := listening(t, s)
	p := program.Build(t, s.Addr())
	a := p.Start("-name", "a", "-callers", "1", "-build", "3s", "-ttl", "1h", "-lease", "1h")
	require.Equal(t, "a: builds it", p.Line())
	a.Signal(syscall.SIGSTOP) // it is stuck before the others wait
	b := p.Start("-name", "b", "-callers", "50")
	c := p.Start("-name", "c", "-callers", "50")
	redistest.Eventually(t, time.Minute, func() bool { return waiting() == 2 }, "they wait")
	a.Signal(syscall.SIGCONT)
	for _, process := range []*program.Process{a, b, c} {
		require.Zero(t, process.Wait())
	}
	for range 3 {
		line := p.Line()
		found, waited := callers(t, line[:1], line)
		require.Positive(t, waited, line)
		if line[:1] == "a" {
			require.Equal(t, 1, waited+found)
		} else {
			require.Equal(t, 50, waited+found)
		}
	}
	require.Zero(t, p.Start("-name", "d", "-callers", "50").Wait())
	require.Equal(t, []string{"d: 50 found it, 0 had it when it was built"}, p.Rest())
}

// If the builder is killed, one of the waiters builds the value.
func TestCacheAfterACrash(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	waiting := listening(t, s)
	p := program.Build(t, s.Addr())
	a := p.Start("-name", "a", "-callers", "1", "-build", "1h", "-lease", "3s")
	require.Equal(t, "a: builds it", p.Line())
	b := p.Start("-name", "b", "-callers", "50", "-build", "1ms")
	redistest.Eventually(t, time.Minute, func() bool { return waiting() == 1 }, "b waits")
	a.Kill()
	require.Zero(t, b.Wait())
	require.Equal(t, "b: builds it", p.Line())
	found, waited := callers(t, "b", p.Line())
	require.Positive(t, waited)
	require.Equal(t, 50, waited+found)
	require.Empty(t, p.Rest())
}

func TestCacheWithoutRedis(t *testing.T) {
	t.Parallel()
	program.WithoutRedis(t)
}

// The callers that wait have the value after a restart of Redis, and after kill -9 of the process that builds it.
func TestCacheUnderFaults(t *testing.T) {
	t.Parallel()
	program.Faults(t, func(t *testing.T, f *program.Fault) {
		waiting := listening(t, f.Server)
		build := "1h"
		if f.Keeps && !f.Kills {
			build = "3s" // the lock is kept, and nobody else may build the value
		}
		a := f.Start("-name", "a", "-callers", "1", "-build", build, "-lease", f.Lease())
		require.Equal(t, "a: builds it", f.Line())
		b := f.Start("-name", "b", "-callers", "50", "-build", "1ms")
		redistest.Eventually(t, time.Minute, func() bool { return waiting() == 1 }, "b waits")
		f.Strike(a)
		require.Zero(t, b.Wait())
		switch {
		case f.Kills:
		case f.Keeps:
			require.Zero(t, a.Wait())
		default:
			require.Equal(t, 1, a.Wait(), "its caller is told that the lock was lost")
		}
		said := f.Rest()
		built := slices.Contains(said, "b: builds it")
		require.Equal(t, build == "1h", built)
		i := slices.IndexFunc(said, func(line string) bool { return strings.HasPrefix(line, "b: ") && strings.Contains(line, " found it") })
		require.NotEqual(t, -1, i, said)
		found, waited := callers(t, "b", said[i])
		require.Equal(t, 50, found+waited)
	})
}
