package rlock_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// Package rlocktest tests the rest of WithWatchdog, in virtual time.

// G2: a holder cut off from Redis is cancelled by the end of its handle's watchdog time, before the next owner gets in.
// The next owner waits for that time, and not for the longer one of both Clients.
func TestWatchdogOfAHandleThatIsCutOff(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		c, proxy, past := behindProxy(t, anyWay)
		ctx, unlock := enter(t, context.Background(), c.Mutex(past.name, rlock.WithWatchdog(shortWatchdog)))
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
	})
}

// A lock handed from one process to another has the watchdog time of the waiter's handle: at once if that is shorter
// than a grant, and otherwise from the first renewal on.
func TestHandOverBetweenWatchdogTimes(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		handsOverBetweenWatchdogTimes(t, redistest.Dial(t, redistest.Shared(t)), shortWatchdog, time.Second, time.Minute)
	})
}

// The same on a cluster.
func TestHandOverBetweenWatchdogTimesOnACluster(t *testing.T) {
	redistest.Parallel(t)
	handsOverBetweenWatchdogTimes(t, redistest.StartCluster(t, 3, 0).Client(t), time.Minute, rlock.DefaultWatchdogTimeout)
}

func handsOverBetweenWatchdogTimes(t *testing.T, rdb rueidis.Client, watchdogs ...time.Duration) {
	t.Helper()
	b := fixture{rdb: rdb, name: redistest.Name(t)}
	_, unlock := enter(t, context.Background(), newClient(t, rdb).Mutex(b.name))
	for _, d := range watchdogs {
		began := time.Now()
		waiter := lockAsync(t, newClient(t, rdb).Mutex(b.name, rlock.WithWatchdog(d)))
		b.awaitPlace(t, b.name)
		require.NoError(t, unlock())
		got := waiter.get(t, soon)
		require.NoError(t, got.err)
		if ttl := b.pttl(t, b.name); time.Since(began) < time.Second/2 { // later, the grant was old or has been renewed
			require.LessOrEqual(t, ttl, min(d, 2*time.Second))
		}
		redistest.Eventually(t, soon, func() bool { return b.pttl(t, b.name) > d*3/4 }, "renewed")
		for _, ttl := range b.watch(t, b.name, time.Second) {
			require.LessOrEqual(t, ttl, d)
		}
		require.NoError(t, got.ctx.Err())
		unlock = got.unlock
	}
	require.NoError(t, unlock())
	require.False(t, b.exists(t, b.name))
}
