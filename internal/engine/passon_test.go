package engine

import (
	"context"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/internal/tenure"
	"github.com/go-rlock/rlock/internal/testing/enginetest"
	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
)

// G1, G5: if a tenure is lost between two holds, the next Lock competes again, and the remains of the tenure are released.
func TestTenureLostOnItsWay(t *testing.T) {
	c, h, next := passing(t)
	lost, m := h.Tenure, next.Lock
	lost.Gone()
	require.True(t, h.LossSoFar() == nil, "it had ended")

	require.True(t, next.enter(tenure.AcquireResult{Path: tenure.Passed}).IsOver() && next.Tenure == nil)
	require.Equal(t, 0, c.Stats().Holds)
	redistest.Eventually(t, 10*time.Second, func() bool {
		n, err := c.RDB.Do(context.Background(), c.RDB.B().Exists().Key(m.Key).Build()).AsInt64()
		return err == nil && n == 0
	}, "it is released")
}

// passing is a tenure on its way from an unlocked hold to a waiting Lock.
func passing(t *testing.T) (c *tenure.Client, ended *tenure.Hold, next *Attempt) {
	t.Helper()
	c = enginetest.Start(t, redistest.Dial(t, redistest.Shared(t)))
	name := redistest.Name(t)
	m := c.NewLock(name, kinds.Mutex, name, tenure.Terms{})
	l, err := Lock(m, tenure.CallerNow(context.Background()))
	require.NoError(t, err)
	_, last := l.Close()
	require.True(t, last && l.Hold.Unlink())
	c.HoldEnds()
	return c, l.Hold, &Attempt{AcquireRequest: AcquireRequest{Caller: tenure.CallerNow(context.Background()), Lock: m, Tenure: l.Hold.Tenure, Count: 1}}
}

// G2, G9: if the Client closes while a tenure is being passed on, no hold begins and no loss is reported.
func TestCloseOnTheWay(t *testing.T) {
	c, _, next := passing(t)
	go c.Close() // ends with the test
	redistest.Eventually(t, 5*time.Second, c.IsTold, "Close has begun to cancel holds")
	require.ErrorIs(t, next.enter(tenure.AcquireResult{Path: tenure.Passed}).Err, enginetest.ErrClosed)
	require.Equal(t, 0, c.Stats().Holds)
}

// A re-entry into a hold that was passed on meanwhile competes instead. It does not report a loss, even if the tenure is already lost.
func TestReentryAfterPassingOn(t *testing.T) {
	c, ended, next := passing(t)
	require.NoError(t, next.enter(tenure.AcquireResult{Path: tenure.Passed}).Err)
	require.True(t, ended.Tenure.TryCallSlot())
	ended.Tenure.Gone()
	require.Equal(t, uint64(1), c.Stats().Lost)
	ok, err := takeCalls(next.Lock, next.Caller, ended)
	require.NoError(t, err)
	require.False(t, ok)
}
