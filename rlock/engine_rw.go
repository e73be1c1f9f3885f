package rlock

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/lua"
)

// rwLock is a read/write lock: how one side goes on as the other.
type rwLock struct {
	read, write *spec
	gate        *spec // for the one that may upgrade: a lock of its own
}

// newRWLock makes one of its sides.
func newRWLock(read, write *spec) *rwLock {
	gate := read.engine.newSpec(kinds.Own("rlock_upgrade")(read.key), kinds.Mutex, read.name)
	// Not the lease and the bound of the reader, which may have to wait first.
	gate.minHold, gate.grace, gate.noReentry, gate.invalid = read.minHold, read.grace, read.noReentry, read.invalid
	return &rwLock{read: read, write: write, gate: gate}
}

// downgrade takes the read lock in place of the write lock that the caller's ctx carries.
func (rw *rwLock) downgrade(who caller) (*level, error) {
	writer := rw.write.levelIn(who.ctx)
	if writer == nil {
		return nil, rw.write.notHeld(errors.New("the ctx carries no open write hold (use the ctx that the writer's Lock returned)"))
	}
	if !rw.read.engine.calls.Start() {
		return nil, rw.read.closed()
	}
	defer rw.read.engine.calls.Ended()
	outer, _ := writer.Context.Value(outerKey{}).(*outerCtx)
	read := *rw.read
	read.noReentry = false // a writer that was a reader before is that again
	caller := who
	inner, cancel := context.WithCancelCause(outer.Context)
	left := &leftCtx{Context: inner, caller: caller.ctx}
	stop := context.AfterFunc(caller.ctx, func() { // until it has the lock
		left.left.Store(true)
		cancel(context.Cause(caller.ctx))
	})
	who.ctx = valuesOf{left, context.WithoutCancel(caller.ctx)}
	l, err := read.lock(who)
	if err == nil && !stop() {
		caller.leaveTo(func() { _ = l.unlock() }, read.engine)
		err = read.gaveUp(caller, nil, lua.AcquireReply{})
	}
	if err != nil {
		stop()
		cancel(nil)
		return nil, err
	}
	context.AfterFunc(l, func() { cancel(nil) }) // ends at once
	stays := false
	defer func() {
		if !stays { // the hold of the writer was lost, or may be, or its Trace panics
			caller.ctx = outer.Context // the other one ended with the writer
			caller.leaveTo(func() { _ = l.unlock() }, read.engine)
		}
	}()
	if err := writer.unlock(); err != nil {
		return nil, err
	}
	stays = true
	outer.downgraded.Store(true)
	who.took(pathAlone) // no re-entry: it goes on alone
	return l, nil
}

// leftCtx is the ctx of a Lock whose caller may leave when another ctx is done, and then says why as that one does.
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

// valuesOf is a ctx with the values of another one. Those for package context itself are not among them, if the other one
// is without cancel: the ctx ends as it did.
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

// lockUpgradeable takes the gate, unless the caller is the writer, and then the read lock. A gate is to be unlocked after the level.
func (rw *rwLock) lockUpgradeable(who caller) (l, gate *level, err error) {
	r, w := rw.read, rw.write
	if w.invalid != nil {
		return nil, nil, w.invalid
	}
	if w.levelIn(who.ctx) != nil {
		l, err = r.lock(who)
		return l, nil, err
	}
	if !w.engine.calls.Start() {
		return nil, nil, r.closed()
	}
	defer w.engine.calls.Ended() // Close waits for the gate to be given back
	if gate, err = rw.lockGate(who); err != nil {
		return nil, nil, err
	}
	outer := who
	who.ctx = gate
	alone := *r // Redis lets the writer in beside this reader, and no other
	alone.alone = true
	if l, err = alone.lock(who); err != nil {
		got := gate
		outer.leaveTo(func() { _ = got.unlock() }, w.engine) // nobody was in
		return nil, nil, orLoss(err, got.hold)
	}
	l.keeps(gate)
	return l, gate, nil
}

// lockGate competes for the gate, or re-enters that of the reader that ctx carries: who has a reader never waits for it.
func (rw *rwLock) lockGate(who caller) (*level, error) {
	for {
		reader := rw.read.levelIn(who.ctx)
		if reader == nil {
			return rw.gate.lock(who)
		}
		gate, err := (*level)(nil), rw.read.fail(rw.read.engine.errs.Upgrade, errReads)
		if held := rw.gate.levelIn(who.ctx); held != nil {
			gate, err = rw.gate.reenter(who, held.hold)
		}
		if err == errOver { //nolint:errorlint // never wrapped
			continue
		}
		if err != nil {
			err = orLoss(err, reader.hold) // then the gate is free, see level.keeps
		}
		return gate, err
	}
}

// keeps has the gate freed when the reader is lost, for others who may upgrade then: nobody need call the unlock.
func (l *level) keeps(gate *level) {
	t := l.hold.tenure
	t.mu.Lock()
	l.gate = gate
	lost := l.hold.loss() != nil
	t.mu.Unlock()
	if lost {
		go gate.free() // ends as unlocks do; Close waits for it
	}
}

// upgrade takes the write lock under that of the reader that may.
func (rw *rwLock) upgrade(who caller) (*level, error) {
	r, w := rw.read, rw.write
	reader, gate := r.levelIn(who.ctx), rw.gate.levelIn(who.ctx)
	switch {
	case w.levelIn(who.ctx) != nil:
		return w.lock(who)
	case reader != nil && reader.hold.lossSoFar() != nil:
		return nil, reader.hold.lossSoFar()
	case reader == nil || gate == nil:
		return nil, w.fail(w.engine.errs.Upgrade, errors.New("the ctx carries no hold of Upgradeable (use the ctx that its Lock returned)"))
	}
	if !w.engine.calls.Start() {
		return nil, w.closed()
	}
	defer w.engine.calls.Ended()
	l, err := w.compete(who, reader.hold)
	if err != nil {
		return nil, orLoss(err, reader.hold, gate.hold)
	}
	return l, nil
}

// orLoss is the loss of one of the holds, which ended the ctx of a Lock that failed, and otherwise its error.
func orLoss(err error, holds ...*hold) error {
	for _, h := range holds {
		if loss := h.lossSoFar(); loss != nil {
			return loss
		}
	}
	return err
}
