// Package calls sends commands to Redis. Callers may leave before the answer, transient errors are retried, and the number of calls
// left behind while Redis is silent is bounded. The package interprets errors of commands, and knows nothing of locks.
package calls

import (
	"context"
	"sync"
	"time"

	"github.com/redis/rueidis"
)

const (
	// Timeout bounds a command on a dedicated connection; rueidis then closes the connection. On a shared connection a command ends when
	// rueidis notices the silence, by default after 11 s.
	Timeout = 3 * time.Second

	// UnresponsiveAfter is the time without any answer after which Redis counts as silent.
	UnresponsiveAfter = 100 * time.Millisecond
)

// Calls are a Client's calls and background goroutines in progress. Its methods are safe for concurrent use.
type Calls struct {
	errClosed error
	repeats   bool          // rueidis may send a command again by itself, see mayRepeat
	done      chan struct{} // closed by Close at once: callers return
	stopped   chan struct{} // closed by Stop: commands under way are given up
	left      left
	workers   workers

	mu      sync.Mutex // guards the following
	closed  bool
	running int
	ended   chan struct{} // made by Wait, closed when nothing is running
}

// New returns the Calls of a Client of rdb. A call that ends because the Client is closed fails with errClosed.
func New(rdb rueidis.Client, errClosed error) *Calls {
	return &Calls{errClosed: errClosed, repeats: mayRepeat(rdb), done: make(chan struct{}), stopped: make(chan struct{})}
}

// Start counts a call or goroutine for Wait, which must call Ended at its end. Start reports false after Close.
func (c *Calls) Start() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.running++
	return true
}

// Also counts one more within a started call, even after Close.
func (c *Calls) Also() {
	c.mu.Lock()
	c.running++
	c.mu.Unlock()
}

// Ended ends a call counted by Start or Also.
func (c *Calls) Ended() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running--; c.running == 0 && c.ended != nil {
		close(c.ended)
		c.ended = nil
	}
}

// Go runs f on a goroutine, within a started call, even after Close. Wait waits for it.
func (c *Calls) Go(f func()) {
	c.Also()
	c.run(f)
}

// run runs f, which has been counted, on a goroutine.
func (c *Calls) run(f func()) {
	go func() {
		defer c.Ended()
		f()
	}()
}

// Background runs f on a goroutine that is a call of its own, unless Close was called. f ends with Close, which waits for it.
func (c *Calls) Background(f func()) {
	if c.Start() {
		c.run(f)
	}
}

// Close makes all waiting callers return, and refuses new calls. It is called once.
func (c *Calls) Close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	close(c.done)
	c.workers.close()
}

// Stop ends the commands in flight without their own time limit. It is called once, after Close.
func (c *Calls) Stop() { close(c.stopped) }

// Wait waits for everything counted. It is called once, after Close. (A sync.WaitGroup would end the program if a worker that was begun
// outside of a synctest bubble makes a call from inside, before rlocktest can say what is wrong.)
func (c *Calls) Wait() {
	c.mu.Lock()
	if c.running == 0 {
		c.mu.Unlock()
		return
	}
	ended := make(chan struct{})
	c.ended = ended
	c.mu.Unlock()
	<-ended
}

// Done is closed by Close.
func (c *Calls) Done() <-chan struct{} { return c.done }

// IsClosed reports whether Close was called.
func (c *Calls) IsClosed() bool { return IsClosed(c.done) }

// IsClosed reports whether c is closed. Nothing may be sent on c.
func IsClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// CanLeave reports whether a caller may leave a call before its end.
func CanLeave(ctx context.Context, limit time.Time) bool { return ctx.Done() != nil || !limit.IsZero() }

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
	w := c.begin(work{call, slot, true}, behind)
	var over <-chan time.Time
	if !limit.IsZero() {
		over = w.After(time.Until(limit))
	}
	select { // whoever is first decides: the end of the call, or a caller that leaves
	case <-w.Ended():
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
	if !limit.IsZero() {
		end = Earlier(end, limit)
	}
	return end.Sub(began)
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

// Admit waits until a call may start, for a caller that may leave when ctx is done, at limit if that is not zero, or on Close. behind: it
// counts as left behind from its start; if it is not made by [Calls.Make], until LeftEnds.
func (c *Calls) Admit(ctx context.Context, slot uint16, limit time.Time) (behind bool, err error) {
	if !c.AnyLeft() || !CanLeave(ctx, limit) {
		return false, nil
	}
	var over <-chan time.Time
	if !limit.IsZero() {
		timer := time.NewTimer(time.Until(limit))
		defer timer.Stop()
		over = timer.C
	}
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

// LastTimeout bounds a call while Close waits for it.
const LastTimeout = time.Second

// Last returns the context for a call that must be sent even while the Client is closing.
func (c *Calls) Last() (context.Context, context.CancelFunc) {
	timeout := Timeout
	if c.IsClosed() { // Close waits
		timeout = LastTimeout
	}
	return context.WithTimeout(context.Background(), timeout)
}
