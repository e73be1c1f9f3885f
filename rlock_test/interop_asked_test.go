//go:build interop

package rlock_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// asked checks that a Go holder with WithAsked learns of a waiting Redisson: it looks every third of the watchdog
// time, and again a second later. Redisson sees an ordinary owner.
func (w *world) asked(t *testing.T) {
	java, name := w.quickJava.thread(), redistest.Name(t)
	ctx, unlocks, err := w.quickGo.Mutex(name, rlock.WithAsked()).Lock(context.Background())
	require.NoError(t, err)
	w.holds(t, name, rlock.Owner(ctx), 1)
	java.tryInVain(t, name)
	notAsked(t, ctx)
	in := java.start(t, name, testTimeout)
	began := time.Now()
	select {
	case <-rlock.Asked(ctx):
	case <-time.After(testTimeout):
		require.FailNow(t, "the holder did not learn that Redisson waits")
	}
	require.Less(t, time.Since(began), shortLease/3+time.Second+late)
	requireWaiting(t, in)
	require.NoError(t, unlocks())
	await(t, in, 5*time.Second)
	waiter := lockAsync(t, w.quickGo.Mutex(name, rlock.WithAsked()))
	redistest.Eventually(t, testTimeout, func() bool { return waiting(t) == 1 }, "it waits")
	unlock(t, java, name)
	waiter.getAndUnlock(t, testTimeout)
}
