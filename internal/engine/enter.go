package engine

import (
	"errors"

	"github.com/go-rlock/rlock/internal/tenure"
	"github.com/go-rlock/rlock/lua"
)

var errReads = errors.New("the ctx carries a read hold (unlock that first; only a reader of Upgradeable can become the writer, by its Upgrade)")

// Lock re-enters the hold of the lock in the caller's ctx, or competes.
func Lock(m *tenure.Lock, who tenure.Caller) (*tenure.Level, error) {
	if err := m.StartCall(); err != nil {
		return nil, err
	}
	c := m.Client
	defer c.Calls.Ended()
	if err := m.Fits(); err != nil {
		return nil, m.Fail(err)
	}
	for {
		enter, outer := reenter, m.LevelIn(who.Ctx)
		if outer == nil {
			enter, outer = enterWithin, m.LevelBeside(who.Ctx)
		}
		if outer == nil {
			return compete(m, who, nil)
		}
		l, err := enter(m, who, outer.Hold())
		if err == tenure.ErrOver { //nolint:errorlint // never wrapped
			continue
		}
		if loss := outer.Hold().LossSoFar(); err != nil && loss != nil { // the loss cancelled ctx, and with it the Lock
			return nil, loss
		}
		return l, err
	}
}

// enterWithin handles a Lock whose ctx carries a hold of the other side. A writer lets a reader in, as a separate hold without
// queueing. A writer inside a reader would wait for itself.
func enterWithin(m *tenure.Lock, who tenure.Caller, outer *tenure.Hold) (*tenure.Level, error) {
	if m.Kind.Side == lua.Writer {
		if loss := outer.LossSoFar(); loss != nil {
			return nil, loss
		}
		return nil, m.Fail(m.Client.Errors.Upgrade, errReads)
	}
	if err := takeCalls(m, who, outer); err != nil {
		return nil, err
	}
	defer outer.Tenure().ReleaseCallSlot()
	l := &Attempt{AcquireRequest: AcquireRequest{Caller: who, Lock: m, Tenure: m.NewTenure(), Count: 1, within: outer}}
	a, left, err := l.ask()
	switch {
	case left: // a late answer is rolled back
	case err != nil:
		l.withdraw((*tenure.Client).SweepInCall)
	case !a.Granted():
		outer.Tenure().Gone()
		return nil, outer.LossSoFar()
	default:
		return l.enter(a)
	}
	return nil, l.Failure(err)
}

// reenter adds a level to a live hold without queueing, and without a call if the hold already has everything needed.
func reenter(m *tenure.Lock, who tenure.Caller, h *tenure.Hold) (l *tenure.Level, err error) {
	if m.NoReentry {
		if loss := h.LossSoFar(); loss != nil {
			return nil, loss
		}
		return nil, m.Fail(m.Client.Errors.Reentry)
	}
	switch {
	case who.Ctx.Err() != nil:
		err = gaveUp(m, who, nil, lua.AcquireReply{})
	case h.Suffices(m):
		l, err = reopen(m, who, h, tenure.AcquireResult{Path: tenure.InMemory})
	default:
		l, err = reenterForMore(m, who, h)
	}
	if err == nil {
		who.Took(tenure.PathReentry)
	}
	return l, err
}

// reopen opens one more level.
func reopen(m *tenure.Lock, who tenure.Caller, h *tenure.Hold, a tenure.AcquireResult) (*tenure.Level, error) {
	l, err := h.Reopen(who.Parent(), m, a)
	if err != nil && err != tenure.ErrOver { //nolint:errorlint // never wrapped
		err = gaveUp(m, who, err, lua.AcquireReply{})
	}
	return l, err
}

// reenterForMore asks for a level that needs a longer lease than the hold has, or a token.
func reenterForMore(m *tenure.Lock, who tenure.Caller, h *tenure.Hold) (*tenure.Level, error) {
	if err := takeCalls(m, who, h); err != nil {
		return nil, err
	}
	t, count := h.Tenure(), h.NextCount()
	t.Stated(count, false)
	l := &Attempt{AcquireRequest: AcquireRequest{Caller: who, Lock: m, Tenure: t, Count: count}}
	a, left, err := l.ask()
	if !left {
		defer t.ReleaseCallSlot()
	}
	switch {
	case left, err != nil:
		return nil, gaveUp(m, who, err, lua.AcquireReply{})
	case !a.Granted():
		t.Gone()
	default:
		t.Stated(count, true)
	}
	return reopen(m, who, h, a)
}
