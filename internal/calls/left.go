package calls

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxLeft bounds the calls whose callers have left while Redis is silent, and so the goroutines and unresolved results. One would be
	// enough to notice that Redis answers again; more keep a few slow connections from delaying the others.
	maxLeft = 16

	// maxLeftSomewhere bounds them over all slots of a cluster, where only some nodes may be silent: beyond it a silent slot has one such
	// call, and no probes.
	maxLeftSomewhere = 512

	// probeEvery is how often one more call starts as a probe while Redis is silent: it may use a healthy connection.
	probeEvery = 500 * time.Millisecond
)

// left counts the calls whose callers have left, per cluster slot, because one node may be silent and the others healthy. With too many
// of them and Redis silent, a new call starts only when one ends, or as a probe, and counts from its start.
type left struct {
	mu    sync.Mutex           // guards the following, and all slots
	slots map[uint16]*leftSlot // those with calls left behind; without a cluster there is one
	total int
	many  atomic.Int32 // total, for a look without mu
}

type leftSlot struct {
	count    int
	sent     time.Time     // when the first of them began
	began    time.Time     // when it left
	answered time.Time     // when Redis answered a call last
	probed   time.Time     // when a call was started though there were too many, or the first of them left
	change   chan struct{} // closed when count falls or Redis answers; nil until somebody waits for that
}

// admission says whether a call may start, or what to wait for.
type admission struct {
	counted bool            // it may, and counts
	change  <-chan struct{} // nil: it may
	atMost  time.Duration   // then to ask again
}

// admit decides whether a call may start. A call that has waited counts from its start.
func (l *left) admit(slot uint16, waited bool) admission {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.slots[slot]
	most, probes := maxLeft, true
	if l.total >= maxLeftSomewhere {
		most, probes = 1, false
	}
	if s != nil && s.count >= most && time.Since(s.answered) > UnresponsiveAfter {
		now := time.Now()
		wait := probeEvery - now.Sub(s.probed)
		if !probes {
			wait = probeEvery
		}
		if wait > 0 {
			if s.change == nil {
				s.change = make(chan struct{})
			}
			return admission{change: s.change, atMost: wait}
		}
		s.probed, waited = now, true
	}
	if waited {
		l.count(slot, time.Now())
	}
	return admission{counted: waited}
}

// CanLeave reports whether a caller may leave a call before its end.
func CanLeave(ctx context.Context, limit time.Time) bool { return ctx.Done() != nil || !limit.IsZero() }

// Admit waits until a call may start, for a caller that may leave when ctx is done, at limit if that is not zero, or on Close. behind: it
// counts as left behind from its start; if it is not made by [Calls.Make], until LeftEnds.
func (c *Calls) Admit(ctx context.Context, slot uint16, limit time.Time) (behind bool, err error) {
	if !c.AnyLeft() || !CanLeave(ctx, limit) {
		return false, nil
	}
	over, stop := At(limit)
	defer stop()
	return c.admit(ctx, slot, over)
}

// admit waits until a call may start, and reports whether it counts as left behind from its start. The error is for a caller that left
// first.
func (c *Calls) admit(ctx context.Context, slot uint16, over <-chan time.Time) (counted bool, err error) {
	for waited := false; ; waited = true {
		w := c.left.admit(slot, waited)
		if w.change == nil {
			return w.counted, nil
		}
		again := time.NewTimer(w.atMost)
		select {
		case <-w.change:
		case <-again.C:
		case <-ctx.Done():
			err = ErrSilent
		case <-over:
			err = ErrSilent
		case <-c.done:
			err = c.errClosed
		}
		again.Stop()
		if err != nil {
			return false, err
		}
	}
}

func (l *left) add(slot uint16, began time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count(slot, began)
}

func (l *left) count(slot uint16, began time.Time) {
	if l.slots == nil {
		l.slots = make(map[uint16]*leftSlot)
	}
	s := l.slots[slot]
	if s == nil {
		now := time.Now()
		s = &leftSlot{sent: began, began: now, probed: now}
		l.slots[slot] = s
	}
	s.count++
	l.total++
	l.many.Store(int32(l.total))
}

// ended records the end of a call, whether it counted, and whether Redis answered it.
func (l *left) ended(slot uint16, counted, answered bool) {
	if !counted && (!answered || l.many.Load() == 0) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.slots[slot]
	if s == nil {
		return // it did not count
	}
	if counted {
		s.count--
		l.total--
		l.many.Store(int32(l.total))
	}
	if answered {
		s.answered = time.Now()
	}
	if s.change != nil {
		close(s.change)
		s.change = nil
	}
	if s.count == 0 {
		delete(l.slots, slot)
	}
}

// AnyLeft reports whether any call left behind is still running.
func (c *Calls) AnyLeft() bool { return c.left.many.Load() > 0 }

// Leave counts a call for that slot, made without [Calls.Make], whose caller has left. LeftEnds ends it; Answered records whether Redis
// answered.
func (c *Calls) Leave(slot uint16) { c.left.add(slot, time.Now()) }

// LeftEnds ends a call counted by Leave.
func (c *Calls) LeftEnds(slot uint16) { c.left.ended(slot, true, false) }

// Answered records the result of a call for that slot: unless err is transient, Redis has answered.
func (c *Calls) Answered(slot uint16, err error) {
	if c.AnyLeft() && (err == nil || !IsTransient(err)) {
		c.left.ended(slot, false, true)
	}
}

// IsUnanswered reports whether a call for that slot that began long enough ago to say so was left behind, and none was answered since then.
// IsSilent allows it more time, from when it was left.
func (c *Calls) IsUnanswered(slot uint16) bool {
	c.left.mu.Lock()
	defer c.left.mu.Unlock()
	s := c.left.slots[slot]
	return s != nil && time.Since(s.sent) >= UnresponsiveAfter/2 && time.Since(s.answered) >= UnresponsiveAfter/2
}

// IsSilent reports whether a call for that slot was left behind and none was answered for a while.
func (c *Calls) IsSilent(slot uint16) bool {
	c.left.mu.Lock()
	defer c.left.mu.Unlock()
	s := c.left.slots[slot]
	return s != nil && time.Since(s.began) >= UnresponsiveAfter && time.Since(s.answered) >= UnresponsiveAfter
}
