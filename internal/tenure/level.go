package tenure

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/go-rlock/rlock/lua"
)

// Level is one Lock of a hold, open until its unlock is called. It is the ctx returned by that Lock. A hold lists its open levels, because
// its loss cancels them all; they close in any order.
type Level struct {
	context.Context // cancelled when the level is closed or the hold is lost

	lock  *Lock
	hold  *Hold
	outer Section // see Section.Around
	// Released traces the end of the section: it calls unlock and returns its error; nil: no tracing.
	Released func(unlock func() error) error

	Inner InnerUnlocks

	// Guarded by tenure.mu.
	cancel context.CancelCauseFunc // nil once the level is closed
	next   *Level                  // the open level of the hold that was opened before this one
	prev   *Level                  // the one that was opened after it
	freed  func()                  // called on its own goroutine when the hold is lost; may be nil
}

// String keeps fmt from reading the fields, which change. It has the format of package context.
func (l *Level) String() string {
	return fmt.Sprint(l.Context) + ".WithLock(" + Quote(l.lock.Name) + ")"
}

// Value makes the level the innermost section of its context.
func (l *Level) Value(key any) any {
	switch key.(type) {
	case SectionKey:
		return l
	case WaitOnlyKey: // a waitOnly further out bounds another wait; it also stops most searches here
		return nil
	}
	return l.Context.Value(key)
}

// Through returns the handle that it was opened through.
func (l *Level) Through() *Lock { return l.lock }

// Hold returns its hold.
func (l *Level) Hold() *Hold { return l.hold }

// Tenure returns the tenure on which its hold stands, or stood.
func (l *Level) Tenure() *Tenure { return l.hold.tenure }

// IsReentry reports whether its hold began with another level.
func (l *Level) IsReentry() bool { return l != &l.hold.first }

// Around returns the enclosing section.
func (l *Level) Around() Section { return l.outer }

// Owns reports whether field is the owner of its hold.
func (l *Level) Owns(field string) bool {
	if of := l.hold.tenure.Majority; of != nil {
		return of.Owns(field)
	}
	return l.hold.tenure.Field() == field
}

// Unlocks returns the time taken by unlocks inside the section.
func (l *Level) Unlocks() *InnerUnlocks { return &l.Inner }

// TrustedUntil returns until when its hold is trusted; the zero time if it was lost.
func (l *Level) TrustedUntil() (until time.Time, ok bool) {
	if l.Loss() != nil {
		return time.Time{}, true
	}
	return l.hold.tenure.Until(), true
}

// IsOpen reports whether the level was not unlocked yet.
func (l *Level) IsOpen() bool {
	t := l.hold.tenure
	t.mu.Lock()
	defer t.mu.Unlock()
	return l.cancel != nil
}

// Close takes the level out of its hold and ends its ctx. closed is false if it was closed before; last reports whether the hold ends
// with it.
func (l *Level) Close() (closed, last bool) {
	l.hold.tenure.mu.Lock()
	if l.cancel == nil {
		l.hold.tenure.mu.Unlock()
		return false, false
	}
	return true, l.closeFor(&l.hold.unlocked)
}

// closeFor closes an open level with that cause. mu is held, and released on return.
func (l *Level) closeFor(why error) (last bool) {
	h := l.hold
	t, cancel := h.tenure, l.cancel
	before := t.renewed()
	l.cancel = nil
	h.unlink(l)
	last = h.levels == nil
	if !last && t.loss == nil {
		h.setCount(h.count - 1)
	}
	t.follow()
	empty := t.isEmpty()
	if !empty {
		if renewed := t.renewed(); renewed != before {
			t.Lock.Client.Leases.Update(&t.Lease, time.Time{}, renewed)
		}
	}
	t.mu.Unlock()
	if empty {
		t.LeaveOpen()
	}
	if last && len(h.first.lock.Observers) > 0 {
		h.observedNoMore()
	}
	cancel(why)
	return last
}

// unlink takes a level that closes out of the open ones. mu is held.
func (h *Hold) unlink(l *Level) {
	if l.prev != nil {
		l.prev.next = l.next
	} else {
		h.levels = l.next
	}
	if l.next != nil {
		l.next.prev = l.prev
	}
	l.prev, l.next = nil, nil
	if o := h.tenure.several(); o != nil {
		o.closes(l)
	}
}

// LevelCtx returns the ctx for a new level.
func (m *Lock) LevelCtx(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	if m.Kind.Side == lua.Writer {
		ctx = &outerCtx{Context: ctx}
	}
	return context.WithCancelCause(ctx)
}

// outerCtx keeps the ctx given to a writer's Lock, for a downgrade.
type outerCtx struct {
	context.Context

	downgraded atomic.Bool // its level was downgraded, and not unlocked since
}

type outerKey struct{}

func (c *outerCtx) Value(key any) any {
	if _, ok := key.(outerKey); ok {
		return c
	}
	return c.Context.Value(key)
}

// IsDowngraded reports, once, whether a Downgrade has closed the level.
func (l *Level) IsDowngraded() bool {
	outer, ok := l.Context.Value(outerKey{}).(*outerCtx)
	return ok && l.hold.tenure.Lock.Kind.Side == lua.Writer && outer.downgraded.Swap(false)
}

// String keeps fmt from reading the fields, as [Level.String] does.
func (c *outerCtx) String() string { return fmt.Sprint(c.Context) }

// LevelIn returns the innermost open level of m in ctx, or nil.
func (m *Lock) LevelIn(ctx context.Context) *Level { return openLevel(ctx, (*Hold).IsOf, m) }

// LevelBeside returns the innermost open level of the other side of a read/write lock, or nil.
func (m *Lock) LevelBeside(ctx context.Context) *Level { return openLevel(ctx, (*Hold).IsBeside, m) }

func openLevel(ctx context.Context, is func(*Hold, *Lock) bool, m *Lock) *Level {
	for l := LevelOf(ctx); l != nil; l = l.Enclosing() {
		if is(l.hold, m) && l.IsOpen() {
			return l
		}
	}
	return nil
}

// LevelOf returns the innermost level in ctx, or nil.
func LevelOf(ctx context.Context) *Level {
	l, _ := Innermost[*Level](SectionOf(ctx))
	return l
}

// Enclosing returns the enclosing level, or nil.
func (l *Level) Enclosing() *Level {
	next, _ := Innermost[*Level](l.outer)
	return next
}

// Owner returns the owner of the innermost single-server hold in ctx; "" if there is none, or the hold is over.
func Owner(ctx context.Context) string {
	if h := holdIn(ctx, func(*Hold) bool { return true }); h != nil && h.IsLive() {
		return h.tenure.Field()
	}
	return ""
}

// Token returns the fencing token of the innermost hold of the named lock.
func Token(ctx context.Context, name string) (token int64, ok bool) {
	return tokenIn(ctx, func(h *Hold) bool { return h.tenure.Lock.Name == name })
}

// Token returns the fencing token of the innermost hold of m, or of its other side.
func (m *Lock) Token(ctx context.Context) (token int64, ok bool) {
	return tokenIn(ctx, func(h *Hold) bool { return h.IsOf(m) || h.IsBeside(m) })
}

// tokenIn returns the token of the innermost matching hold. A reader inside a writer has the writer's token while the writer is open;
// after a Downgrade it is not.
func tokenIn(ctx context.Context, is func(*Hold) bool) (token int64, ok bool) {
	h := holdIn(ctx, is)
	if h == nil {
		return 0, false
	}
	if h.tenure.Lock.Kind.Side == lua.Reader {
		if writer := h.tenure.Lock.LevelBeside(ctx); writer != nil {
			h = writer.hold
		}
	}
	return h.FencingToken()
}

// holdIn returns the innermost matching single-server hold in ctx, or nil.
func holdIn(ctx context.Context, is func(*Hold) bool) *Hold {
	for l := LevelOf(ctx); l != nil; l = l.Enclosing() {
		if l.hold.tenure.Majority == nil && is(l.hold) {
			return l.hold
		}
	}
	return nil
}

// Outlived ends the unlock of a level while other levels of its hold are open.
func (l *Level) Outlived() error {
	l.hold.tenure.CatchUp()
	if loss := l.Loss(); loss != nil {
		return l.lock.FailNotHeld(loss)
	}
	return nil
}

// NeverReturned exempts the hold from WithMinHold, and its tenure from being kept, unless the level is a re-entry.
func (l *Level) NeverReturned() {
	if l != &l.hold.first {
		return
	}
	l.hold.tenure.mu.Lock()
	l.hold.tenure.unkept = true
	l.hold.tenure.mu.Unlock()
	if l.lock.MinHold > 0 {
		l.hold.tenure.Stays = nil
	}
}

// Traced ends a level's section through Released, if set.
func (l *Level) Traced(end func(*Level) error) error {
	if l.Released == nil {
		return end(l)
	}
	return l.Released(func() error { return end(l) })
}

// LeaveUnlock notes that the caller of an unlock of the level leaves. It returns the loss of its hold, if it was lost. Otherwise, if no level
// is open, the lease is not renewed any more (G7).
func (l *Level) LeaveUnlock() (loss error) {
	h, t := l.hold, l.hold.tenure
	t.mu.Lock()
	loss, last := h.loss(), h.levels == nil
	t.callerGone = t.callerGone || loss == nil && last
	t.mu.Unlock()
	if loss == nil && last {
		l.lock.Client.Leases.Stop(&t.Lease) // no open level remains that would have to be cancelled
	}
	return loss
}

// OnLoss has f called, on a goroutine of its own, when the hold is lost. It reports false if it is already.
func (l *Level) OnLoss(f func()) bool {
	l.hold.tenure.mu.Lock()
	defer l.hold.tenure.mu.Unlock()
	l.freed = f
	return l.hold.loss() == nil
}

// Outer returns the ctx given to a writer's Lock.
func (l *Level) Outer() context.Context { return l.outerCtx().Context }

func (l *Level) outerCtx() *outerCtx {
	outer, _ := l.Context.Value(outerKey{}).(*outerCtx)
	return outer
}

// Downgraded notes that a Downgrade has closed the level of a writer.
func (l *Level) Downgraded() { l.outerCtx().downgraded.Store(true) }

// Nested returns the ctx of the next level of a section on several locks, inside around. All of them end together.
func Nested(ctx context.Context, around *Level) context.Context { return nested{ctx, around} }

// nested is the ctx of a section on several locks: one more of its levels, around the next. All of them end together.
type nested struct {
	context.Context

	around *Level
}

// String names the enclosing levels, as theirs do.
func (n nested) String() string { return n.around.String() }

func (n nested) Value(key any) any {
	if _, ok := key.(SectionKey); ok {
		return n.around
	}
	return n.Context.Value(key)
}

// Loss returns why its hold was lost, or nil.
func (l *Level) Loss() error { return l.hold.LossSoFar() }
