package engine

import (
	"context"
	"fmt"
	"sync/atomic"
)

// The ctx of a Lock bounds its waiting, and its section is inside of that ctx, unless the two are told apart: by WaitOnly, or because the section is
// inside of another one that the same call has taken (Caller.Inside).

// waitOnly is a ctx that bounds only the waiting of a Lock.
type waitOnly struct {
	context.Context

	section context.Context // what the section is inside of; nil: it does not end with any ctx
}

type waitOnlyKey struct{}

// WaitOnly returns a ctx that bounds only the waiting. section is what sections are inside of; nil: they do not end with any ctx.
func WaitOnly(ctx, section context.Context) context.Context { return &waitOnly{ctx, section} }

func (w *waitOnly) Value(key any) any {
	if _, ok := key.(waitOnlyKey); ok {
		return w
	}
	return w.Context.Value(key)
}

// String is as [outerCtx.String].
func (w *waitOnly) String() string { return fmt.Sprint(w.Context) + ".WaitOnly" }

// sectionOnly is the ctx around a section whose Lock was given a waitOnly: it ends with section, and has the values of the ctx that bounded the waiting.
type sectionOnly struct {
	valuesOf
}

// Value hides the waitOnly: a Lock in the section is in the section.
func (s sectionOnly) Value(key any) any {
	if _, ok := key.(waitOnlyKey); ok {
		return nil
	}
	return s.valuesOf.Value(key)
}

// sectionParent returns the ctx that a section is inside of whose Lock was given ctx; nil: ctx itself.
func sectionParent(ctx context.Context) context.Context {
	if ctx == nil {
		return nil
	}
	w, _ := ctx.Value(waitOnlyKey{}).(*waitOnly)
	if w == nil {
		return nil
	}
	ends := w.section
	if ends == nil {
		ends = context.Background()
	}
	return sectionOnly{valuesOf{ends, context.WithoutCancel(ctx)}}
}

// SectionParent returns the ctx that a section is inside of whose Lock was given ctx.
func SectionParent(ctx context.Context) context.Context {
	if parent := sectionParent(ctx); parent != nil {
		return parent
	}
	return ctx
}

// Parent returns the ctx that the section of the Lock is of.
func (c Caller) Parent() context.Context {
	if c.parent != nil {
		return c.parent
	}
	return c.Ctx
}

// Given returns the ctx for a Lock that is somebody else's.
func (c Caller) Given() context.Context {
	if c.parent != nil {
		return WaitOnly(c.Ctx, c.parent)
	}
	return c.Ctx
}

// Inside returns the caller of one more Lock of the same call, inside of a section that the call has taken. It waits until section or the ctx of the call
// is done. stop is to be called after it.
func (c Caller) Inside(section context.Context) (inner Caller, stop func()) {
	if c.parent == nil { // section ends with the ctx of the call
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

// leftCtx is the ctx of a Lock that waits inside of a section for a caller who may leave when another ctx is done. It says why as that one does.
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
