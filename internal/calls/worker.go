package calls

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A caller may leave a call under way, which continues without it. So a worker, on another goroutine, makes each call. This file keeps
// workers for later calls, and decides which came first, the end of a call or its caller's leaving: then the worker rolls back.

// A Call is made for a caller that may leave before its end.
type Call interface {
	// Make makes the call, and keeps its result. left is closed when the caller has left.
	Make(left <-chan struct{}) error
	// RollBack is called in place of the caller, who has left. The error is that of Make, on the same goroutine; or Make was not called,
	// and RollBack, on the caller's goroutine, must not block.
	RollBack(err error)
}

// A Worker makes calls, one after the other, on a goroutine whose stack has grown already: that of a new one grows several times on the way
// through the client of Redis, which takes longer than the switch to another goroutine. It belongs to the caller of its call until that has
// the result, or has left.
type Worker struct {
	calls *Calls
	next  chan work     // closed at its end
	ended chan struct{} // a token when the call has ended, for the caller that has not left
	told  chan struct{} // for a token from others
	timer *time.Timer   // of the caller; nil: none was needed yet

	// Of the call under way.
	left   chan struct{} // closed when the caller has left
	state  atomic.Int32  // decides between the call's end and a caller that leaves
	slot   uint16
	behind bool // it counts as left behind from its start
	err    error
}

type work struct {
	call    Call
	slot    uint16
	counted bool // by Start or Also
}

const (
	underWay int32 = iota
	hasEnded
	isLeft
)

const (
	maxIdle = 64          // bounds a Client's workers without a call
	idleFor = time.Second // how long one stays at least; at most twice that
)

// workers are those without a call. They end when there were enough others for a while, and with Close.
type workers struct {
	mu     sync.Mutex // guards the following
	idle   []*Worker
	spare  int         // how many of them were idle all the time since the last trim
	trims  *time.Timer // runs trim; nil: none are idle
	closed bool
}

// Begin has a call for that slot made by a worker. The caller waits for [Worker.Ended], or leaves. counted: it was counted by Start or Also,
// and calls Ended at its end.
func (c *Calls) Begin(slot uint16, call Call, counted bool) *Worker {
	return c.begin(work{call, slot, counted}, false)
}

func (c *Calls) begin(first work, behind bool) *Worker {
	w := c.workers.take(c)
	w.slot, w.behind = first.slot, behind
	w.next <- first
	return w
}

// work ends when next is closed: by Close, or if there have been enough workers without a call.
func (w *Worker) work() {
	for next := range w.next {
		err := next.call.Make(w.left)
		answered := err == nil || !errors.Is(err, ErrNoAnswer) && !IsTransient(err) // the first spares most unlocks an allocation
		w.err = err
		waits := w.state.CompareAndSwap(underWay, hasEnded)
		if !waits {
			next.call.RollBack(err)
		}
		w.calls.left.ended(next.slot, w.behind || !waits, answered)
		if next.counted {
			w.calls.Ended()
		}
		if waits {
			w.ended <- struct{}{} // from here on it is the caller's
		} else {
			w.left = make(chan struct{})
			w.rest()
		}
	}
}

// Ended delivers once when the call has ended. Then the caller calls Result, and no longer uses the worker.
func (w *Worker) Ended() <-chan struct{} { return w.ended }

// Result returns the error of a call that has ended.
func (w *Worker) Result() error {
	err := w.err
	w.rest()
	return err
}

// Leave is for a caller that does not wait for the end of the call, which then counts as left behind. It reports false if the call has ended:
// then the caller gets its result.
func (w *Worker) Leave() bool {
	if !w.behind {
		w.calls.left.add(w.slot)
	}
	left := w.left // the worker makes another one at once
	if w.state.CompareAndSwap(underWay, isLeft) {
		close(left)
		return true
	}
	if <-w.ended; !w.behind {
		w.calls.left.ended(w.slot, true, false)
	}
	return false
}

// After is time.After for the caller, one at a time.
func (w *Worker) After(d time.Duration) <-chan time.Time {
	if w.timer == nil {
		w.timer = time.NewTimer(d)
	} else {
		w.timer.Reset(d)
	}
	return w.timer.C
}

// Told returns a channel with room for a token, by which others may have the caller look again at what it waits for. It may come late, and
// reach the next caller.
func (w *Worker) Told() chan struct{} { return w.told }

// take returns a worker without a call.
func (all *workers) take(c *Calls) *Worker {
	all.mu.Lock()
	defer all.mu.Unlock()
	if n := len(all.idle); n > 0 {
		w := all.idle[n-1] // its stack is in the cache
		all.idle[n-1], all.idle = nil, all.idle[:n-1]
		all.spare = min(all.spare, n-1)
		return w
	}
	w := &Worker{
		calls: c, next: make(chan work, 1), ended: make(chan struct{}, 1), told: make(chan struct{}, 1), left: make(chan struct{}),
	}
	if all.closed {
		go w.work() // ends with its call
	} else {
		c.Go(w.work) // before its call ends, so that is before Wait
	}
	return w
}

// rest ends the caller's or the worker's own use of a worker whose call has ended.
func (w *Worker) rest() {
	if w.timer != nil {
		w.timer.Stop()
	}
	w.err = nil
	w.state.Store(underWay)
	all := &w.calls.workers
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.closed || len(all.idle) >= maxIdle {
		close(w.next)
		return
	}
	all.idle = append(all.idle, w)
	if all.trims == nil {
		all.trims = time.AfterFunc(idleFor, all.trim)
	}
}

// trim ends the workers that nobody has needed for a while.
func (all *workers) trim() {
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.closed {
		return
	}
	all.end(all.spare)
	if all.spare = len(all.idle); all.spare == 0 {
		all.trims = nil
		return
	}
	all.trims.Reset(idleFor)
}

// end ends the n workers that were used the longest time ago. mu is held.
func (all *workers) end(n int) {
	for _, w := range all.idle[:n] {
		close(w.next)
	}
	all.idle = slices.Delete(all.idle, 0, n)
}

// close ends the workers without a call. The others end with their call.
func (all *workers) close() {
	all.mu.Lock()
	defer all.mu.Unlock()
	all.closed = true
	all.end(len(all.idle))
	if all.trims != nil {
		all.trims.Stop()
	}
}
