package rlock

import (
	"context"
	"sync/atomic"
)

// How many holds an engine has, and its end.

// counters are what the Stats are made of.
type counters struct {
	holds                                    atomic.Int64
	acquired, handOffs, shared, grants, lost atomic.Uint64
}

// holdBegins counts a hold. It reports false, and has not counted, if the Client is being shut down, unless it is in a section of
// that lock.
func (c *engine) holdBegins(inside bool) bool {
	c.stats.holds.Add(1)
	if !inside && c.isShut() { // after the counting, so that Shutdown misses none
		c.holdEnds()
		return false
	}
	c.stats.acquired.Add(1)
	return true
}

// holdEnds is the end of a hold with its last unlock.
func (c *engine) holdEnds() {
	if c.stats.holds.Add(-1) == 0 && c.isShut() {
		c.emptied.Do(func() { close(c.empty) })
	}
}

// lost tells of the loss of a hold. ctx is that of its section.
func (c *engine) lost(ctx context.Context, kind string, e *LostError) {
	if e.Reason == LostClosed {
		return
	}
	c.stats.lost.Add(1)
	c.tellers.lost(ctx, kind, e)
}

// awaitEmpty waits until all sections have unlocked, or the Client is closed by somebody else.
func (c *engine) awaitEmpty(ctx context.Context) error {
	select {
	case <-c.empty:
		return nil
	case <-c.calls.Done():
		return nil
	default:
	}
	select {
	case <-c.empty:
	case <-c.calls.Done():
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// tellHolders ends the contexts of all sections, and the renewals.
func (c *engine) tellHolders() {
	c.telling.Do(func() { close(c.holdersCancelled) })
	c.leases.Shut()
}

// isTold reports whether the holders have been told, or are being told.
func (c *engine) isTold() bool {
	select {
	case <-c.holdersCancelled:
		return true
	default:
		return false
	}
}

// isShut reports whether no new hold may begin but within a section.
func (c *engine) isShut() bool {
	select {
	case <-c.shut:
		return true
	default:
		return false
	}
}
