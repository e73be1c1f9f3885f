package pubsub

import (
	"maps"
	"time"
)

// yields are the locks that this process has lately left to listeners out of line.
type yields struct {
	of   map[Queue]yield
	most int // before those that are over are forgotten
}

type yield struct {
	until time.Time // who comes next here asks then
	again time.Time // the next one may begin then
}

// Yield is for a holder whose release has told listeners out of line. If nobody waits here, who comes next lets them
// ask first.
func (h *Hub) Yield(q Queue) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	y := &h.yields
	if t := h.topics[q]; t != nil && !q.Shared {
		t.lead = 0
	}
	if h.Aside == 0 || now.Before(y.of[q].again) {
		return
	}
	if len(y.of) >= y.most {
		maps.DeleteFunc(y.of, func(_ Queue, over yield) bool { return !now.Before(over.again) })
		y.most = max(64, 2*len(y.of))
	}
	if y.of == nil {
		y.of = make(map[Queue]yield)
	}
	y.of[q] = yield{now.Add(2 * h.Aside), now.Add(again)}
}

// left returns how long the next waiter of q, which nobody else waits for here, lets others ask first.
func (y *yields) left(w *Waiter, q Queue) time.Duration {
	if len(y.of) == 0 || w.Shared || w.Ahead {
		return 0
	}
	left := max(0, time.Until(y.of[q].until))
	if w.hurries(left) {
		return 0
	}
	return left
}
