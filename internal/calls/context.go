package calls

import (
	"context"
	"time"
)

// Context is the context of one command, for rueidis only. It has a deadline, which bounds reads and writes,
// because rueidis leaves its synchronous path, which spares two goroutine switches, for a ctx that can be cancelled and
// has none (pipe.Do in v1.0.79). Done does not close when the deadline passes: on a connection that others share an answer may
// come later, and says what has to be rolled back.
//
// Done and Err must agree. If Done is closed and Err is nil, rueidis takes a queued command for an answered one and reuses its memory:
// other commands would be sent twice and get foreign replies.
type Context struct {
	deadline time.Time
	values   context.Context // its values are for wrappers of the client, such as the caller's span
	done     <-chan struct{}

	repeats repeats
	seen    seen // since the last answer, unless nobody repeats
}

// Context returns the context for a command sent now. It does not end with its caller, because only the answer shows whether to roll back.
// Stop ends it. Each command needs a new one, because rueidis may read it afterwards. The values are ctx's.
func (c *Calls) Context(ctx context.Context) *Context {
	return new(Context).begin(ctx, c, time.Now().Add(Timeout))
}

func (c *Context) begin(ctx context.Context, of *Calls, deadline time.Time) *Context {
	c.values, c.deadline, c.done, c.repeats = ctx, deadline, of.stopped, of.repeats
	return c
}

// Contexts makes the contexts of successive commands. The first, usually the only one, needs no allocation.
type Contexts struct{ first Context }

// Next is [Calls.Context] with another deadline.
func (s *Contexts) Next(ctx context.Context, c *Calls, deadline time.Time) *Context {
	next := &s.first
	if next.values != nil {
		next = new(Context)
	}
	return next.begin(ctx, c, deadline)
}

// Last is [Calls.Last] as a Context.
func (s *Contexts) Last(ctx context.Context, c *Calls) (*Context, context.CancelFunc) {
	last, end := c.Last()
	deadline, _ := last.Deadline()
	next := s.Next(ctx, c, deadline)
	next.done = last.Done()
	return next, end
}

// Deadline returns the deadline of reads and writes.
func (c *Context) Deadline() (time.Time, bool) {
	c.sees(askedDeadline)
	return c.deadline, true
}

// Value hides package context's own keys, so that the caller's cancellation does not reach the command.
func (c *Context) Value(key any) any { return context.WithoutCancel(c.values).Value(key) }

// Done is closed by Stop.
func (c *Context) Done() <-chan struct{} {
	c.sees(askedDone)
	return c.done
}

// Err is nil until Done is closed.
func (c *Context) Err() error {
	c.sees(askedErr)
	select {
	case <-c.done:
		return context.Canceled
	default:
		return nil
	}
}

func (c *Context) sees(q question) {
	if c.repeats != nobody {
		c.seen.asked(q)
	}
}

// Answered is called by package lua between an answer and the next command. A copy of the first one may still run.
func (c *Context) Answered() {
	if !c.IsRepeated() {
		c.seen.Store(int32(unsent))
	}
}

// IsRepeated reports whether the command may have run before the run that was answered, or may still run.
func (c *Context) IsRepeated() bool { return sending(c.seen.Load()) == sentAgain }

// MayBeRepeated is IsRepeated for an answer that means something else then. It is true as well if a wrapper of the client gave the command
// a ctx of its own, so that nothing is known.
func (c *Context) MayBeRepeated() bool {
	s := sending(c.seen.Load())
	return s == sentAgain || c.repeats == expiry && (s == unsent || s == dials)
}
