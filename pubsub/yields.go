package pubsub

import (
	"maps"
	"time"
)

// yields are the locks that this process has lately left to listeners out of line, with or without a topic.
type yields struct {
	of   map[Queue]yield
	most int // before those that are over are forgotten
}

type yield struct {
	until time.Time // who comes next here asks then
	again time.Time // the next one may begin then
}

// begin makes who comes next here let others ask first, for d, unless the last time was a moment ago.
func (y *yields) begin(q Queue, d time.Duration) {
	now := time.Now()
	if now.Before(y.of[q].again) {
		return
	}
	if len(y.of) >= y.most {
		maps.DeleteFunc(y.of, func(_ Queue, over yield) bool { return !now.Before(over.again) })
		y.most = max(64, 2*len(y.of))
	}
	if y.of == nil {
		y.of = make(map[Queue]yield)
	}
	y.of[q] = yield{now.Add(d), now.Add(again)}
}

// left returns how long the next waiter of q, which nobody else waits for here, lets others ask first.
func (y *yields) left(q Queue) time.Duration {
	if len(y.of) == 0 {
		return 0
	}
	return max(0, time.Until(y.of[q].until))
}
