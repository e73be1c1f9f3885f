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
	repeats   repeats
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
	return &Calls{errClosed: errClosed, repeats: repeatsOf(rdb), done: make(chan struct{}), stopped: make(chan struct{})}
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

// Also is Start that Close does not refuse while anything counted is still running, such as the call of the caller.
func (c *Calls) Also() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed && c.running == 0 {
		return false
	}
	c.running++
	return true
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

// Go runs f on a goroutine, even after Close. Wait waits for it, unless nothing else was running.
func (c *Calls) Go(f func()) {
	counted := c.Also()
	go func() {
		if counted {
			defer c.Ended()
		}
		f()
	}()
}

// Background runs f on a goroutine that is a call of its own, unless Close was called. f ends with Close, which waits for it.
func (c *Calls) Background(f func()) {
	if c.Start() {
		c.Go(f)
		c.Ended()
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
