package faults

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// granted is what a Lock returned, and when.
type granted struct {
	ctx    context.Context
	unlock rlock.UnlockFunc
	err    error
	at     time.Time
}

// waiter is a Lock under way on a goroutine of its own.
type waiter chan granted

func startWaiter(t testing.TB, m *rlock.Mutex) waiter {
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	w := make(waiter, 1)
	go func() { // ended by cancel at the latest
		var g granted
		g.ctx, g.unlock, g.err = m.Lock(ctx)
		g.at = time.Now()
		w <- g
	}()
	return w
}

// startStubbornWaiter is startWaiter for a caller that calls Lock again when Redis could not be reached
// for longer than Lock tries, as it can not while a failover is under way.
func startStubbornWaiter(t testing.TB, m *rlock.Mutex) waiter {
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	w := make(waiter, 1)
	go func() { // ended by cancel at the latest
		var g granted
		for g.unlock == nil || g.err != nil && ctx.Err() == nil && !errors.Is(g.err, rlock.ErrClosed) {
			g.ctx, g.unlock, g.err = m.Lock(ctx)
		}
		g.at = time.Now()
		w <- g
	}()
	return w
}

// ended waits until the ctx of a hold ends, which has to be because the hold is lost.
func ended(t testing.TB, ctx context.Context, within time.Duration) {
	t.Helper()
	select {
	case <-ctx.Done():
		require.ErrorIs(t, context.Cause(ctx), rlock.ErrLost)
	case <-time.After(within):
		require.FailNow(t, "the hold is not lost", "within %v", within)
	}
}

// gets returns what the waiter got, which has to be the lock.
func (w waiter) gets(t testing.TB, within time.Duration, why string) granted {
	t.Helper()
	select {
	case g := <-w:
		require.NoError(t, g.err, why)
		return g
	case <-time.After(within):
		require.FailNow(t, "Lock did not return", "%s: within %v", why, within)
		panic("unreachable")
	}
}

func (w waiter) waits(t testing.TB) {
	t.Helper()
	select {
	case g := <-w:
		require.FailNow(t, "Lock returned", "%v", g.err)
	default:
	}
}

// subscribers asks one node how many subscribe to the unlock channel of a lock there; -1 if it does
// not answer.
func subscribers(t testing.TB, node rueidis.Client, name string, sharded bool) int {
	t.Helper()
	what := "NUMSUB"
	if sharded {
		what = "SHARDNUMSUB"
	}
	ctx, cancel := context.WithTimeout(context.Background(), prompt)
	defer cancel()
	channel := "redisson_lock__channel:{" + name + "}"
	n, err := node.Do(ctx, node.B().Arbitrary("PUBSUB", what, channel).Build()).AsIntMap()
	if err != nil {
		return -1
	}
	return int(n[channel])
}

func awaitSubscribers(t testing.TB, node rueidis.Client, name string, sharded bool, n int, within time.Duration) {
	t.Helper()
	redistest.Eventually(t, within, func() bool { return subscribers(t, node, name, sharded) == n }, "subscribers")
}

// owners returns the lock's hash.
func owners(t testing.TB, rdb rueidis.Client, name string) map[string]int64 {
	t.Helper()
	m, err := do(t, rdb, "HGETALL", name).AsIntMap()
	require.NoError(t, err)
	return m
}

// remaining is the time that the hold of a lock has left in Redis.
func remaining(t testing.TB, rdb rueidis.Client, name string) time.Duration {
	t.Helper()
	ms, err := do(t, rdb, "PTTL", name).AsInt64()
	require.NoError(t, err)
	return time.Duration(ms) * time.Millisecond
}
