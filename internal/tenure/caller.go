package tenure

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
)

// A Lock's ctx bounds its waiting and is the parent of its section, unless the two are separate: with WaitOnly, or if the section is
// inside another section taken by the same call (Caller.Inside).

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
	return calls.Earlier(time.Now().Add(calls.Timeout), c.Limit)
}

// AwaitEnd waits for the end of what precedes a Lock, at most until then, or until the caller leaves. Close ends it, too.
func (c Caller) AwaitEnd(ended <-chan struct{}, until time.Time) {
	over, stop := calls.At(until)
	defer stop()
	select {
	case <-ended:
	case <-over:
	case <-c.Ctx.Done():
	}
}

// waitOnly is a ctx that bounds only the waiting of a Lock.
type waitOnly struct {
	context.Context

	section context.Context // the section's parent; nil: the section ends with no ctx
}

// WaitOnlyKey is the key of the innermost [WaitOnly] in a context. A section hides it: it bounds the wait for that section only.
type WaitOnlyKey struct{}

// WaitOnly returns a ctx that bounds only the waiting. section is the parent of sections; nil: they end with no ctx.
func WaitOnly(ctx, section context.Context) context.Context { return &waitOnly{ctx, section} }

func (w *waitOnly) Value(key any) any {
	if _, ok := key.(WaitOnlyKey); ok {
		return w
	}
	return w.Context.Value(key)
}

// String is as [outerCtx.String].
func (w *waitOnly) String() string { return fmt.Sprint(w.Context) + ".WaitOnly" }

// sectionOnly is the parent of a section whose Lock got a waitOnly: it ends with section, and has the values of the ctx that bounded
// the waiting.
type sectionOnly struct {
	valuesOf
}

// Value hides the waitOnly: a Lock in the section is in the section.
func (s sectionOnly) Value(key any) any {
	if _, ok := key.(WaitOnlyKey); ok {
		return nil
	}
	return s.valuesOf.Value(key)
}

// sectionParent returns the parent of a section whose Lock got ctx; nil: ctx itself.
func sectionParent(ctx context.Context) context.Context {
	if ctx == nil {
		return nil
	}
	w, _ := ctx.Value(WaitOnlyKey{}).(*waitOnly)
	if w == nil {
		return nil
	}
	ends := w.section
	if ends == nil {
		ends = context.Background()
	}
	return sectionOnly{valuesOf{ends, context.WithoutCancel(ctx)}}
}

// Parent returns the parent of the Lock's section.
func (c Caller) Parent() context.Context {
	if c.parent != nil {
		return c.parent
	}
	return c.Ctx
}

// Given returns the ctx to pass to another package's Lock.
func (c Caller) Given() context.Context {
	if c.parent != nil {
		return WaitOnly(c.Ctx, c.parent)
	}
	return c.Ctx
}

// Inside returns the caller for one more Lock of the same call, inside a section the call has taken. That Lock waits until section or
// the call's ctx is done. Call stop after it.
func (c Caller) Inside(section context.Context) (inner Caller, stop func()) {
	if c.parent == nil { // section ends with the call's ctx
		c.Ctx = section
		return c, func() {}
	}
	c.parent = section
	if c.Ctx.Done() == nil {
		c.Ctx = section
		return c, func() {}
	}
	ctx, cancel := context.WithCancelCause(section)
	waiting := &leftCtx{Context: ctx, caller: c.Ctx}
	unwatch := context.AfterFunc(c.Ctx, func() {
		waiting.left.Store(true)
		cancel(context.Cause(waiting.caller))
	})
	c.Ctx = waiting
	return c, func() {
		unwatch()
		cancel(nil)
	}
}

// leftCtx is the ctx of a Lock that waits inside a section and also ends with another ctx, with that ctx's error and cause.
type leftCtx struct {
	context.Context

	caller context.Context
	left   atomic.Bool
}

func (c *leftCtx) Err() error {
	if c.left.Load() {
		return c.caller.Err()
	}
	return c.Context.Err()
}

// String is as [outerCtx.String].
func (c *leftCtx) String() string { return fmt.Sprint(c.Context) }

// valuesOf is a ctx with the values of another ctx. If that comes from WithoutCancel, it hides package context's own keys, so cancellation
// is that of the embedded Context.
type valuesOf struct {
	context.Context
	values context.Context
}

// String is as [outerCtx.String].
func (c valuesOf) String() string { return fmt.Sprint(c.Context) }

func (c valuesOf) Value(key any) any {
	if v := c.values.Value(key); v != nil {
		return v
	}
	return c.Context.Value(key)
}

// In returns the Caller of a Lock whose section ends with another ctx than its own, whose values it has.
func (c Caller) In(section context.Context) Caller {
	c.parent = valuesOf{section, context.WithoutCancel(c.Ctx)}
	return c
}
