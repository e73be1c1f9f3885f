package engine

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/internal/require"
)

// An unlock gives up before its time only after the loss of the hold. The end of the lease alone does not suffice: Redis may have
// answered just before.
func TestUnlockWaitsForTheLossAtTheEndOfTheLease(t *testing.T) {
	c := startEngine(t, redistest.Dial(t, redistest.Shared(t)), silent{})
	name := redistest.Name(t)
	m := c.NewLock(name, kinds.Mutex, name, Terms{Lease: 2 * time.Millisecond})
	for range 200 {
		l, err := m.Lock(CallerNow(context.Background()))
		if errors.Is(err, errTestLost) {
			continue // a busy machine
		}
		require.NoError(t, err)
		over := time.Now().Add(time.Minute)
		for lost := false; !lost; {
			wait, _ := untilLost([]*Level{l}, over)
			lost = l.hold.LossSoFar() != nil
			require.True(t, wait > 0 || lost)
		}
		_ = l.Unlock()
	}
}

// Nothing knows a tenure after its unlock: a service that locks often would otherwise keep all those of the last lease in memory.
func TestNothingKeepsAReleasedTenure(t *testing.T) {
	c := startEngine(t, redistest.Dial(t, redistest.Shared(t)), silent{})
	name := redistest.Name(t)
	released := func() weak.Pointer[Tenure] {
		l, err := c.NewLock(name, kinds.Mutex, name, Terms{}).Lock(CallerNow(context.Background()))
		require.NoError(t, err)
		require.NoError(t, l.Unlock())
		return weak.Make(l.hold.tenure)
	}()
	redistest.Eventually(t, 5*time.Second, func() bool {
		runtime.GC()
		return released.Value() == nil
	}, "it is forgotten")
}
