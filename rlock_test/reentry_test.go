package rlock_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// WithoutReentry refuses a caller who already holds the lock, through whichever handle. It fails at once and sends no command.
func TestWithoutReentry(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		c, proxy, past := behindProxy(t, anyWay)
		var sent atomic.Int32
		proxy.OnRequest(func(cmd []string) redistest.Action {
			if isScript(cmd) {
				sent.Add(1)
			}
			return redistest.Pass
		})
		m, other := c.Mutex(past.name, rlock.WithoutReentry()), c.Mutex(past.name)
		for _, outer := range []*rlock.Mutex{m, other} {
			ctx, unlock := enter(t, context.Background(), outer)
			before := sent.Load()
			done, cancel := context.WithCancel(ctx)
			cancel()
			for _, ctx := range []context.Context{ctx, done} {
				same, again, err := m.Lock(ctx)
				require.ErrorIs(t, err, rlock.ErrReentry)
				require.EqualError(t, err, `rlock: "`+past.name+`": this ctx holds the lock already, `+
					`and WithoutReentry rules out re-entry (to compete with that hold, use Detach)`)
				require.Equal(t, ctx, same)
				require.ErrorIs(t, again(), rlock.ErrNotHeld)
				_, _, err = m.TryLock(ctx, time.Hour)
				require.ErrorIs(t, err, rlock.ErrReentry)
			}
			require.Equal(t, before, sent.Load())
			require.NoError(t, ctx.Err(), "the hold stays as it is")

			inner, unlockInner, err := other.Lock(ctx)
			require.NoError(t, err, "another handle re-enters")
			requireLockFails(t, inner, m, rlock.ErrReentry)
			require.NoError(t, unlockInner())
			_, _, err = m.TryLock(rlock.Detach(ctx), 0)
			require.ErrorIs(t, err, rlock.ErrNotAcquired, "a detached ctx competes")
			require.NoError(t, unlock())
			require.NoError(t, m.Do(context.WithoutCancel(ctx), func(context.Context) error { return nil }), "so does a ctx whose hold has ended")
		}

		ctx, unlock := enter(t, context.Background(), m)
		past.loseLock(t, ctx, other)
		_, _, err := m.Lock(ctx)
		require.ErrorIs(t, err, rlock.ErrLost, "a known loss takes precedence")
		require.ErrorIs(t, unlock(), rlock.ErrLost)
	})
}
