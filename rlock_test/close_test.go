package rlock_test

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// ours counts the goroutines that run code of the library.
func ours() int {
	n := 0
	for _, pkg := range []string{"rlock.", "lease.", "pubsub.", "lua."} {
		n += redistest.Goroutines("github.com/go-rlock/rlock/" + pkg)
	}
	return n
}

// awaitGone allows goroutines that have said they are done the moment that they need to end.
func awaitGone(t *testing.T, before int) {
	t.Helper()
	for deadline := time.Now().Add(time.Second); ours() > before; {
		if time.Now().After(deadline) {
			stacks := make([]byte, 1<<20)
			require.FailNow(t, "goroutines are left", "%s", stacks[:runtime.Stack(stacks, true)])
		}
	}
}

func TestCloseWhileWaitingAndHolding(t *testing.T) {
	before := ours()
	b := bareBench(t)
	c := newClient(t, b.rdb)
	held, unlock, err := c.Mutex(b.name).Lock(context.Background())
	require.NoError(t, err)
	inner, unlockInner, err := c.Mutex(b.name).Lock(held)
	require.NoError(t, err)
	waiters := []pending{lockAsync(t, c.Mutex(b.name)), lockAsync(t, tryFor{c.Mutex(b.name), atMost})}
	background := make(chan error, 1)
	go func() {
		_, _, err := c.Mutex(b.name).Lock(context.Background())
		background <- err
	}()
	redistest.Eventually(t, 5*time.Second, func() bool { return waiting() == 3 }, "all wait")
	b.awaitSubscribers(t, b.name, 1)

	began := time.Now()
	c.Close()
	require.Less(t, time.Since(began), 500*time.Millisecond)
	for _, ctx := range []context.Context{held, inner} {
		require.ErrorIs(t, ctx.Err(), context.Canceled)
		require.ErrorIs(t, context.Cause(ctx), rlock.ErrClosed)
	}
	for _, w := range waiters {
		require.ErrorIs(t, w.get(t, time.Second).err, rlock.ErrClosed)
	}
	require.ErrorIs(t, <-background, rlock.ErrClosed)
	b.awaitSubscribers(t, b.name, 0)
	awaitGone(t, before)

	require.Equal(t, map[string]int64{rlock.Owner(held): 2}, b.fields(t, b.name), "Close does not release")
	require.NoError(t, unlockInner())
	require.NoError(t, unlock())
	require.False(t, b.exists(t, b.name), "unlock after Close does")
}

func TestUseAfterClose(t *testing.T) {
	b := newBench(t)
	ctx := context.Background()
	m := b.Mutex(b.name)
	b.Close()
	b.Close()
	_, noop, err := m.Lock(ctx)
	require.ErrorIs(t, err, rlock.ErrClosed)
	require.ErrorIs(t, noop(), rlock.ErrNotHeld)
	_, _, err = m.TryLock(ctx, time.Second)
	require.ErrorIs(t, err, rlock.ErrClosed)
	require.ErrorIs(t, m.Do(ctx, func(context.Context) error { panic("not called") }), rlock.ErrClosed)
	_, err = m.IsLocked(ctx)
	require.ErrorIs(t, err, rlock.ErrClosed)
	_, err = m.TTL(ctx)
	require.ErrorIs(t, err, rlock.ErrClosed)
	_, err = m.ForceUnlock(ctx)
	require.ErrorIs(t, err, rlock.ErrClosed)
}

// Close at any moment of many calls: each ends, no key stays locked for nobody, nothing runs on.
func TestCloseRaces(t *testing.T) {
	before := ours()
	b := bareBench(t)
	for i := range 30 {
		c, err := rlock.New(b.rdb, rlock.Options{})
		require.NoError(t, err)
		var wg sync.WaitGroup
		for j := range 8 {
			wg.Go(func() {
				ctx := context.Background()
				if j%2 == 0 { // the commands of a ctx that can be cancelled run on goroutines of their own
					var cancel context.CancelFunc
					ctx, cancel = context.WithCancel(ctx)
					defer cancel()
				}
				for {
					err := c.Mutex(b.name).Do(ctx, func(ctx context.Context) error {
						return c.Mutex(b.name).Do(ctx, func(context.Context) error { return nil })
					})
					if err != nil {
						assert.ErrorIs(t, err, rlock.ErrClosed)
						return
					}
				}
			})
		}
		pass(time.Duration(i) * time.Millisecond)
		c.Close()
		wg.Wait()
		redistest.Eventually(t, 5*time.Second, func() bool { return !b.exists(t, b.name) }, "the lock is free")
	}
	awaitGone(t, before)
}
