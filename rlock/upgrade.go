package rlock

import (
	"cmp"
	"context"
	"time"

	"github.com/go-rlock/rlock/internal/ear"
	"github.com/go-rlock/rlock/internal/engine"
	"github.com/go-rlock/rlock/internal/tenure"
)

// Upgradeable is a read/write lock for a reader that may become the writer. There is one such reader at a time, beside any number of plain
// readers, so no two can wait for each other. See [RWMutex.Upgradeable].
type Upgradeable struct{ rw *RWMutex }

// Upgradeable returns the lock for a reader that may become the writer: it reads, decides, and calls [Upgradeable.Upgrade] if it has to
// write. It consists of a read hold and a second lock that only one caller can have. It keeps writers out, and lets other readers in.
//
// The options of the RWMutex apply to the reader. The second lock is renewed until the unlock, or until the reader is lost. If the process
// dies, it lasts for the watchdog time of the handle, even with a shorter [WithLease].
func (rw *RWMutex) Upgradeable() *Upgradeable { return &Upgradeable{rw.sides()} }

// Name returns the name of the read/write lock.
func (u *Upgradeable) Name() string { return u.sides().Name() }

func (u *Upgradeable) sides() *RWMutex {
	if u == nil || u.rw == nil {
		panic("rlock: an Upgradeable that was not made by an RWMutex")
	}
	return u.rw
}

// Lock waits until the caller is the reader that may upgrade, or ctx is done. It works as [Mutex.Lock]. A ctx that carries such a hold
// re-enters it, and one that carries a write hold reads in it. Under any other read hold of the lock it returns [ErrUpgrade] at once,
// because the upgradeable reader could be waiting for that reader.
func (u *Upgradeable) Lock(ctx context.Context) (context.Context, UnlockFunc, error) {
	u.sides().write.check(ctx)
	return u.lockTraced(u.rw.read.lock.Caller(ctx))
}

// TryLock is Lock with a bound on the waiting, as [Mutex.TryLock].
func (u *Upgradeable) TryLock(ctx context.Context, wait time.Duration) (context.Context, UnlockFunc, error) {
	w := u.sides().write
	w.check(ctx)
	return u.lockTraced(u.rw.read.lock.CallerUpTo(ctx, wait))
}

// Do runs fn while it holds the lock, as [Mutex.Do].
func (u *Upgradeable) Do(ctx context.Context, fn func(ctx context.Context) error) error {
	return inside(ctx, u.Lock, fn)
}

// TryDo is Do with TryLock in place of Lock, as [Mutex.TryDo].
func (u *Upgradeable) TryDo(ctx context.Context, wait time.Duration, fn func(ctx context.Context) error) error {
	return inside(ctx, within(u, wait), fn)
}

// lockTraced traces a Lock and its unlock.
func (u *Upgradeable) lockTraced(who tenure.Caller) (context.Context, UnlockFunc, error) {
	r := u.rw.read
	trace := r.client.trace.follow(&who, r.lock.Name, "upgradeable")
	who.Trace = trace.tracer()
	type both struct{ l, gate *tenure.Level }
	got, err := throughOutages(who, r.lock, func(who tenure.Caller) (got both, err error) {
		got.l, got.gate, err = u.rw.lock.LockUpgradeable(who)
		return got, err
	})
	l, gate := got.l, got.gate
	if err != nil {
		trace.ended(who.Ctx, err, nil, nil)
		return who.Ctx, func() error { return notLocked(r.lock) }, err
	}
	ear.AskedTogether(l, who.Ctx)
	unlock := func() error {
		err := engine.Unlock(l)
		if gate != nil {
			err = cmp.Or(err, engine.Unlock(gate))
		}
		return err
	}
	trace.ended(l, nil, nil, func() { _ = unlock() })
	return l, func() error { return trace.released(unlock) }, nil
}

// Upgrade turns the reader that ctx carries into the writer, once the other readers have left; new ones wait. It works as a Lock of the
// write side, and its unlock turns the writer into a reader again. Under a ctx that already carries a write hold it re-enters that.
//
// The end of the reader's section, or of [Upgradeable.Do], does not end the writer's: call the writer's unlock first, or use
// [Upgradeable.UpgradeDo].
//
// The error satisfies errors.Is for [ErrUpgrade] if ctx carries no hold of [Upgradeable.Lock]. Otherwise it is that of [Mutex.Lock], and
// the caller is still a reader.
func (u *Upgradeable) Upgrade(ctx context.Context) (context.Context, UnlockFunc, error) {
	w := u.sides().write
	w.check(ctx)
	return w.lockTraced(w.lock.Caller(ctx), without(u.rw.lock.Upgrade))
}

// UpgradeDo runs fn while the reader that ctx carries is the writer: it calls Upgrade, fn with the writer's ctx, and the unlock. Otherwise
// it works as [Mutex.Do]. Afterwards the caller continues as a reader with ctx.
func (u *Upgradeable) UpgradeDo(ctx context.Context, fn func(ctx context.Context) error) error {
	return inside(ctx, u.Upgrade, fn)
}
