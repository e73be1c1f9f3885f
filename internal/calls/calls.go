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
	timers    sharedTimers

	mu      sync.Mutex // guards closed, and running against a Wait that has begun
	closed  bool
	running sync.WaitGroup
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
	c.running.Add(1)
	return true
}

// Also counts one more within a started call, even after Close.
func (c *Calls) Also() { c.running.Add(1) }

// Ended ends a call counted by Start or Also.
func (c *Calls) Ended() { c.running.Done() }

// Go runs f on a goroutine, within a started call, even after Close. Wait waits for it.
func (c *Calls) Go(f func()) { c.running.Go(f) }

// Background runs f on a goroutine that is a call of its own, unless Close was called. f ends with Close, which waits for it.
func (c *Calls) Background(f func()) {
	if c.Start() {
		c.running.Go(f)
		c.Ended()
	}
}

// Close makes all waiting callers return, and refuses new calls. It is called once.
func (c *Calls) Close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	close(c.done)
}

// Stop ends the commands in flight without their own time limit. It is called once, after Close.
func (c *Calls) Stop() { close(c.stopped) }

// Wait waits for everything counted. It is called after Close.
func (c *Calls) Wait() { c.running.Wait() }

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

// After returns a channel that closes at that time, or up to 50 ms later.
func (c *Calls) After(at time.Time) <-chan struct{} { return c.timers.after(at) }

// CanLeave reports whether a caller may leave a call before its end.
func CanLeave(ctx context.Context, limit time.Time) bool { return ctx.Done() != nil || !limit.IsZero() }

// Leavable runs f, which makes a call for a cluster slot, for a caller that may leave before the answer: when ctx is done, at limit if
// that is not zero, or on Close. Then it returns at once with left true. The error is Close's, or says how Redis failed to answer; it
// is nil if there was no time for an answer. The channel given to f is closed, and rollBack, if not nil, gets f's result when f
// returns, on f's goroutine. If f was never started, rollBack gets an error, on the caller's goroutine: then it must not block.
//
// It is called within a started call. If the caller cannot leave, f runs on its goroutine.
func Leavable[T any](
	ctx context.Context, c *Calls, slot uint16, limit time.Time, f func(left <-chan struct{}) (T, error), rollBack func(T, error),
) (value T, left bool, err error) {
	if !CanLeave(ctx, limit) {
		value, err = f(c.done)
		c.Answered(slot, err)
		return value, false, err
	}
	began := time.Now()
	var over <-chan time.Time
	if !limit.IsZero() {
		timer := time.NewTimer(limit.Sub(began))
		defer timer.Stop()
		over = timer.C
	}
	counted, err := c.admit(ctx, slot, over)
	if err != nil {
		if rollBack != nil {
			rollBack(value, err)
		}
		return value, true, err
	}
	type result struct {
		value T
		err   error
	}
	results, gone := make(chan result), make(chan struct{})
	c.Go(func() { // ends when f does; a caller's ctx does not end f
		value, err := f(gone)
		answered := err == nil || !IsTransient(err)
		select { // whoever is first decides: a caller who takes the result, or one who has left
		case results <- result{value, err}:
			c.left.ended(slot, counted, answered)
		case <-gone:
			if rollBack != nil {
				rollBack(value, err)
			}
			c.left.ended(slot, true, answered)
		}
	})
	select {
	case r := <-results:
		return r.value, false, r.err
	case <-ctx.Done():
	case <-over:
	case <-c.done:
		err = c.errClosed
	}
	if err == nil && time.Since(began) >= UnresponsiveAfter/2 {
		err = ErrNoAnswer
	}
	if !counted {
		c.left.add(slot)
	}
	close(gone)
	return value, true, err
}

// Admit waits until a call may start that is made without [Leavable], for a caller that may leave when ctx is done, at limit if that is
// not zero, or on Close. counted: it counts as left behind from its start, until LeftEnds.
func (c *Calls) Admit(ctx context.Context, slot uint16, limit time.Time) (counted bool, err error) {
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
