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

// Latch is a count-down latch. Nobody holds it, so there is no tenure and no lease: it has the calls that change it (latch_line.go), and
// those that wait for it (latch_gate.go).
type Latch struct {
	counter
	of *Latches
}

// Latches are those of a Client.
type Latches struct {
	engine  *Engine
	numbers atomic.Uint64 // of calls

	mu    sync.Mutex            // guards the following and all that is reachable from it; no other lock is taken under it
	lines map[string]*latchLine // of those that a call is under way for in this process
	gates map[string]*latchGate // of those that somebody waits for
}

// NewLatches are those of the Client that the engine is of.
func NewLatches(c *Engine) *Latches { return &Latches{engine: c} }

// Latch is the latch with that key, which users call name.
func (all *Latches) Latch(key, name string) Latch {
	return Latch{counter{all.engine.NewSpec(key, kinds.Latch, name)}, all}
}

// Count is how often the latch is still to be counted down.
func (m Latch) Count(ctx context.Context) (int64, error) {
	n, err := query(ctx, m.Spec, func(ctx context.Context) (int64, error) { return lua.LatchCount(ctx, m.Engine.rdb, m.Key) })
	return max(n, 0), err
}

// begin is what each call for the latch does first. If it returns no error, the caller owes a Calls.Ended.
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
