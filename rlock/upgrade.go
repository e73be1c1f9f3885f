package rlock

import (
	"cmp"
	"context"
	"errors"
	"time"
)

// Upgradeable is a read/write lock for a reader that may become the writer. There is one such reader at a time, beside any number
// of others, so that two cannot wait for each other. See [RWMutex.Upgradeable].
type Upgradeable struct{ rw *RWMutex }

// Upgradeable returns the lock for a reader that may become the writer: it reads, decides, and calls [Upgradeable.Upgrade] if it
// has to write. It is a read hold, and a lock of its own beside it, which only one can have; so it costs two commands each way. It
// keeps writers out, and other readers in.
//
// The options of the RWMutex are for the reader. The lock beside it is renewed until the unlock, or until the reader is lost; if the
// process dies, it lasts for the watchdog time, also with a shorter [WithLease].
func (rw *RWMutex) Upgradeable() *Upgradeable { return &Upgradeable{rw.sides()} }

// Name returns the name of the read/write lock.
func (u *Upgradeable) Name() string { return u.sides().Name() }

func (u *Upgradeable) sides() *RWMutex {
	if u == nil || u.rw == nil {
		panic("rlock: an Upgradeable that was not made by an RWMutex")
	}
	return u.rw
}

// Lock waits until the caller is the reader that may upgrade, or ctx is done. It works as [Mutex.Lock]. A ctx that carries
// such a hold re-enters it, and one that carries a write hold reads in it. Under any other read hold of the lock it returns
// [ErrUpgrade] at once: who may upgrade could wait for that reader.
func (u *Upgradeable) Lock(ctx context.Context) (context.Context, UnlockFunc, error) {
	u.sides().write.check(ctx)
	return u.lockTraced(callerNow(ctx))
}

// TryLock is Lock with a bound on the waiting, as [Mutex.TryLock].
func (u *Upgradeable) TryLock(ctx context.Context, wait time.Duration) (context.Context, UnlockFunc, error) {
	w := u.sides().write
	w.check(ctx)
	return u.lockTraced(callerNow(ctx).upTo(wait, w.engine.minAttempt()))
}

// Do runs fn while it holds the lock, as [Mutex.Do].
func (u *Upgradeable) Do(ctx context.Context, fn func(ctx context.Context) error) error {
	return inside(ctx, u.Lock, fn)
}

// TryDo is Do with TryLock in place of Lock, as [Mutex.TryDo].
func (u *Upgradeable) TryDo(ctx context.Context, wait time.Duration, fn func(ctx context.Context) error) error {
	return inside(ctx, within(u, wait), fn)
}

// lockTraced tells of a Lock and of its unlock.
func (u *Upgradeable) lockTraced(who caller) (context.Context, UnlockFunc, error) {
	r := u.rw.read
	who.trace = r.engine.options.Trace.follow(who.ctx, r.name, "upgradeable", who.began)
	l, gate, err := u.lock(who)
	if err != nil {
		who.trace.ended(who.ctx, err, nil)
		return r.result(who.ctx, nil, err)
	}
	if gate != nil {
		l.keeps(gate)
	}
	unlock := func() error {
		err := l.unlock()
		if gate != nil {
			err = cmp.Or(err, gate.unlock())
		}
		return err
	}
	who.trace.ended(l, nil, func() { _ = unlock() })
	return l, func() error { return who.trace.released(unlock) }, nil
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

// lock takes the gate, unless the caller is the writer, and then the read lock.
func (u *Upgradeable) lock(who caller) (l, gate *level, err error) {
	r, w := u.rw.read, u.rw.write
	if w.invalid != nil {
		return nil, nil, w.invalid
	}
	if w.levelIn(who.ctx) != nil {
		l, err = r.lock(who)
		return l, nil, err
	}
	if !w.engine.calls.Start() {
		return nil, nil, r.fail(ErrClosed)
	}
	defer w.engine.calls.Ended() // Close waits for the gate to be given back
	if gate, err = u.lockGate(who); err != nil {
		return nil, nil, err
	}
	outer := who
	who.ctx = gate
	alone := *r.spec // Redis lets the writer in beside this reader, and no other
	alone.alone = true
	if l, err = alone.lock(who); err != nil {
		got := gate
		outer.leaveTo(func() { _ = got.unlock() }, w.engine) // nobody was in
		return nil, nil, orLoss(err, got.hold)
	}
	return l, gate, nil
}

// lockGate competes for the gate, or re-enters that of the reader that ctx carries: who has a reader never waits for it.
func (u *Upgradeable) lockGate(who caller) (*level, error) {
	for {
		reader := u.rw.read.levelIn(who.ctx)
		if reader == nil {
			return u.rw.gate.lock(who)
		}
		gate, err := (*level)(nil), u.rw.read.fail(ErrUpgrade, errReads)
		if held := u.rw.gate.levelIn(who.ctx); held != nil {
			gate, err = u.rw.gate.reenter(who, held.hold)
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

// Upgrade makes the writer of the reader that ctx carries, when the other readers have left; new ones wait. It works as a Lock of
// the write side: its unlock makes a reader of the writer again. Under a ctx that carries a write hold already it re-enters
// that.
//
// The end of the reader's section, also that of [Upgradeable.Do], does not end the writer's: call its unlock first, or use
// [Upgradeable.UpgradeDo].
//
// The error satisfies errors.Is for [ErrUpgrade] if ctx carries no hold of [Upgradeable.Lock], and otherwise is that of
// [Mutex.Lock]; the caller then goes on as a reader.
func (u *Upgradeable) Upgrade(ctx context.Context) (context.Context, UnlockFunc, error) {
	w := u.sides().write
	w.check(ctx)
	return w.lockTraced(callerNow(ctx), u.upgrade)
}

// UpgradeDo runs fn while the reader that ctx carries is the writer: Upgrade, fn with the ctx of the writer, its unlock. Otherwise it
// works as [Mutex.Do]. Afterwards the caller goes on as a reader with ctx.
func (u *Upgradeable) UpgradeDo(ctx context.Context, fn func(ctx context.Context) error) error {
	return inside(ctx, u.Upgrade, fn)
}

func (u *Upgradeable) upgrade(who caller) (*level, error) {
	r, w := u.rw.read, u.rw.write
	reader, gate := r.levelIn(who.ctx), u.rw.gate.levelIn(who.ctx)
	switch {
	case w.levelIn(who.ctx) != nil:
		return w.lock(who)
	case reader != nil && reader.hold.lossSoFar() != nil:
		return nil, reader.hold.lossSoFar()
	case reader == nil || gate == nil:
		return nil, w.fail(ErrUpgrade, errors.New("the ctx carries no hold of Upgradeable (use the ctx that its Lock returned)"))
	}
	if !w.engine.calls.Start() {
		return nil, w.fail(ErrClosed)
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
