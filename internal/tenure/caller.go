package tenure

import (
	"context"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
)

// Caller describes a call of Lock and how long it waits.
type Caller struct {
	Ctx      context.Context // ends the waiting
	Outer    context.Context // the ctx given by the user; Ctx may be derived from it
	parent   context.Context // of the section; nil: ctx
	Began    time.Time
	Wait     time.Time // end of the waiting; zero: only ctx ends it
	Limit    time.Time // of an attempt that is under way, not before wait; zero: only ctx ends it. The first answer ends what is beyond wait
	Once     bool      // no waiting: one attempt
	Persists bool      // it goes on while Redis does not answer, see WithWaitForRedis
	Climbs   bool      // it gives up its locks of an All by itself, so no other Lock waits for them forever
	Trace    Tracer    // nil: no tracing
}

// CallerNow returns the Caller of a Lock called now.
func CallerNow(ctx context.Context) Caller {
	return Caller{Ctx: ctx, Outer: ctx, parent: sectionParent(ctx), Began: time.Now()}
}

// Patient bounds the waiting, unless there is no bound.
func (c Caller) Patient(most, least time.Duration) Caller {
	if most > 0 {
		return c.UpTo(most, least)
	}
	return c
}

// ShortestWait returns the shorter of two bounds on the waiting; 0 is none.
func ShortestWait(a, b time.Duration) time.Duration {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}

// UpTo bounds the waiting. The first attempt gets at least least.
func (c Caller) UpTo(wait, least time.Duration) Caller {
	c.Once, c.Limit = wait <= 0, c.Began.Add(max(wait, least))
	if !c.Once {
		c.Wait = c.Began.Add(wait)
	}
	return c
}

// Persistent has the Lock go on while Redis does not answer, unless it is to make one attempt.
func (c Caller) Persistent(persists bool) Caller {
	c.Persists = persists && !c.Once
	return c
}

// GoesOn reports whether a Lock whose attempt Redis did not answer makes another one.
func (c Caller) GoesOn() bool {
	return c.Persists && c.Ctx.Err() == nil && (c.Limit.IsZero() || time.Now().Before(c.Limit)) && !calls.IsClosed(c.Stopped())
}

// Answered returns the Caller after an attempt that Redis has answered: later ones have no more time than the wait.
func (c Caller) Answered() Caller {
	if !c.Once && !c.Limit.IsZero() {
		c.Limit = c.Wait
	}
	return c
}

// Waits reports to the Trace that the Lock begins to wait.
func (c Caller) Waits(holder string) {
	if c.Trace != nil {
		c.Trace.Waits(holder)
	}
}

// Stopped returns a channel that is closed when the Lock must stop waiting early.
func (c Caller) Stopped() <-chan struct{} {
	if c.Trace == nil {
		return nil
	}
	return c.Trace.Over()
}

// Took reports to the Trace how the lock was acquired.
func (c Caller) Took(p Path) {
	if c.Trace != nil {
		c.Trace.Took(p)
	}
}

// CallEnds returns when a call that begins now, and has to precede that of the Lock, is left.
func (c Caller) CallEnds() time.Time {
	end := time.Now().Add(calls.Timeout)
	if !c.Limit.IsZero() {
		end = calls.Earlier(end, c.Limit)
	}
	return end
}

// AwaitEnd waits for the end of what precedes a Lock, at most until then, or until the caller leaves. Close ends it, too.
func (c Caller) AwaitEnd(ended <-chan struct{}, until time.Time) {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-ended:
	case <-timer.C:
	case <-c.Ctx.Done():
	}
}
