package engine

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/go-rlock/rlock/lua"
)

// Level is one Lock of a hold, open until its unlock is called. It is the ctx that the Lock returns.
type Level struct {
	context.Context // cancelled when the level is closed or the hold is lost

	spec  *Spec
	hold  *hold
	outer Section // see Section.Around
	// Released ends its section by that unlock, and returns what it does; nil: nobody wants to know of that.
	Released func(unlock func() error) error

	inner InnerUnlocks

	// Guarded by tenure.mu.
	cancel context.CancelCauseFunc // nil once the level is closed
	next   *Level                  // the one that was opened before it, of those that are open
	freed  func()                  // called on a goroutine of its own when the hold is lost; nil: nothing is
}

// String keeps fmt from reading the fields, which change. It is the form of package context.
func (l *Level) String() string {
	return fmt.Sprint(l.Context) + ".WithLock(" + Quote(l.spec.Name) + ")"
}

// Value makes the level the innermost section of its context.
func (l *Level) Value(key any) any {
	switch key.(type) {
	case SectionKey:
		return l
	case waitOnlyKey: // a ctx further out bounded other waiting; and most look no further
		return nil
	}
	return l.Context.Value(key)
}

// Around is the section around it.
func (l *Level) Around() Section { return l.outer }

// Owns reports whether its hold has that owner field.
func (l *Level) Owns(field string) bool {
	if of := l.hold.tenure.majority; of != nil {
		return of.Owns(field)
	}
	return l.hold.tenure.Field() == field
}

// Unlocks is the time that unlocks inside of it took.
func (l *Level) Unlocks() *InnerUnlocks { return &l.inner }

// IsOpen reports whether it was not unlocked.
func (l *Level) IsOpen() bool {
	t := l.hold.tenure
	t.mu.Lock()
	defer t.mu.Unlock()
	return l.cancel != nil
}

// close takes the level out of its hold and ends its ctx. It reports false if it was closed before, and whether the hold ends with it.
func (l *Level) close() (closed, last bool) {
	l.hold.tenure.mu.Lock()
	if l.cancel == nil {
		l.hold.tenure.mu.Unlock()
		return false, false
	}
	return true, l.closeFor(&l.hold.unlocked)
}

// closeFor is close of an open level, with the cause of the end. mu is held, and is not when it returns.
func (l *Level) closeFor(why error) (last bool) {
	h := l.hold
	t, cancel := h.tenure, l.cancel
	before := t.renewed()
	l.cancel = nil
	at := &h.levels
	for *at != l { // seldom far: levels are mostly closed in the reverse order
		at = &(*at).next
	}
	*at = l.next
	last = h.levels == nil
	if !last && t.loss == nil {
		h.count--
	}
	t.follow()
	c := t.Spec.Engine
	empty := t.isEmpty()
	if renewed := t.renewed(); !empty && renewed != before {
		c.Leases.Update(&t.Lease, time.Time{}, renewed)
	}
	t.mu.Unlock()
	if empty {
		t.leaveInsiders()
	}
	if last {
		h.isAskedNoMore()
	}
	cancel(why)
	return last
}

// levelCtx is the ctx that a level is to have.
func (m *Spec) levelCtx(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	if m.Kind.Side == lua.Writer {
		ctx = &outerCtx{Context: ctx}
	}
	return context.WithCancelCause(ctx)
}

// outerCtx is the ctx that a writer's Lock was given, where a downgrade finds it.
type outerCtx struct {
	context.Context

	downgraded atomic.Bool // its level, and its unlock was not called since
}

type outerKey struct{}

func (c *outerCtx) Value(key any) any {
	if _, ok := key.(outerKey); ok {
		return c
	}
	return c.Context.Value(key)
}

// downgraded reports, once, whether a Downgrade has closed the level.
func (l *Level) downgraded() bool {
	outer, ok := l.Context.Value(outerKey{}).(*outerCtx)
	return ok && l.hold.tenure.Spec.Kind.Side == lua.Writer && outer.downgraded.Swap(false)
}

// String keeps fmt from reading what is inside, as [Level.String].
func (c *outerCtx) String() string { return fmt.Sprint(c.Context) }

// LevelIn returns the innermost open level of m that ctx carries, or nil.
func (m *Spec) LevelIn(ctx context.Context) *Level { return openLevel(ctx, (*hold).isOf, m) }

// levelBeside returns the innermost open level of the other side of a read/write lock, or nil.
func (m *Spec) levelBeside(ctx context.Context) *Level { return openLevel(ctx, (*hold).isBeside, m) }

func openLevel(ctx context.Context, is func(*hold, *Spec) bool, m *Spec) *Level {
	for l := levelOf(ctx); l != nil; l = l.enclosing() {
		if is(l.hold, m) && l.IsOpen() {
			return l
		}
	}
	return nil
}

// levelOf returns the innermost level that ctx carries, or nil.
func levelOf(ctx context.Context) *Level {
	l, _ := Innermost[*Level](SectionOf(ctx))
	return l
}

// enclosing is the next level around it, or nil.
func (l *Level) enclosing() *Level {
	next, _ := Innermost[*Level](l.outer)
	return next
}

// Owner is the owner of the innermost hold of one server that ctx carries; "" if there is none, or it is over.
func Owner(ctx context.Context) string {
	if h := holdIn(ctx, func(*hold) bool { return true }); h != nil && h.isLive() {
		return h.tenure.Field()
	}
	return ""
}

// Token is that of the innermost hold of a lock called name.
func Token(ctx context.Context, name string) (token int64, ok bool) {
	return tokenIn(ctx, func(h *hold) bool { return h.tenure.Spec.Name == name })
}

// Token is that of the innermost hold of m, or of its other side.
func (m *Spec) Token(ctx context.Context) (token int64, ok bool) {
	return tokenIn(ctx, func(h *hold) bool { return h.isOf(m) || h.isBeside(m) })
}

// tokenIn returns that of the innermost hold that is so. If that is a reader, it has the writer's around it, if that is still open: after a
// Downgrade it is not.
func tokenIn(ctx context.Context, is func(*hold) bool) (token int64, ok bool) {
	h := holdIn(ctx, is)
	if h == nil {
		return 0, false
	}
	if h.tenure.Spec.Kind.Side == lua.Reader {
		if writer := h.tenure.Spec.levelBeside(ctx); writer != nil {
			h = writer.hold
		}
	}
	return h.fencingToken()
}

// holdIn returns the innermost hold of one server that ctx carries, and that is so, or nil.
func holdIn(ctx context.Context, is func(*hold) bool) *hold {
	for l := levelOf(ctx); l != nil; l = l.enclosing() {
		if l.hold.tenure.majority == nil && is(l.hold) {
			return l.hold
		}
	}
	return nil
}
