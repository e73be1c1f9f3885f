package rlock

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/go-rlock/rlock/internal/ear"
	"github.com/go-rlock/rlock/internal/engine"
	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/internal/tenure"
)

// RWMutex is a handle on a read/write lock in Redis, Redisson's RReadWriteLock, which many readers or one writer may hold. Each side is a
// [Mutex]. A Lock depends on the hold of this lock that ctx carries:
//
//	ctx carries        Read().Lock              Write().Lock
//	no hold            waits for the writer     waits for the writer and all readers
//	a read hold        re-enters                ErrUpgrade at once
//	a write hold       gets a read hold         re-enters
//
// While a writer waits, later readers wait behind it, except Redisson's. After a writer, the first to ask is next. For [HandOff].For after a
// reader was let in, others of its process join it without a command; they have one [Owner].
type RWMutex struct {
	read, write *Mutex
	lock        *engine.RW
}

// RWMutex returns a handle on the read/write lock called name. The options apply to both sides. A [Client.Mutex] of the same name
// excludes it, but neither wakes the other.
func (c *Client) RWMutex(name string, options ...Option) *RWMutex {
	return c.sidesOf(kinds.Write, name, options)
}

// FencedRWMutex is [Client.RWMutex] with fencing tokens for its writers, from the counter of a [Client.FencedMutex]. A reader inside a writer's
// section has the writer's; other readers have none. The writers of an [Client.RWMutex], and Redisson's, do not count: use one kind for one
// name.
func (c *Client) FencedRWMutex(name string, options ...Option) *RWMutex {
	return c.sidesOf(kinds.FencedWrite, name, options)
}

func (c *Client) sidesOf(write *kinds.Kind, name string, options []Option) *RWMutex {
	r, w := c.handle(kinds.Read, name, options), c.handle(write, name, options)
	return &RWMutex{read: r, write: w, lock: engine.NewRW(r.lock, w.lock)}
}

// Name returns the name of the lock.
func (rw *RWMutex) Name() string { return rw.sides().read.Name() }

// Read returns the readers' lock. Under a writer's ctx it is acquired at once, as a separate hold, which lasts until
// its own unlock. But its ctx ends with the writer's, see [RWMutex.Downgrade].
func (rw *RWMutex) Read() *Mutex { return rw.sides().read }

// Write returns the writer's lock, which excludes all others.
func (rw *RWMutex) Write() *Mutex { return rw.sides().write }

func (rw *RWMutex) sides() *RWMutex {
	if rw == nil || rw.read == nil {
		panic("rlock: an RWMutex that was not made by a Client")
	}
	return rw
}

// Downgrade turns the writer that ctx carries into a reader, without letting another writer in: it takes the read lock, and unlocks the
// innermost open level of the write lock, whose own unlock then does nothing and returns nil. The returned ctx has the values of ctx, but the
// cancellation and deadline of the ctx passed to the write side's Lock.
//
// On error Downgrade returns the given ctx, and an unlock that returns [ErrNotHeld]. The error is [ErrNotHeld] if ctx carries no open write
// hold. If the read lock could not be acquired, the caller is still the writer. If the unlock failed, both holds are over.
func (rw *RWMutex) Downgrade(ctx context.Context) (context.Context, UnlockFunc, error) {
	r, w := rw.Read(), rw.Write()
	w.check(ctx)
	return r.lockTraced(tenure.CallerNow(ctx), without(rw.lock.Downgrade))
}

// Upgradeable is a read/write lock for a reader that may become the writer, see [RWMutex.Upgradeable].
type Upgradeable struct{ rw *RWMutex }

// Upgradeable returns the lock for a reader that may become the writer: it reads, decides, and calls [Upgradeable.Upgrade] if it has to write.
// There is one such reader at a time, beside plain readers. [WithLease] and [WithMaxHold] apply to its read hold, not to the second lock that it
// takes.
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
