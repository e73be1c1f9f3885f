package engine

import (
	"cmp"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/internal/require"
)

// A Lock under the ctx of a lost reader returns that loss, even as the reader's gate becomes free. It never competes.
func TestLockUnderALostUpgradeable(t *testing.T) {
	c := startEngine(t, redistest.Dial(t, redistest.Shared(t)), silent{})
	name := redistest.Name(t)
	rw := NewRW(c.NewLock(name, kinds.Read, name, Terms{}), c.NewLock(name, kinds.Write, name, Terms{}))
	unlock := func(l, gate *Level) error { return cmp.Or(l.Unlock(), gate.Unlock()) }
	for range 500 {
		l, gate, err := rw.LockUpgradeable(CallerNow(context.Background()))
		require.NoError(t, err)
		go l.hold.tenure.Gone() // ends at once
		for {
			inner, innerGate, err := rw.LockUpgradeable(CallerNow(context.WithoutCancel(l)).UpTo(time.Second, c.MinAttempt()))
			if err != nil {
				require.True(t, errors.Is(err, errTestLost))
				break
			}
			_ = unlock(inner, innerGate) // entered before the loss
		}
		require.True(t, errors.Is(unlock(l, gate), errTestLost))
	}
}
