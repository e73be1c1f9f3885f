package engine

import (
	"errors"

	"github.com/go-rlock/rlock/lua"
)

var errReads = errors.New("the ctx carries a read hold (unlock that first; only a reader of Upgradeable can become the writer, by its Upgrade)")

// Lock re-enters the hold of the lock in the caller's ctx, or competes.
func (m *Lock) Lock(who Caller) (*Level, error) {
	if err := m.StartCall(); err != nil {
		return nil, err
	}
	c := m.Engine
	defer c.Calls.Ended()
	if err := m.Fits(); err != nil {
		return nil, m.Fail(err)
	}
	for {
		enter, outer := m.reenter, m.LevelIn(who.Ctx)
		if outer == nil {
			enter, outer = m.enterWithin, m.LevelBeside(who.Ctx)
		}
		if outer == nil {
			return m.compete(who, nil)
		}
		l, err := enter(who, outer.hold)
		if err == ErrOver { //nolint:errorlint // never wrapped
			continue
		}
		if loss := outer.hold.LossSoFar(); err != nil && loss != nil { // the loss cancelled ctx, and with it the Lock
			return nil, loss
		}
		return l, err
	}
}

// enterWithin handles a Lock whose ctx carries a hold of the other side. A writer lets a reader in, as a separate hold without
// queueing. A writer inside a reader would wait for itself.
func (m *Lock) enterWithin(who Caller, outer *Hold) (*Level, error) {
	if m.Kind.Side == lua.Writer {
		if loss := outer.LossSoFar(); loss != nil {
			return nil, loss
		}
		return nil, m.Fail(m.Engine.Errors.Upgrade, errReads)
	}
	if err := m.takeCalls(who, outer); err != nil {
		return nil, err
	}
	defer outer.tenure.ReleaseCallSlot()
	l := &Attempt{AcquireRequest: AcquireRequest{Caller: who, Lock: m, Tenure: m.NewTenure(), Count: 1, within: outer}}
	a, left, err := l.ask()
	switch {
	case left: // a late answer is rolled back
	case err != nil:
		l.withdraw((*Engine).SweepInCall)
	case !a.Granted():
		outer.tenure.Gone()
		return nil, outer.LossSoFar()
	default:
		return l.enter(a)
	}
	return nil, l.Failure(err)
}

// reenter adds a level to a live hold without queueing, and without a call if the hold already has everything needed.
func (m *Lock) reenter(who Caller, h *Hold) (l *Level, err error) {
	if m.NoReentry {
		if loss := h.LossSoFar(); loss != nil {
			return nil, loss
		}
		return nil, m.Fail(m.Engine.Errors.Reentry)
	}
	switch {
	case who.Ctx.Err() != nil:
		err = m.gaveUp(who, nil, lua.AcquireReply{})
	case h.Suffices(m):
		l, err = m.reopen(who, h, AcquireResult{How: InMemory})
	default:
		l, err = m.reenterForMore(who, h)
	}
	if err == nil {
		who.Took(PathReentry)
	}
	return l, err
}

// reopen opens one more level.
func (m *Lock) reopen(who Caller, h *Hold, a AcquireResult) (*Level, error) {
	l, err := h.Reopen(who.Parent(), m, a)
	if err != nil && err != ErrOver { //nolint:errorlint // never wrapped
		err = m.gaveUp(who, err, lua.AcquireReply{})
	}
	return l, err
}

// reenterForMore asks for a level that needs a longer lease than the hold has, or a token.
func (m *Lock) reenterForMore(who Caller, h *Hold) (*Level, error) {
	if err := m.takeCalls(who, h); err != nil {
		return nil, err
	}
	t, count := h.tenure, h.NextCount()
	t.Stated(count, false)
	l := &Attempt{AcquireRequest: AcquireRequest{Caller: who, Lock: m, Tenure: t, Count: count}}
	a, left, err := l.ask()
	if !left {
		defer t.ReleaseCallSlot()
	}
	switch {
	case left, err != nil:
		return nil, m.gaveUp(who, err, lua.AcquireReply{})
	case !a.Granted():
		t.Gone()
	default:
		t.Stated(count, true)
	}
	return m.reopen(who, h, a)
}
