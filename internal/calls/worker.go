package calls

import (
	"context"
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
	Seat                // of the caller
	Ended chan struct{} // a token when the call has ended, for the caller that has not left: then it calls Result, and no longer uses the worker

	calls *Calls
	next  chan work // closed at its end

	// Of the call under way.
	left   chan struct{} // closed when the caller has left
	state  atomic.Int32  // decides between the call's end and a caller that leaves
	slot   uint16
	behind bool // it counts as left behind from its start
	began  time.Time
	err    error
}

// A Seat is what the caller of a call waits with besides.
type Seat struct {
	// Told has room for a token, by which others may have the caller look again at what it waits for. It may come late, and reach the next
	// caller.
	Told  chan struct{}
	timer *time.Timer // nil: none was needed yet
}

// After is [time.After], of one time at once.
func (s *Seat) After(d time.Duration) <-chan time.Time {
	if s.timer == nil {
		s.timer = time.NewTimer(d)
	} else {
		s.timer.Reset(d)
	}
	return s.timer.C
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
	mu     sync.Mutex // guards the following; that of Calls is taken under it
	idle   []*Worker
	spare  int         // how many of them were idle all the time since the last trim
	trims  *time.Timer // runs trim; nil: none are idle
	closed bool
}

// Make has a call for a cluster slot made by a worker. Its caller may leave before the answer: when ctx is done, at limit if that is not
// zero, or on Close. Then Make returns at once with left true. The error is Close's, or says how Redis failed to answer; it is nil if there
// was no time for an answer. What comes of the call is for its RollBack. Make is called within a started call.
func (c *Calls) Make(ctx context.Context, slot uint16, limit time.Time, call Call) (left bool, err error) {
	began, done := time.Now(), ctx.Done() // it may panic
	behind, err := c.Admit(ctx, slot, limit)
	if err != nil {
		call.RollBack(err)
		return true, err
	}
	c.Also() // a caller's ctx does not end the call
	w := c.begin(work{call, slot, true}, behind, began)
	var over <-chan time.Time
	if !limit.IsZero() {
		over = w.After(time.Until(limit))
	}
	select { // whoever is first decides: the end of the call, or a caller that leaves
	case <-w.Ended:
		return false, w.Result()
	case <-done:
	case <-over:
	case <-c.done:
		err = c.errClosed
	}
	if !w.Leave() {
		return false, w.Result()
	}
	if err == nil {
		err = Silence(ctx, began, limit)
	}
	return true, err
}

// Silence returns the error about Redis for a caller that leaves a call when ctx is done or at limit, if that is not zero: ErrNoAnswer, or
// nil if there was no time for an answer.
func Silence(ctx context.Context, began, limit time.Time) error {
	if Waited(ctx, began, limit) < UnresponsiveAfter/2 {
		return nil
	}
	return ErrNoAnswer
}

// Waited returns how long such a caller has waited. If it is late, the machine stood still, which says nothing of Redis.
func Waited(ctx context.Context, began, limit time.Time) time.Duration {
	end := time.Now()
	if deadline, ok := ctx.Deadline(); ok {
		end = Earlier(end, deadline)
	}
	return Earlier(end, limit).Sub(began)
}

// Leavable is [Calls.Make] of f. rollBack, if not nil, gets f's result.
func Leavable[T any](
	ctx context.Context, c *Calls, slot uint16, limit time.Time, f func(left <-chan struct{}) (T, error), rollBack func(T, error),
) (value T, left bool, err error) {
	call := &leavable[T]{f: f, rollBack: rollBack}
	if left, err = c.Make(ctx, slot, limit, call); !left {
		value = call.value
	}
	return value, left, err
}

// leavable is the call of a function.
type leavable[T any] struct {
	f        func(left <-chan struct{}) (T, error)
	rollBack func(T, error)
	value    T
}

func (l *leavable[T]) Make(left <-chan struct{}) (err error) {
	l.value, err = l.f(left)
	return err
}

func (l *leavable[T]) RollBack(err error) {
	if l.rollBack != nil {
		l.rollBack(l.value, err)
	}
}

// Begin has a call for that slot made by a worker. The caller waits for Worker.Ended, or leaves. counted: it was counted by Start or Also,
// and calls Ended at its end.
func (c *Calls) Begin(slot uint16, call Call, counted bool) *Worker {
	return c.begin(work{call, slot, counted}, false, time.Now())
}

func (c *Calls) begin(first work, behind bool, began time.Time) *Worker {
	w := c.workers.take(c)
	w.slot, w.behind, w.began = first.slot, behind, began
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
			w.Ended <- struct{}{} // from here on it is the caller's
		} else {
			w.left = make(chan struct{})
			w.rest()
		}
	}
}

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
		w.calls.left.add(w.slot, w.began)
	}
	left := w.left // the worker makes another one at once
	if w.state.CompareAndSwap(underWay, isLeft) {
		close(left)
		return true
	}
	if <-w.Ended; !w.behind {
		w.calls.left.ended(w.slot, true, false)
	}
	return false
}

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
		Seat: Seat{Told: make(chan struct{}, 1)}, Ended: make(chan struct{}, 1), calls: c, next: make(chan work, 1), left: make(chan struct{}),
	}
	c.Go(w.work) // before its call ends, so that is before Wait
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
