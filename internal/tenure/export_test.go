package tenure

import "time"

// Counted is what a tenure says of its levels.
type Counted struct {
	Levels  bool
	Count   int32
	Renewed time.Duration
	Last    *Hold
	Depths  map[*Hold]int32
}

// CountedOf returns that.
func CountedOf(t *Tenure) (c Counted) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c.Levels, c.Count = t.open()
	c.Renewed, c.Last, c.Depths = t.renewed(), t.hold, make(map[*Hold]int32)
	for h := range t.holds {
		c.Depths[h] = h.count
	}
	return c
}
