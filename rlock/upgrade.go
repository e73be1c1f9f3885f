package rlock

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/go-rlock/rlock/internal/ear"
	"github.com/go-rlock/rlock/internal/engine"
	"github.com/go-rlock/rlock/internal/tenure"
)

// Upgradeable is a read/write lock for a reader that may become the writer, see [RWMutex.Upgradeable].
type Upgradeable struct{ rw *RWMutex }

// Upgradeable returns the lock for a reader that may become the writer: it reads, decides, and calls [Upgradeable.Upgrade] if it has to write.
// There is one such reader at a time, beside plain readers. The options apply to its read hold, not to the second lock that it takes.
func (rw *RWMutex) Upgradeable() *Upgradeable { return &Upgradeable{rw.sides()} }

// Name returns the name of the read/write lock.
func (u *Upgradeable) Name() string { return u.sides().Name() }

func (u *Upgradeable) sides() *RWMutex {
	if u == nil || u.rw == nil {
		panic("rlock: an Upgradeable that was not made by an RWMutex")
	}
	return u.rw
}

// Lock is [Mutex.Lock], for the reader that may upgrade. A ctx that carries such a hold re-enters it, and one that carries a write hold reads in
// it. Under any other read hold of the lock it returns [ErrUpgrade] at once.
func (u *Upgradeable) Lock(ctx context.Context) (context.Context, UnlockFunc, error) {
	u.sides().write.check(ctx)
	return u.lockTraced(u.rw.read.lock.Caller(ctx))
}

// TryLock is [Mutex.TryLock].
func (u *Upgradeable) TryLock(ctx context.Context, wait time.Duration) (context.Context, UnlockFunc, error) {
	w := u.sides().write
	w.check(ctx)
	return u.lockTraced(u.rw.read.lock.CallerUpTo(ctx, wait))
}

// Do is [Mutex.Do].
func (u *Upgradeable) Do(ctx context.Context, fn func(ctx context.Context) error) error {
	return inside(ctx, u.Lock, fn)
}

// TryDo is [Mutex.TryDo].
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
		var loss *LostError
		if errors.As(err, &loss) && r.lock.LevelIn(who.Ctx) == nil && u.rw.write.lock.LevelIn(who.Ctx) == nil {
			ofGate := *loss // which it had while it waited
			ofGate.late, err = true, &ofGate
		}
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

// Upgrade turns the reader that ctx carries into the writer, once the other readers have left; new ones wait. It is a Lock of the write side,
// and its unlock turns the writer into a reader again. The end of the reader's section does not end the writer's: unlock that first, or use
// [Upgradeable.UpgradeDo]. The error is [ErrUpgrade] if ctx carries no hold of [Upgradeable.Lock]. After any error the caller is still a reader.
func (u *Upgradeable) Upgrade(ctx context.Context) (context.Context, UnlockFunc, error) {
	w := u.sides().write
	w.check(ctx)
	return w.lockTraced(w.lock.Caller(ctx), without(u.rw.lock.Upgrade))
}

// UpgradeDo is [Mutex.Do] with Upgrade in place of Lock. Afterwards the caller continues as a reader with ctx.
func (u *Upgradeable) UpgradeDo(ctx context.Context, fn func(ctx context.Context) error) error {
	return inside(ctx, u.Upgrade, fn)
}
