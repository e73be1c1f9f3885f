package tenure

import (
	"context"
	"fmt"
	"sync/atomic"
)

// A Lock's ctx bounds its waiting and is the parent of its section, unless the two are separate: with WaitOnly, or if the section is
// inside another section taken by the same call (Caller.Inside).

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

// SectionParent returns the parent of a section whose Lock got ctx.
func SectionParent(ctx context.Context) context.Context {
	if parent := sectionParent(ctx); parent != nil {
		return parent
	}
	return ctx
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
