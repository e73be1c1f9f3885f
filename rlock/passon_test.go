package rlock

import (
	"context"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/internal/require"
)

// G1, G5: a tenure that is lost on its way from one hold to the next is no use to that one, which competes again, and what is left of it is
// released.
func TestTenureLostOnItsWay(t *testing.T) {
	rdb := redistest.Dial(t, redistest.Shared(t))
	c, err := New(rdb, Options{})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	m := c.Mutex(redistest.Name(t))
	ctx, _, err := m.Lock(context.Background())
	require.NoError(t, err)
	l := levelOf(ctx)
	h, lost := l.hold, l.hold.tenure
	_, last := l.close()
	require.True(t, last && h.detach())
	c.holdEnds()
	lost.gone()
	require.True(t, h.lossSoFar() == nil, "it had ended")

	next := &locking{question: question{caller: callerNow(context.Background()), mutex: m, tenure: lost, count: 1}}
	_, err = next.enter(answer{})
	require.True(t, err == errOver && next.tenure == nil)
	require.Equal(t, 0, c.Stats().Holds)
	redistest.Eventually(t, 10*time.Second, func() bool {
		n, err := rdb.Do(context.Background(), rdb.B().Exists().Key(m.key).Build()).AsInt64()
		return err == nil && n == 0
	}, "it is released")
}
