package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/lua"
)

// Latch is a count-down latch. It has no holder, and so no tenure and no lease, only calls that change it (latch_line.go) and waiters
// (latch_gate.go).
type Latch struct {
	counter
	of *Latches
}

// Latches are a Client's latches.
type Latches struct {
	engine  *Engine
	numbers atomic.Uint64 // of calls

	mu    sync.Mutex            // guards the following and everything reachable from it; no other lock is taken under it
	lines map[string]*latchLine // of latches with a call under way in this process
	gates map[string]*latchGate // of latches with waiters
}

// NewLatches returns the latches of the engine's Client.
func NewLatches(c *Engine) *Latches { return &Latches{engine: c} }

// Latch returns the latch with that key. name is the user's name for it.
func (all *Latches) Latch(key, name string) Latch {
	return Latch{counter{all.engine.NewSpec(key, kinds.Latch, name)}, all}
}

// Count returns how many count-downs are left.
func (m Latch) Count(ctx context.Context) (int64, error) {
	n, err := query(ctx, m.Spec, func(ctx context.Context) (int64, error) { return lua.LatchCount(ctx, m.Engine.rdb, m.Key) })
	return max(n, 0), err
}

// begin starts a call for the latch. If it returns no error, the caller must call Calls.Ended.
func (m Latch) begin(ctx context.Context, limit time.Time) error {
	return m.counter.begin(ctx, limit, m.fits())
}

// fits reports an error for a latch that a cluster cannot have.
func (m Latch) fits() error {
	if c := m.Engine; c.Cluster == nil || c.slot(m.queue) == c.slot(m.Key) {
		return nil
	}
	return errors.New("on a cluster the name of a latch may have no braces: Redisson puts it in braces, as in " +
		fmt.Sprintf("%q, for its channel, which would be in another slot than the latch", m.channel))
}
