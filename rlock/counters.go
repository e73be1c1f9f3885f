package rlock

import (
	"context"
	"sync/atomic"
)

// counters are what the figures are made of.
type counters struct {
	holds                                    atomic.Int64
	acquired, handOffs, shared, grants, lost atomic.Uint64
}

// figures are what users see of the counters.
type figures struct {
	Holds, Waiting                           int
	Acquired, HandOffs, Shared, Grants, Lost uint64
}

// figures are the counters now.
func (c *engine) figures() figures {
	s := &c.stats
	return figures{
		Holds: int(s.holds.Load()), Waiting: c.hub.Waiting(),
		Acquired: s.acquired.Load(), HandOffs: s.handOffs.Load(), Shared: s.shared.Load(), Grants: s.grants.Load(), Lost: s.lost.Load(),
	}
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

// lost tells of the loss of a hold, unless that is the end of the engine. ctx is that of its section.
func (c *engine) lost(ctx context.Context, kind string, loss error) {
	c.stats.lost.Add(1)
	c.options.Tell.Lost(ctx, kind, loss)
}
