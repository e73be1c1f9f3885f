package rlock_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// The rest of what a watchdog time of a handle does is tested in package rlocktest, where time costs nothing.

// G2: a holder that is cut off from Redis is told by the end of the watchdog time of its handle, before another one is in. That one waits for it, and
// not for the longer time of both Clients.
func TestWatchdogOfAHandleThatIsCutOff(t *testing.T) {
	redistest.Parallel(t)
	c, proxy, past := behindProxy(t, anyWay)
	ctx, unlock, err := c.Mutex(past.name, rlock.WithWatchdog(shortWatchdog)).Lock(context.Background())
	require.NoError(t, err)
	next := lockAsync(t, past.Mutex(past.name))
	past.awaitSubscribers(t, past.name, 1)
	for _, ttl := range past.watch(t, past.name, 2*shortWatchdog) {
		require.LessOrEqual(t, ttl, shortWatchdog)
		require.Positive(t, ttl)
	}
	next.stillWaits(t)
	proxy.BlackHole(true)
	began := time.Now()
	<-ctx.Done()
	told := time.Now()
	var lost *rlock.LostError
	require.ErrorAs(t, context.Cause(ctx), &lost)
	require.Less(t, told.Sub(began), shortWatchdog+soon)
	got := next.get(t, soon)
	require.NoError(t, got.err)
	require.False(t, got.at.Before(lost.Since))
	proxy.BlackHole(false)
	require.ErrorIs(t, unlock(), rlock.ErrLost)
	require.NoError(t, got.unlock())
}

// A lock that one process hands to another has the watchdog time of the handle that waited: at once if that is shorter than a grant, and from the first
// renewal on otherwise.
func TestHandOverBetweenWatchdogTimes(t *testing.T) {
	redistest.Parallel(t)
	for name, rdb := range map[string]rueidis.Client{
		"standalone": redistest.Dial(t, redistest.Shared(t)),
		"cluster":    redistest.StartCluster(t, 3, 0).Client(t),
	} {
		t.Run(name, func(t *testing.T) {
			redistest.Parallel(t)
			b := fixture{rdb: rdb, name: redistest.Name(t)}
			_, unlock, err := newClient(t, rdb).Mutex(b.name).Lock(context.Background())
			require.NoError(t, err)
			for _, d := range []time.Duration{shortWatchdog, time.Second, time.Minute} {
				waiter := lockAsync(t, newClient(t, rdb).Mutex(b.name, rlock.WithWatchdog(d)))
				b.awaitPlace(t, b.name)
				require.NoError(t, unlock())
				got := waiter.get(t, soon)
				require.NoError(t, got.err)
				require.LessOrEqual(t, b.pttl(t, b.name), min(d, 2*time.Second))
				redistest.Eventually(t, soon, func() bool { return b.pttl(t, b.name) > d*3/4 }, "renewed")
				for _, ttl := range b.watch(t, b.name, time.Second) {
					require.LessOrEqual(t, ttl, d)
				}
				require.NoError(t, got.ctx.Err())
				unlock = got.unlock
			}
			require.NoError(t, unlock())
			require.False(t, b.exists(t, b.name))
		})
	}
}
