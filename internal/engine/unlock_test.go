package engine

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/internal/tenure"
	"github.com/go-rlock/rlock/internal/testing/enginetest"
	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
)

// An unlock gives up before its time only after the loss of the hold. The end of the lease alone does not suffice: Redis may have
// answered just before.
func TestUnlockWaitsForTheLossAtTheEndOfTheLease(t *testing.T) {
	c := enginetest.Start(t, redistest.Dial(t, redistest.Shared(t)))
	name := redistest.Name(t)
	m := c.NewLock(name, kinds.Mutex, name, tenure.Terms{Lease: 2 * time.Millisecond})
	for range 200 {
		l, err := Lock(m, tenure.CallerNow(context.Background()))
		if errors.Is(err, enginetest.ErrLost) {
			continue // a busy machine
		}
		require.NoError(t, err)
		over := time.Now().Add(time.Minute)
		for lost := false; !lost; {
			wait := untilLost([]*tenure.Level{l}, time.Now(), over, nil, nil)
			lost = l.Hold.LossSoFar() != nil
			require.True(t, wait > 0 || lost)
		}
		_ = Unlock(l)
	}
}

// Nothing knows a tenure after its unlock: a service that locks often would otherwise keep all those of the last lease in memory.
func TestNothingKeepsAReleasedTenure(t *testing.T) {
	c := enginetest.Start(t, redistest.Dial(t, redistest.Shared(t)))
	name := redistest.Name(t)
	released := func() weak.Pointer[tenure.Tenure] {
		l, err := Lock(c.NewLock(name, kinds.Mutex, name, tenure.Terms{}), tenure.CallerNow(context.Background()))
		require.NoError(t, err)
		require.NoError(t, Unlock(l))
		return weak.Make(l.Hold.Tenure)
	}()
	redistest.Eventually(t, 5*time.Second, func() bool {
		runtime.GC()
		return released.Value() == nil
	}, "it is forgotten")
}
