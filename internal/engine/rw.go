package engine

import (
	"errors"

	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/internal/tenure"
)

// RW is a read/write lock. It upgrades and downgrades between the two sides.
type RW struct {
	read, write *tenure.Lock
	gate        *tenure.Lock // a separate lock, for the one reader that may upgrade
}

// NewRW makes an RW of its two sides.
func NewRW(read, write *tenure.Lock) *RW {
	t := read.Terms
	t.Lease, t.MaxHold, t.MaxWait, t.Invalid = 0, 0, 0, nil // the reader may have to wait first
	gate := read.Client.NewLock(kinds.Own("rlock_upgrade")(read.Key), kinds.Mutex, read.Name, t)
	gate.IsUpgradeGate, gate.Invalid = true, read.Invalid
	return &RW{read: read, write: write, gate: gate}
}

// Downgrade replaces the write lock that the caller's ctx carries by the read lock.
func (rw *RW) Downgrade(who tenure.Caller) (*tenure.Level, error) {
	writer := rw.write.LevelIn(who.Ctx)
	if writer == nil {
		return nil, rw.write.FailNotHeld(errors.New("the ctx carries no open write hold (use the ctx that the writer's Lock returned)"))
	}
	if !rw.read.Client.Calls.Start() {
		return nil, rw.read.FailClosed()
	}
	defer rw.read.Client.Calls.Ended()
	outer := writer.Outer()
	read := *rw.read
	read.NoReentry = false // a writer that was a reader before becomes one again
	caller := who
	who = who.In(outer)
	l, err := Lock(&read, who)
	if err != nil {
		return nil, err
	}
	stays := false
	defer func() {
		if !stays { // the writer's hold was lost, or may be, or its Trace panics
			caller.Ctx = outer // the writer's ctx has ended
			caller.LeaveTo(func() { _ = Unlock(l) }, read.Client.Options.Tell, read.Client)
		}
	}()
	if err := Unlock(writer); err != nil {
		return nil, err
	}
	stays = true
	writer.Downgraded()
	who.Took(tenure.PathAlone) // the writer has ended, so this is no re-entry
	return l, nil
}

// LockUpgradeable takes the gate, unless the caller is the writer, and then the read lock. Unlock the gate after the level.
func (rw *RW) LockUpgradeable(who tenure.Caller) (l, gate *tenure.Level, err error) {
	r, w := rw.read, rw.write
	if w.Invalid != nil {
		return nil, nil, w.Invalid
	}
	if w.LevelIn(who.Ctx) != nil {
		l, err = Lock(r, who)
		return l, nil, err
	}
	if !w.Client.Calls.Start() {
		return nil, nil, r.FailClosed()
	}
	defer w.Client.Calls.Ended() // Close waits for the gate to be given back
	if gate, err = rw.lockGate(who); err != nil {
		return nil, nil, err
	}
	outer := who
	who, stop := who.Inside(gate)
	defer stop()
	unshared := *r // Redis lets the writer in beside this reader only
	unshared.Shares = false
	if l, err = Lock(&unshared, who); err != nil {
		got := gate
		outer.LeaveTo(func() { _ = Unlock(got) }, w.Client.Options.Tell, w.Client) // no section ran under it
		return nil, nil, orLoss(err, got.Hold)
	}
	free := func() { rw.free(gate) } // even if nobody calls Unlock, so that another reader can upgrade
	if !l.OnLoss(free) {
		go free() // ends as any unlock does; Close waits for it
	}
	return l, gate, nil
}

// lockGate competes for the gate, or re-enters the gate of the reader in ctx. A caller that holds a reader never waits for the gate.
func (rw *RW) lockGate(who tenure.Caller) (*tenure.Level, error) {
	for {
		reader := rw.read.LevelIn(who.Ctx)
		if reader == nil {
			return Lock(rw.gate, who)
		}
		o := tenure.Outcome{Err: rw.read.Fail(rw.read.Client.Errors.Upgrade, errReads)}
		if held := rw.gate.LevelIn(who.Ctx); held != nil {
			o = reenter(rw.gate, who, held.Hold)
		}
		switch {
		case o.Err != nil:
			return nil, orLoss(o.Err, reader.Hold) // its loss frees the gate
		case o.Level != nil:
			return o.Level, nil
		}
	}
}

// Upgrade takes the write lock under the upgradeable reader's hold.
func (rw *RW) Upgrade(who tenure.Caller) (*tenure.Level, error) {
	r, w := rw.read, rw.write
	reader, gate := r.LevelIn(who.Ctx), rw.gate.LevelIn(who.Ctx)
	switch {
	case w.LevelIn(who.Ctx) != nil:
		return Lock(w, who)
	case reader != nil && reader.Hold.LossSoFar() != nil:
		return nil, reader.Hold.LossSoFar()
	case reader == nil || gate == nil:
		return nil, w.Fail(w.Client.Errors.Upgrade, errors.New("the ctx carries no hold of Upgradeable (use the ctx that its Lock returned)"))
	}
	if !w.Client.Calls.Start() {
		return nil, w.FailClosed()
	}
	defer w.Client.Calls.Ended()
	l, err := compete(w, who, reader.Hold)
	if err != nil {
		return nil, orLoss(err, reader.Hold, gate.Hold)
	}
	return l, nil
}

// orLoss returns the loss of one of the holds, if there is one: it ended the ctx of the failed Lock. Otherwise it returns err.
func orLoss(err error, holds ...*tenure.Hold) error {
	for _, h := range holds {
		if loss := h.LossSoFar(); loss != nil {
			return loss
		}
	}
	return err
}

func (rw *RW) free(gate *tenure.Level) {
	if c := rw.gate.Client; c.Calls.Start() {
		defer c.Calls.Ended()
		_ = Unlock(gate)
	}
}
