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

	Lock *Lock // the handle that it was opened through
	Hold *Hold
	Frame

	// Guarded by tenure.mu.
	cancel context.CancelCauseFunc // nil once the level is closed
	next   *Level                  // the open level of the hold that was opened before this one
	prev   *Level                  // the one that was opened after it
	freed  func()                  // called on its own goroutine when the hold is lost; may be nil
}

// String keeps fmt from reading the fields, which change. It has the format of package context.
func (l *Level) String() string {
	return fmt.Sprint(l.Context) + ".WithLock(" + Quote(l.Lock.Name) + ")"
}

// Value makes the level the innermost section of its context.
func (l *Level) Value(key any) any {
	return SectionValue(l.Context, l, key)
}

// IsReentry reports whether its hold began with another level.
func (l *Level) IsReentry() bool { return l != &l.Hold.First }

// Owns reports whether field is the owner of its hold.
func (l *Level) Owns(field string) bool {
	if of := l.Hold.Tenure.Majority; of != nil {
		return of.Owns(field)
	}
	return l.Hold.Tenure.Field() == field
}

// TrustedUntil returns until when its hold is trusted; the zero time if it was lost.
func (l *Level) TrustedUntil() (until time.Time, ok bool) {
	if l.Loss() != nil {
		return time.Time{}, true
	}
	return l.Hold.Tenure.Until(), true
}

// IsOpen reports whether the level was not unlocked yet.
func (l *Level) IsOpen() bool {
	t := l.Hold.Tenure
	t.mu.Lock()
	defer t.mu.Unlock()
	return l.cancel != nil
}

// Close takes the level out of its hold and ends its ctx. closed is false if it was closed before; last reports whether the hold ends
// with it.
func (l *Level) Close() (closed, last bool) {
	l.Hold.Tenure.mu.Lock()
	if l.cancel == nil {
		l.Hold.Tenure.mu.Unlock()
		return false, false
	}
	return true, l.closeFor(&l.Hold.unlocked)
}

// closeFor closes an open level with that cause. mu is held, and released on return.
func (l *Level) closeFor(why error) (last bool) {
	h := l.Hold
	t, cancel := h.Tenure, l.cancel
	l.cancel = nil
	last, empty := h.closes(l)
	if !empty {
		t.Lock.Client.Leases.Update(&t.Lease, time.Time{}, t.renewed())
	}
	t.mu.Unlock()
	if empty {
		t.LeaveOpen()
	}
	if last && len(h.First.Lock.Observers) > 0 {
		h.observedNoMore()
	}
	cancel(why)
	return last
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
	outer := l.outerCtx()
	return outer != nil && l.Hold.Tenure.Lock.Kind.Side == lua.Writer && outer.downgraded.Swap(false)
}

// String keeps fmt from reading the fields, as [Level.String] does.
func (c *outerCtx) String() string { return fmt.Sprint(c.Context) }

// LevelIn returns the innermost open level of m in ctx, or nil.
func (m *Lock) LevelIn(ctx context.Context) *Level { return openLevel(ctx, (*Hold).IsOf, m) }

// LevelBeside returns the innermost open level of the other side of a read/write lock, or nil.
func (m *Lock) LevelBeside(ctx context.Context) *Level { return openLevel(ctx, (*Hold).IsBeside, m) }

func openLevel(ctx context.Context, is func(*Hold, *Lock) bool, m *Lock) *Level {
	for l := LevelOf(ctx); l != nil; l = l.Enclosing() {
		if is(l.Hold, m) && l.IsOpen() {
			return l
		}
	}
	return nil
}

// LevelOf returns the innermost level in ctx, or nil.
func LevelOf(ctx context.Context) *Level { return LevelFrom(SectionOf(ctx)) }

// Enclosing returns the enclosing level, or nil.
func (l *Level) Enclosing() *Level { return LevelFrom(l.Within) }

// LevelFrom returns the first level from s outwards, or nil.
func LevelFrom(s Section) *Level {
	for ; s != nil; s = s.Around() {
		if l, ok := s.(*Level); ok {
			return l
		}
	}
	return nil
}

// Owner returns the owner of the innermost single-server hold in ctx; "" if there is none, or the hold is over.
func Owner(ctx context.Context) string {
	h := holdIn(ctx, func(*Hold) bool { return true })
	if h == nil {
		return ""
	}
	if over, loss := h.IsOver(); over || loss != nil {
		return ""
	}
	return h.Tenure.Field()
}

// Token returns the fencing token of the innermost hold of the named lock.
func Token(ctx context.Context, name string) (token int64, ok bool) {
	return tokenIn(ctx, func(h *Hold) bool { return h.Tenure.Lock.Name == name })
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
	if h.Tenure.Lock.Kind.Side == lua.Reader {
		if writer := h.Tenure.Lock.LevelBeside(ctx); writer != nil {
			h = writer.Hold
		}
	}
	return h.FencingToken()
}

// holdIn returns the innermost matching single-server hold in ctx, or nil.
func holdIn(ctx context.Context, is func(*Hold) bool) *Hold {
	for l := LevelOf(ctx); l != nil; l = l.Enclosing() {
		if l.Hold.Tenure.Majority == nil && is(l.Hold) {
			return l.Hold
		}
	}
	return nil
}

// Outlived ends the unlock of a level while other levels of its hold are open.
func (l *Level) Outlived() error {
	l.Hold.Tenure.CatchUp()
	if loss := l.Loss(); loss != nil {
		return l.Lock.FailNotHeld(loss)
	}
	return nil
}

// NeverReturned exempts the hold from WithMinHold, and its tenure from being kept, unless the level is a re-entry.
func (l *Level) NeverReturned() {
	if l.IsReentry() {
		return
	}
	l.Hold.Tenure.mu.Lock()
	l.Hold.Tenure.unkept = true
	l.Hold.Tenure.mu.Unlock()
	if l.Lock.MinHold > 0 {
		l.Hold.Tenure.Stays = nil
	}
}

// LeaveUnlock notes that the caller of an unlock of the level leaves. It returns the loss of its hold, if it was lost. Otherwise, if no level
// is open, the lease is not renewed any more (G7).
func (l *Level) LeaveUnlock() (loss error) {
	h, t := l.Hold, l.Hold.Tenure
	t.mu.Lock()
	loss, last := h.loss(), h.levels == nil
	t.callerGone = t.callerGone || loss == nil && last
	t.mu.Unlock()
	if loss == nil && last {
		l.Lock.Client.Leases.Stop(&t.Lease) // no open level remains that would have to be cancelled
	}
	return loss
}

// OnLoss has f called, on a goroutine of its own, when the hold is lost. It reports false if it is already.
func (l *Level) OnLoss(f func()) bool {
	l.Hold.Tenure.mu.Lock()
	defer l.Hold.Tenure.mu.Unlock()
	l.freed = f
	return l.Hold.loss() == nil
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
func (l *Level) Loss() error { return l.Hold.LossSoFar() }
