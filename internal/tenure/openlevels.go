package tenure

import (
	"cmp"
	"slices"
	"time"
)

// openLevels are the holds and the open levels of a tenure, counted, so that none of them walks the others. A tenure has it from its second
// level on. All fields are guarded by tenure.mu.
type openLevels struct {
	count   int                   // of open levels
	renewed map[time.Duration]int // of those that a watchdog renews, by Lock.Watchdog
	holds   []*Hold               // in the order in which they began; those that have left have a count of 0
	live    int                   // of those that have not left
	depths  []int                 // numbers of holds, by their count
}

// severalNow is several before a second level opens. mu is held.
func (t *Tenure) severalNow() *openLevels {
	if t.callers == nil {
		t.callers = new(callers)
	}
	if t.callers.open == nil {
		o := &openLevels{renewed: make(map[time.Duration]int, 1), depths: make([]int, 1)}
		o.begins(t.hold)
		t.callers.open = o
	}
	return t.callers.open
}

// begins adds a hold, with its level; without one, if its last unlock has begun.
func (o *openLevels) begins(h *Hold) {
	o.holds = append(o.holds, h)
	o.moves(0, h.count)
	if h.levels != nil {
		o.opens(h.levels)
	}
}

// moves notes that the count of a hold changes.
func (o *openLevels) moves(from, to int32) {
	if from == 0 {
		o.live++
	} else {
		o.depths[from]--
	}
	if to == 0 {
		o.live--
	} else {
		for int(to) >= len(o.depths) {
			o.depths = append(o.depths, 0)
		}
		o.depths[to]++
	}
	for last := len(o.depths) - 1; last > 0 && o.depths[last] == 0; last-- {
		o.depths = o.depths[:last]
	}
}

// most returns the count of the deepest hold; 0: all have left.
func (o *openLevels) most() int32 { return int32(len(o.depths)) - 1 }

// last returns the last of the holds that have not left, or nil. It forgets most of those that have.
func (o *openLevels) last() *Hold {
	if len(o.holds) > 2*o.live {
		o.holds = slices.DeleteFunc(o.holds, func(h *Hold) bool { return h.count == 0 })
	}
	for i, h := range slices.Backward(o.holds) {
		if h.count > 0 {
			return h
		}
		o.holds[i], o.holds = nil, o.holds[:i]
	}
	return nil
}

func (o *openLevels) opens(l *Level) {
	o.count++
	if l.lock.Lease == 0 {
		o.renewed[l.lock.Watchdog]++
	}
}

func (o *openLevels) closes(l *Level) {
	o.count--
	if w := l.lock.Watchdog; l.lock.Lease > 0 {
		return
	} else if o.renewed[w]--; o.renewed[w] == 0 {
		delete(o.renewed, w)
	}
}

// renewedFor returns the longest lease to which the watchdog of c renews a level; 0: none is renewed.
func (o *openLevels) renewedFor(c *Client) (ttl time.Duration) {
	for w := range o.renewed {
		ttl = max(ttl, cmp.Or(w, c.Options.WatchdogTimeout))
	}
	return ttl
}

// leaves takes a hold off a tenure on which others stand, or soon will. mu is held.
func (h *Hold) leaves() {
	h.setCount(0)
	h.tenure.hold = nil
	if o := h.tenure.several(); o != nil {
		h.tenure.hold = o.last()
	}
}

// holds yields the holds, the last one first. mu is held.
func (t *Tenure) holds(yield func(*Hold) bool) {
	o := t.several()
	if o == nil {
		if t.hold != nil {
			yield(t.hold)
		}
		return
	}
	for _, h := range slices.Backward(o.holds) {
		if h.count > 0 && !yield(h) {
			return
		}
	}
}
