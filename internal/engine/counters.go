package engine

import "context"

// Stats are the counters as users see them.
type Stats struct {
	Holds, Waiting, Idle                           int
	Acquired, HandOffs, Shared, Grants, Kept, Lost uint64
	Exported, Adopted                              uint64
}

// Stats returns the current counters.
func (c *Engine) Stats() Stats {
	s := &c.stats
	idle := 0
	if c.cache != nil {
		idle = c.cache.Kept()
	}
	return Stats{
		Holds: int(s.holds.Load()), Waiting: c.Hub.Waiting(), Idle: idle,
		Acquired: s.acquired.Load(), HandOffs: s.handOffs.Load(), Shared: s.shared.Load(), Grants: s.grants.Load(), Kept: s.kept.Load(),
		Lost: s.lost.Load(), Exported: s.exported.Load(), Adopted: s.adopted.Load(),
	}
}

// HoldBegins counts a hold. During Shutdown it reports false without counting, unless the hold is inside a section of that lock.
func (c *Engine) HoldBegins(inside bool) bool {
	c.stats.holds.Add(1)
	if !inside && c.IsShut() { // after the counting, so that Shutdown misses none
		c.HoldEnds()
		return false
	}
	c.stats.acquired.Add(1)
	return true
}

// HoldEnds ends the count of a hold after its last unlock.
func (c *Engine) HoldEnds() {
	if c.stats.holds.Add(-1) == 0 && c.IsShut() {
		c.emptied.Do(func() { close(c.empty) })
	}
}

// ReportLoss reports the loss of a hold, unless Close caused it. ctx is the section's.
func (c *Engine) ReportLoss(ctx context.Context, kind string, loss error) {
	c.stats.lost.Add(1)
	c.Options.Tell.Lost(ctx, kind, loss)
}
