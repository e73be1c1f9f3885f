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
	for tenure.LevelOf(who.Ctx) != nil {
		enter, outer := reenter, m.LevelIn(who.Ctx)
		if outer == nil {
			enter, outer = enterWithin, m.LevelBeside(who.Ctx)
		}
		if outer == nil {
			break
		}
		o := enter(m, who, outer.Hold)
		if o.IsOver() {
			continue
		}
		if loss := outer.Hold.LossSoFar(); o.Err != nil && loss != nil { // the loss cancelled ctx, and with it the Lock
			return nil, loss
		}
		return o.Level, o.Err
	}
	return compete(m, who, nil)
}

func failed(err error) tenure.Outcome { return tenure.Outcome{Err: err} }

// enterWithin handles a Lock whose ctx carries a hold of the other side. A writer lets a reader in, as a separate hold without
// queueing. A writer inside a reader would wait for itself.
func enterWithin(m *tenure.Lock, who tenure.Caller, outer *tenure.Hold) tenure.Outcome {
	if m.Kind.Side == lua.Writer {
		if loss := outer.LossSoFar(); loss != nil {
			return failed(loss)
		}
		return failed(m.Fail(m.Client.Errors.Upgrade, errReads))
	}
	ok, err := takeCalls(m, who, outer)
	if !ok {
		return failed(err)
	}
	defer outer.Tenure.ReleaseCallSlot()
	l := &Attempt{AcquireRequest: AcquireRequest{Caller: who, Lock: m, Tenure: m.NewTenure(), Count: 1, within: outer}}
	a, left, err := l.ask()
	switch {
	case left: // a late answer is rolled back
	case err != nil:
		l.withdraw()
	case a.Status != lua.Acquired:
		outer.Tenure.Gone()
		return failed(outer.LossSoFar())
	default:
		return l.enter(a)
	}
	return failed(l.Failure(err))
}

// reenter adds a level to a live hold without queueing, and without a call if the hold already has everything needed.
func reenter(m *tenure.Lock, who tenure.Caller, h *tenure.Hold) (o tenure.Outcome) {
	switch {
	case m.NoReentry:
		if o.Err = h.LossSoFar(); o.Err == nil {
			o.Err = m.Fail(m.Client.Errors.Reentry)
		}
	case who.Ctx.Err() != nil:
		o.Err = gaveUp(m, who, nil, lua.AcquireReply{})
	case h.Suffices(m):
		o = reopen(m, who, h, tenure.AcquireResult{Path: tenure.InMemory})
	default:
		o = reenterForMore(m, who, h)
	}
	if o.Level != nil {
		who.Took(tenure.PathReentry)
	}
	return o
}

func reopen(m *tenure.Lock, who tenure.Caller, h *tenure.Hold, a tenure.AcquireResult) tenure.Outcome {
	o := h.Reopen(who.Parent(), m, a)
	if o.Err != nil {
		o.Err = gaveUp(m, who, o.Err, lua.AcquireReply{})
	}
	return o
}

// reenterForMore asks for a level that needs a longer lease than the hold has, or a token.
func reenterForMore(m *tenure.Lock, who tenure.Caller, h *tenure.Hold) tenure.Outcome {
	ok, err := takeCalls(m, who, h)
	if !ok {
		return failed(err)
	}
	t, count := h.Tenure, h.NextCount()
	t.Stated(count, false)
	l := &Attempt{AcquireRequest: AcquireRequest{Caller: who, Lock: m, Tenure: t, Count: count}}
	a, left, err := l.ask()
	if !left {
		defer t.ReleaseCallSlot()
	}
	switch {
	case left, err != nil:
		return failed(gaveUp(m, who, err, lua.AcquireReply{}))
	case a.Status != lua.Acquired:
		t.Gone()
	default:
		t.Stated(count, true)
	}
	return reopen(m, who, h, a)
}
