package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-rlock/rlock/internal/kinds"
)

// RW is a read/write lock. It upgrades and downgrades between the two sides.
type RW struct {
	read, write *Lock
	gate        *Lock // a separate lock, for the one reader that may upgrade
}

// NewRW makes an RW of its two sides.
func NewRW(read, write *Lock) *RW {
	t := read.Terms
	t.Lease, t.MaxHold, t.MaxWait, t.Invalid = 0, 0, 0, nil // the reader may have to wait first
	gate := read.Engine.NewLock(kinds.Own("rlock_upgrade")(read.Key), kinds.Mutex, read.Name, t)
	gate.beside, gate.Invalid = true, read.Invalid
	return &RW{read: read, write: write, gate: gate}
}

// Downgrade replaces the write lock that the caller's ctx carries by the read lock.
func (rw *RW) Downgrade(who Caller) (*Level, error) {
	writer := rw.write.LevelIn(who.Ctx)
	if writer == nil {
		return nil, rw.write.FailNotHeld(errors.New("the ctx carries no open write hold (use the ctx that the writer's Lock returned)"))
	}
	if !rw.read.Engine.Calls.Start() {
		return nil, rw.read.FailClosed()
	}
	defer rw.read.Engine.Calls.Ended()
	outer, _ := writer.Context.Value(outerKey{}).(*outerCtx)
	read := *rw.read
	read.NoReentry = false // a writer that was a reader before becomes one again
	caller := who
	who.parent = valuesOf{outer.Context, context.WithoutCancel(who.Ctx)}
	l, err := read.Lock(who)
	if err != nil {
		return nil, err
	}
	stays := false
	defer func() {
		if !stays { // the writer's hold was lost, or may be, or its Trace panics
			caller.Ctx = outer.Context // the writer's ctx has ended
			caller.LeaveTo(func() { _ = l.Unlock() }, read.Engine)
		}
	}()
	if err := writer.Unlock(); err != nil {
		return nil, err
	}
	stays = true
	outer.downgraded.Store(true)
	who.Took(PathAlone) // the writer has ended, so this is no re-entry
	return l, nil
}

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

// LockUpgradeable takes the gate, unless the caller is the writer, and then the read lock. Unlock the gate after the level.
func (rw *RW) LockUpgradeable(who Caller) (l, gate *Level, err error) {
	r, w := rw.read, rw.write
	if w.Invalid != nil {
		return nil, nil, w.Invalid
	}
	if w.LevelIn(who.Ctx) != nil {
		l, err = r.Lock(who)
		return l, nil, err
	}
	if !w.Engine.Calls.Start() {
		return nil, nil, r.FailClosed()
	}
	defer w.Engine.Calls.Ended() // Close waits for the gate to be given back
	if gate, err = rw.lockGate(who); err != nil {
		return nil, nil, err
	}
	outer := who
	who, stop := who.Inside(gate)
	defer stop()
	alone := *r // Redis lets the writer in beside this reader only
	alone.shares = false
	if l, err = alone.Lock(who); err != nil {
		got := gate
		outer.LeaveTo(func() { _ = got.Unlock() }, w.Engine) // no section ran under it
		return nil, nil, orLoss(err, got.hold)
	}
	l.keeps(gate)
	return l, gate, nil
}

// lockGate competes for the gate, or re-enters the gate of the reader in ctx. A caller that holds a reader never waits for the gate.
func (rw *RW) lockGate(who Caller) (*Level, error) {
	for {
		reader := rw.read.LevelIn(who.Ctx)
		if reader == nil {
			return rw.gate.Lock(who)
		}
		gate, err := (*Level)(nil), rw.read.Fail(rw.read.Engine.Errors.Upgrade, errReads)
		if held := rw.gate.LevelIn(who.Ctx); held != nil {
			gate, err = rw.gate.reenter(who, held.hold)
		}
		if err == ErrOver { //nolint:errorlint // never wrapped
			continue
		}
		if err != nil {
			err = orLoss(err, reader.hold) // its loss frees the gate, see Level.keeps
		}
		return gate, err
	}
}

// keeps frees the gate when the reader is lost, even if nobody calls Unlock, so that another reader can upgrade.
func (l *Level) keeps(gate *Level) {
	t := l.hold.tenure
	t.mu.Lock()
	l.freed = gate.free
	lost := l.hold.loss() != nil
	t.mu.Unlock()
	if lost {
		go gate.free() // ends as any unlock does; Close waits for it
	}
}

// Upgrade takes the write lock under the upgradeable reader's hold.
func (rw *RW) Upgrade(who Caller) (*Level, error) {
	r, w := rw.read, rw.write
	reader, gate := r.LevelIn(who.Ctx), rw.gate.LevelIn(who.Ctx)
	switch {
	case w.LevelIn(who.Ctx) != nil:
		return w.Lock(who)
	case reader != nil && reader.hold.lossSoFar() != nil:
		return nil, reader.hold.lossSoFar()
	case reader == nil || gate == nil:
		return nil, w.Fail(w.Engine.Errors.Upgrade, errors.New("the ctx carries no hold of Upgradeable (use the ctx that its Lock returned)"))
	}
	if !w.Engine.Calls.Start() {
		return nil, w.FailClosed()
	}
	defer w.Engine.Calls.Ended()
	l, err := w.compete(who, reader.hold)
	if err != nil {
		return nil, orLoss(err, reader.hold, gate.hold)
	}
	return l, nil
}

// orLoss returns the loss of one of the holds, if there is one: it ended the ctx of the failed Lock. Otherwise it returns err.
func orLoss(err error, holds ...*Hold) error {
	for _, h := range holds {
		if loss := h.lossSoFar(); loss != nil {
			return loss
		}
	}
	return err
}

// free unlocks the gate of a lost reader.
func (l *Level) free() {
	if c := l.lock.Engine; c.Calls.Start() {
		defer c.Calls.Ended()
		_ = l.Unlock()
	}
}
