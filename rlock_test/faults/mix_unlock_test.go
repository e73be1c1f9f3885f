package faults

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// A hold is lost during a Lock in its section (fault 2, black hole): the Lock reports the loss, not a cancelled ctx. G2.
// Found by the mix of several locks.
func TestMixReentryIntoAHoldThatIsLostMeanwhile(t *testing.T) {
	t.Parallel()
	proxy := redistest.StartProxy(t, redistest.Shared(t))
	m := newClient(t, redistest.Dial(t, proxy.Addr()), rlock.Options{}).Mutex(redistest.Name(t), rlock.WithLease(time.Second))
	ctx, unlock, err := m.Lock(context.Background())
	require.NoError(t, err)
	proxy.BlackHole(true)
	_, _, err = m.Lock(ctx)
	require.ErrorIs(t, err, rlock.ErrLost)
	require.NotErrorIs(t, err, rlock.ErrNotAcquired)
	require.ErrorIs(t, unlock(), rlock.ErrLost)
	proxy.BlackHole(false)
}

// A hold is lost during its unlock (fault 2, black hole): the unlock reports the loss, not a cancelled ctx. The unlock of
// an inner level sends nothing. G2, G8. Found by the mix.
func TestMixUnlockOfHoldThatIsLostMeanwhile(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	for range 5 {
		proxy := redistest.StartProxy(t, s.Addr())
		c := newClient(t, redistest.Dial(t, proxy.Addr()), rlock.Options{})
		m := c.Mutex(redistest.Name(t), rlock.WithLease(1500*time.Millisecond))
		ctx, unlock, err := m.Lock(context.Background())
		require.NoError(t, err)
		inner, unlockInner, err := m.Lock(ctx)
		require.NoError(t, err)
		proxy.BlackHole(true)
		require.NoError(t, unlockInner())
		require.Error(t, inner.Err())
		require.NoError(t, ctx.Err())
		err = unlock()
		require.ErrorIs(t, err, rlock.ErrLost)
		require.ErrorIs(t, err, rlock.ErrNotHeld)

		proxy.BlackHole(false)
		_, unlock, err = m.Lock(context.Background())
		require.NoError(t, err)
		proxy.BlackHole(true)
		err = unlock()
		require.ErrorIs(t, err, rlock.ErrLost)
		require.ErrorIs(t, err, rlock.ErrNotHeld)
		proxy.BlackHole(false)
	}
}
