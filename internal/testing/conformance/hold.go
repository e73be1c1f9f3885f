package conformance

import (
	"context"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/testing/require"
	"github.com/go-rlock/rlock/rlock"
)

// A Hold lasts beyond the ctx of its wait, competes with everybody, learns of waiters, and ends by its Unlock, a loss or Close.
func hold(t *testing.T, p *place, a, b rlock.Locker) {
	type key struct{}
	wait, leave := context.WithTimeout(context.WithValue(p.ctx, key{}, 42), atMost)
	defer leave()
	h, err := rlock.Acquire(wait, a)
	require.NoError(t, err)
	leave()
	ends(t, h, false)
	require.NoError(t, h.Err())
	require.Equal(t, 42, h.Context().Value(key{}))
	_, bounded := h.Context().Deadline()
	require.False(t, bounded)
	for _, l := range []rlock.Locker{a, b} {
		_, _, err := acquires{l}.TryLock(h.Context(), 0)
		require.True(t, rlock.IsBusy(err), err)
	}
	select {
	case <-h.Asked():
		t.Fatal("nobody waits")
	default:
	}
	if p.kind.without[refusesReentry] != "" {
		_, unlock, err := a.Lock(h.Context())
		require.NoError(t, err)
		require.NoError(t, unlock())
	}

	waiter := p.lockAndWait(t, b)
	select {
	case <-h.Asked():
	case <-time.After(atMost):
		t.Fatal("not asked")
	}
	require.NoError(t, h.Unlock())
	ends(t, h, true)
	require.NoError(t, h.Err())
	require.ErrorIs(t, h.Unlock(), rlock.ErrNotHeld)
	got := waiter.get(t, p.beforeExpiry())
	require.NoError(t, got.err)
	require.ErrorIs(t, h.Unlock(), rlock.ErrNotHeld)
	p.refused(p.ctx, t, a)
	require.NoError(t, got.unlock())

	h, err = rlock.TryAcquire(p.ctx, a, atMost)
	require.NoError(t, err)
	p.forget(t)
	<-h.Done()
	require.ErrorIs(t, h.Err(), rlock.ErrLost)
	err = h.Unlock()
	require.ErrorIs(t, err, rlock.ErrNotHeld)
	require.ErrorIs(t, err, rlock.ErrLost)
	require.ErrorIs(t, h.Err(), rlock.ErrLost)

	h, err = rlock.Acquire(p.ctx, b)
	require.NoError(t, err)
	p.closeSide(1)
	ends(t, h, true)
	require.ErrorIs(t, h.Err(), rlock.ErrClosed)
	require.NotErrorIs(t, h.Err(), rlock.ErrLost)
	require.NoError(t, h.Unlock())
	_, err = rlock.Acquire(p.ctx, b)
	require.ErrorIs(t, err, rlock.ErrClosed)
	require.False(t, rlock.IsBusy(err))
	free(t, a)
}

// acquires is a lock whose TryLock is a TryAcquire.
type acquires struct{ rlock.Locker }

func (l acquires) TryLock(ctx context.Context, wait time.Duration) (context.Context, rlock.UnlockFunc, error) {
	h, err := rlock.TryAcquire(ctx, l.Locker, wait)
	if err != nil {
		return ctx, nil, err
	}
	return h.Context(), h.Unlock, nil
}

// ends checks whether a hold has ended.
func ends(t *testing.T, h *rlock.Hold, over bool) {
	t.Helper()
	select {
	case <-h.Done():
		require.True(t, over, h.Err())
	default:
		require.False(t, over)
	}
}
