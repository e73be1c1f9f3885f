package rlock

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/internal/require"
)

// A Lock under the ctx of a reader that is lost says so, also in the moment in which its gate is freed: it never competes for that.
func TestLockUnderALostUpgradeable(t *testing.T) {
	c, err := New(redistest.Dial(t, redistest.Shared(t)), Options{})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	u := c.RWMutex(redistest.Name(t)).Upgradeable()
	for range 500 {
		ctx, unlock, err := u.Lock(context.Background())
		require.NoError(t, err)
		go levelOf(ctx).hold.tenure.gone() // ends at once
		for {
			_, again, err := u.TryLock(context.WithoutCancel(ctx), time.Second)
			if err != nil {
				require.True(t, errors.Is(err, ErrLost))
				break
			}
			_ = again() // it came before the loss
		}
		require.True(t, errors.Is(unlock(), ErrLost))
	}
}
