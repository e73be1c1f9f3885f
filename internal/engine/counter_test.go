package engine

import (
	"context"
	"errors"
	"testing"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/internal/require"
	"github.com/go-rlock/rlock/lua"
)

// A waiter may arrive after the pool decided to call outside the hub. If that call is refused, the pool asks again inside the hub: an
// earlier message would have had no receiver.
func TestPoolAsksAgainInTheHub(t *testing.T) {
	c := startEngine(t, redistest.Dial(t, redistest.Shared(t)), silent{})
	name := redistest.Name(t)
	p := &pool{m: NewSemaphores(c).Semaphore(name, name), more: make(chan struct{}, 1)}
	p.add(context.Background(), lua.Add, 1)
	wait, ask := p.wants()
	require.True(t, !wait && ask)
	p.waiters = []*permitWaiter{{n: 5, ctx: context.Background(), refused: make(chan struct{}), ended: make(chan struct{})}}
	p.call()
	require.True(t, len(p.changes) == 0 && p.waiters[0].seen, "both were in the call")
	wait, ask = p.wants()
	require.True(t, wait && ask)
}

// Calls left over from an outage have already failed for their callers. A later Release gets the result of its own call.
func TestCountersAfterAnOutage(t *testing.T) {
	failed := errors.New("no answer")
	p := &pool{more: make(chan struct{}, 1), failing: failed}
	left := p.add(context.Background(), lua.Add, 1)
	left.end(0, failed, false)
	require.True(t, p.add(context.Background(), lua.Add, 1) == left && left.n == 2, "during the outage")
	p.failing = nil
	next := p.add(context.Background(), lua.Add, 1)
	require.True(t, next != left && !next.over)

	c := startEngine(t, redistest.Dial(t, redistest.Shared(t)), silent{})
	name := redistest.Name(t)
	m := NewLatches(c).Latch(name, name)
	old := &latchCall{change: latchDown, n: 1, ended: make(chan struct{})}
	old.end(false, failed, false)
	m.of.lines = map[string]*latchLine{m.Key: {m: m, calls: []*latchCall{{change: latchDown, n: 1, sent: true}, old}}}
	call, err := m.enter(context.Background(), latchDown, 1, false)
	require.NoError(t, err)
	require.True(t, call != old && !call.over && old.n == 1)
}
