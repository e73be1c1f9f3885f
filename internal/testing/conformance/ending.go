package conformance

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
	"github.com/go-rlock/rlock/rlock"
)

// G9: Close ends waiting calls, and leaves no goroutine: otherwise the bubble of such a Deployment does not end.
func closeOfWaiters(t *testing.T, p *place, a, b rlock.Locker) {
	_, unlock, err := a.Lock(p.ctx)
	require.NoError(t, err)
	waiter := p.lockAndWait(t, b)
	p.closeSide(1)
	got := waiter.get(t, p.d.Soon)
	require.ErrorIs(t, got.err, rlock.ErrClosed)
	require.ErrorIs(t, got.unlock(), rlock.ErrNotHeld)
	_, _, err = b.Lock(p.ctx)
	require.ErrorIs(t, err, rlock.ErrClosed)
	require.NoError(t, unlock())
	p.closeSide(0)
}

// G9: Close cancels the ctx of a section. The hold stays, and its unlock works.
func closeOfHolders(t *testing.T, p *place, a, b rlock.Locker) {
	ctx, unlock, err := a.Lock(p.ctx)
	require.NoError(t, err)
	p.closeSide(0)
	require.Error(t, ctx.Err())
	require.ErrorIs(t, context.Cause(ctx), rlock.ErrClosed)
	require.NotErrorIs(t, context.Cause(ctx), rlock.ErrLost)
	p.refused(p.ctx, t, b)
	require.NoError(t, unlock())
	free(t, b)
}

// Shutdown refuses waiters and new Locks, and lets a section run to its end, with further levels. Then others get the lock.
func shutdown(t *testing.T, p *place, a, b rlock.Locker) {
	ctx, unlock, err := a.Lock(p.ctx)
	require.NoError(t, err)
	p.allHold(t)
	waiter := p.lockAndWait(t, b)
	ended := p.shutDown(p.ctx, 1)
	require.ErrorIs(t, waiter.get(t, p.d.Soon).err, rlock.ErrClosed)
	for range p.clients[1] {
		require.NoError(t, <-ended)
	}
	down := p.shutDown(p.ctx, 0)
	redistest.Eventually(t, p.d.Soon, func() bool {
		_, _, err = a.TryLock(p.ctx, 0)
		return errors.Is(err, rlock.ErrClosed)
	}, "a Lock is refused")
	if p.kind.without[refusesReentry] != "" {
		_, inner, err := a.Lock(ctx)
		require.NoError(t, err)
		require.NoError(t, inner())
	}
	require.NoError(t, ctx.Err())
	require.Len(t, p.keys(t), p.kind.keys, "all of it is held, as before")
	require.Empty(t, down)
	require.NoError(t, unlock())
	for _, c := range p.clients[0] {
		require.NoError(t, <-down)
		require.Zero(t, c.Stats().Holds)
	}
}

// When its time is over, Shutdown cancels the section, whose unlock works, and no further level opens: nothing would cancel it.
func shutdownOutOfTime(t *testing.T, p *place, a, b rlock.Locker) {
	ctx, unlock, err := a.Lock(p.ctx)
	require.NoError(t, err)
	p.allHold(t)
	over, cancel := context.WithCancel(p.ctx)
	cancel()
	down := p.shutDown(over, 0)
	for range p.clients[0] {
		require.ErrorIs(t, <-down, context.Canceled)
	}
	<-ctx.Done()
	require.ErrorIs(t, context.Cause(ctx), rlock.ErrClosed)
	if p.kind.without[refusesReentry] != "" {
		_, _, err = a.Lock(context.WithoutCancel(ctx))
		require.ErrorIs(t, err, rlock.ErrClosed)
	}
	require.NoError(t, unlock())
	free(t, b)
}

// Do, TryDo and DoValue hold the lock while the function runs, however it ends.
func doSections(t *testing.T, p *place, a, b rlock.Locker) {
	l, ok := a.(interface {
		Do(context.Context, func(context.Context) error) error
		TryDo(context.Context, time.Duration, func(context.Context) error) error
	})
	require.True(t, ok)
	ctx, mine := p.ctx, errors.New("mine")
	for _, do := range []func(func(context.Context) error) error{
		func(fn func(context.Context) error) error { return l.Do(ctx, fn) },
		// It waits: one server of a quorum may still have its share of the last hold, and another may be slow.
		func(fn func(context.Context) error) error { return l.TryDo(ctx, longWatchdog/3, fn) },
		func(fn func(context.Context) error) error {
			value, err := rlock.DoValue(ctx, a, func(ctx context.Context) (int, error) { return 42, fn(ctx) })
			require.Equal(t, 42, value)
			return err
		},
	} {
		section := func(result error) func(context.Context) error {
			return func(ctx context.Context) error {
				require.NoError(t, ctx.Err())
				p.refused(rlock.Detach(ctx), t, a)
				p.refused(p.ctx, t, b)
				return result
			}
		}
		require.NoError(t, do(section(nil)))
		free(t, b)
		require.Same(t, mine, do(section(mine)))
		free(t, b)
		require.PanicsWithValue(t, "boom", func() {
			_ = do(func(context.Context) error { panic("boom") })
		})
		free(t, b)
		ended := make(chan struct{})
		go func() { // ends itself
			defer close(ended)
			_ = do(func(context.Context) error { runtime.Goexit(); return nil })
		}()
		<-ended
		free(t, b)
	}
	_, unlock, err := b.Lock(ctx)
	require.NoError(t, err)
	require.ErrorIs(t, l.TryDo(ctx, 0, func(context.Context) error { panic("not with the lock") }), rlock.ErrNotAcquired)
	require.NoError(t, unlock())
}
