package engine

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/internal/require"
)

// G1, G5: if a tenure is lost between two holds, the next Lock competes again, and the remains of the tenure are released.
func TestTenureLostOnItsWay(t *testing.T) {
	c, h, next := passing(t)
	lost, m := h.tenure, next.Lock
	lost.Gone()
	require.True(t, h.LossSoFar() == nil, "it had ended")

	_, err := next.enter(AcquireResult{How: Passed})
	require.True(t, err == ErrOver && next.Tenure == nil)
	require.Equal(t, 0, c.Stats().Holds)
	redistest.Eventually(t, 10*time.Second, func() bool {
		n, err := c.RDB.Do(context.Background(), c.RDB.B().Exists().Key(m.Key).Build()).AsInt64()
		return err == nil && n == 0
	}, "it is released")
}

// passing is a tenure on its way from an unlocked hold to a waiting Lock.
func passing(t *testing.T) (c *Engine, ended *Hold, next *Attempt) {
	t.Helper()
	c = startEngine(t, redistest.Dial(t, redistest.Shared(t)), silent{})
	name := redistest.Name(t)
	m := c.NewLock(name, kinds.Mutex, name, Terms{})
	l, err := m.Lock(CallerNow(context.Background()))
	require.NoError(t, err)
	_, last := l.Close()
	require.True(t, last && l.hold.Detach())
	c.HoldEnds()
	return c, l.hold, &Attempt{AcquireRequest: AcquireRequest{Caller: CallerNow(context.Background()), Lock: m, Tenure: l.hold.tenure, Count: 1}}
}

// G2, G9: if the Client closes while a tenure is being passed on, no hold begins and no loss is reported.
func TestCloseOnTheWay(t *testing.T) {
	c, _, next := passing(t)
	c.tellHolders()
	_, err := next.enter(AcquireResult{How: Passed})
	require.True(t, errors.Is(err, errTestClosed))
	require.Equal(t, 0, c.Stats().Holds)
}

// A re-entry into a hold that was passed on meanwhile competes instead. It does not report a loss, even if the tenure is already lost.
func TestReentryAfterPassingOn(t *testing.T) {
	c, ended, next := passing(t)
	_, err := next.enter(AcquireResult{How: Passed})
	require.NoError(t, err)
	require.True(t, ended.tenure.TryCallSlot())
	ended.tenure.Gone()
	require.Equal(t, uint64(1), c.Stats().Lost)
	err = next.Lock.awaitCalls(next.Caller, ended)
	require.True(t, err == ErrOver)
}
