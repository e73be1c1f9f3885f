package engine

import (
	"cmp"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/internal/tenure"
	"github.com/go-rlock/rlock/internal/testing/enginetest"
	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
)

// A Lock under the ctx of a lost reader returns that loss, even as the reader's gate becomes free. It never competes.
func TestLockUnderALostUpgradeable(t *testing.T) {
	c := enginetest.Start(t, redistest.Dial(t, redistest.Shared(t)))
	name := redistest.Name(t)
	rw := NewRW(c.NewLock(name, kinds.Read, name, tenure.Terms{}), c.NewLock(name, kinds.Write, name, tenure.Terms{}))
	unlock := func(l, gate *tenure.Level) error { return cmp.Or(Unlock(l), Unlock(gate)) }
	for range 500 {
		l, gate, err := rw.LockUpgradeable(tenure.CallerNow(context.Background()))
		require.NoError(t, err)
		go l.Hold.Tenure.Gone() // ends at once
		for {
			inner, innerGate, err := rw.LockUpgradeable(tenure.CallerNow(context.WithoutCancel(l)).UpTo(time.Second, c.MinAttempt()))
			if err != nil {
				require.True(t, errors.Is(err, enginetest.ErrLost))
				break
			}
			_ = unlock(inner, innerGate) // entered before the loss
		}
		require.True(t, errors.Is(unlock(l, gate), enginetest.ErrLost))
	}
}
