package rlock

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// A Lock whose ctx can be cancelled asks Redis on a goroutine of its own, and returns when ctx is done, since no
// ctx ends a call on a connection that rueidis uses for one call at a time, nor the wait for one that it dials. The two switches
// take longer than a Redis nearby takes to answer. So while it answers promptly, a Lock asks on
// its caller's goroutine, for a moment; if there is no answer by then, the goroutine asks again.

const (
	// prompt is an answer for which the two switches count.
	prompt = 10 * time.Millisecond
	// A pulse is steady after so many prompt answers, none of them longer than pulseGap after the one before.
	pulseBeats = 8
	pulseGap   = 100 * time.Millisecond
	// moment is how long a Lock waits on its caller's goroutine. It is long enough for a server or a process that
	// stutters: rueidis closes a connection on which there is no answer by then, and fails what others have sent on it.
	moment = time.Second
)

// pulse tells whether Redis has answered promptly of late.
type pulse struct {
	born  time.Time
	last  atomic.Int64 // the last prompt answer, in nanoseconds since born
	beats atomic.Int32 // up to pulseBeats
}

// beat notes what came of a call that was sent then. What Redis refuses for good is an answer, too.
func (p *pulse) beat(sent time.Time, err error) {
	now := time.Now()
	if now.Sub(sent) > prompt || err != nil && mayPass(err) {
		p.beats.Store(0)
		return
	}
	at := now.Sub(p.born)
	gap := at - time.Duration(p.last.Load())
	switch {
	case gap > pulseGap:
		p.beats.Store(1)
	case p.beats.Load() < pulseBeats:
		p.beats.Add(1)
	}
	if gap > pulseGap/100 { // not each time: all cores share it
		p.last.Store(int64(at))
	}
}

func (p *pulse) isSteady(now time.Time) bool {
	return p.beats.Load() >= pulseBeats && now.Sub(p.born)-time.Duration(p.last.Load()) <= pulseGap
}

// mayAskHere reports whether a Lock may ask on its caller's goroutine though its ctx can be cancelled, or its attempt has an
// end. The nodes of a cluster have one pulse, and one that can not be reached would not be noticed among the others.
func (c *Client) mayAskHere(ctx context.Context, end, now time.Time) bool {
	if c.cluster != nil || c.options.Replicas > 0 || !c.pulse.isSteady(now) || !end.IsZero() && end.Sub(now) <= moment {
		return false
	}
	deadline, ok := ctx.Deadline()
	return !ok || deadline.Sub(now) > moment
}

// brief makes the contexts of calls that end after one to two moments. A timer for each call would cost more than the
// call saves, so those that begin within a moment share one.
type brief struct {
	window atomic.Pointer[window] // the newest

	mu    sync.Mutex // guards the following, and who makes a window
	older *window    // the one before; those before that have ended
}

type window struct {
	until time.Time
	ended chan struct{}
	timer *time.Timer
}

// call is the context of a call that is sent now.
func (b *brief) call(now time.Time) context.Context {
	w := b.window.Load()
	if w == nil || w.until.Sub(now) < moment {
		w = b.next(now)
	}
	return &callContext{deadline: now.Add(moment), done: w.ended}
}

func (b *brief) next(now time.Time) *window {
	b.mu.Lock()
	defer b.mu.Unlock()
	w := b.window.Load()
	if w != nil && w.until.Sub(now) >= moment {
		return w
	}
	b.older = w
	w = &window{until: now.Add(2 * moment), ended: make(chan struct{})}
	w.timer = time.AfterFunc(2*moment, func() { close(w.ended) })
	b.window.Store(w)
	return w
}

// stop ends the timers when there are no calls any more.
func (b *brief) stop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, w := range []*window{b.older, b.window.Load()} {
		if w != nil {
			w.timer.Stop()
		}
	}
}
