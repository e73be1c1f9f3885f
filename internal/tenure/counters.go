package tenure

import "context"

// Stats are the counters as users see them.
type Stats struct {
	Holds, Waiting, Idle                           int
	Acquired, HandOffs, Shared, Grants, Kept, Lost uint64
	Exported, Adopted                              uint64
}

// Stats returns the current counters.
func (c *Engine) Stats() Stats {
	s := &c.Counts
	idle := 0
	if c.Cache != nil {
		idle = c.Cache.Kept()
	}
	return Stats{
		Holds: int(s.holds.Load()), Waiting: c.Hub.Waiting(), Idle: idle,
		Acquired: s.acquired.Load(), HandOffs: s.HandOffs.Load(), Shared: s.Shared.Load(), Grants: s.Grants.Load(), Kept: s.Kept.Load(),
		Lost: s.lost.Load(), Exported: s.Exported.Load(), Adopted: s.Adopted.Load(),
	}
}

// HoldBegins counts a hold. During Shutdown it reports false without counting, unless the hold is inside a section of that lock.
func (c *Engine) HoldBegins(inside bool) bool {
	c.Counts.holds.Add(1)
	if !inside && c.IsShut() { // after the counting, so that Shutdown misses none
		c.HoldEnds()
		return false
	}
	c.Counts.acquired.Add(1)
	return true
}

// HoldEnds ends the count of a hold after its last unlock.
func (c *Engine) HoldEnds() {
	if c.Counts.holds.Add(-1) == 0 && c.IsShut() {
		c.emptied.Do(func() { close(c.empty) })
	}
}

// ReportLoss reports the loss of a hold, unless Close caused it. ctx is the section's.
func (c *Engine) ReportLoss(ctx context.Context, kind string, loss error) {
	c.Counts.lost.Add(1)
	c.Options.Tell.Lost(ctx, kind, loss)
}
