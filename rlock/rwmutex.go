package rlock

import (
	"context"

	"github.com/go-rlock/rlock/internal/engine"
	"github.com/go-rlock/rlock/internal/kinds"
)

// RWMutex is a handle on a read/write lock in Redis: many readers may hold it, or one writer. It is Redisson's
// RReadWriteLock. Its sides are locks as any other, with all that a [Mutex] has. Like a Mutex it has no state of its own.
//
// A Lock depends on the hold of this lock that ctx carries:
//
//	ctx carries        Read().Lock              Write().Lock
//	no hold            waits for the writer     waits for the writer and all readers
//	a read hold        re-enters                ErrUpgrade at once
//	a write hold       is let in                re-enters
//
// With [WithoutReentry] a Lock that would re-enter is [ErrReentry]; the sides count as two locks, so a writer may still read.
//
// While a writer waits, readers that come later wait behind it, in all processes of this library. After a writer, whoever asks
// first is next. Readers of one process that wait together are let in together, and those that come within [HandOff].For after that join
// them without a command, unless they have a lease or a bound of their own; they have one [Owner]. Redisson's readers cannot be asked to
// wait.
type RWMutex struct {
	read, write *Mutex
	lock        *engine.RW
}

// RWMutex returns a handle on the read/write lock called name. It does no I/O. The options are for both sides. An empty name and bad
// options are reported by the methods of the handles. It panics if the Client is nil.
//
// The lock is the Redis key of that name, as for [Client.Mutex], and a Mutex and an RWMutex of one name exclude, but do not
// wake each other; Redisson's read/write lock even enters a Mutex that is held. On a cluster, braces in a name may only be around
// what is hashed.
func (c *Client) RWMutex(name string, options ...Option) *RWMutex {
	return c.sidesOf(kinds.Write, name, options)
}

// FencedRWMutex is RWMutex with a fencing token for its writers, as a [Client.FencedMutex] has one: a number that rises with every hold of
// the write side, and of a FencedMutex of that name. [FencingToken] returns it from the ctx of the writer's section, and of a reader in
// that, as long as the writer's section is open: a [RWMutex.Downgrade] ends it. Other readers have no token, and do not change the counter.
//
// Use it wherever the name is locked: the writers of an RWMutex, and Redisson's, which has no such lock, do not count.
func (c *Client) FencedRWMutex(name string, options ...Option) *RWMutex {
	return c.sidesOf(kinds.FencedWrite, name, options)
}

func (c *Client) sidesOf(write *kinds.Kind, name string, options []Option) *RWMutex {
	r, w := c.handle(kinds.Read, name, options), c.handle(write, name, options)
	return &RWMutex{read: r, write: w, lock: engine.NewRW(r.spec, w.spec)}
}

// Name returns the name of the lock.
func (rw *RWMutex) Name() string { return rw.sides().read.Name() }

// Read returns the lock of the readers, which many can hold at a time. Under a writer's ctx it is acquired at once, as a separate
// hold: it lasts until its own unlock, but its ctx ends with the writer's, see [RWMutex.Downgrade].
func (rw *RWMutex) Read() *Mutex { return rw.sides().read }

// Write returns the lock of the writer, which keeps all others out.
func (rw *RWMutex) Write() *Mutex { return rw.sides().write }

func (rw *RWMutex) sides() *RWMutex {
	if rw == nil || rw.read == nil {
		panic("rlock: an RWMutex that was not made by a Client")
	}
	return rw
}

// Downgrade makes a reader of the writer that ctx carries, without letting another writer in between: it takes the read lock, and
// unlocks the innermost open level of the write lock. Readers that wait are woken, and come in.
//
// The ctx that it returns has the values of ctx, but the cancellation and the deadline of the ctx that was given to the Lock of the write
// side, for that of the writer's section ends here. (The same without Downgrade: lock the read side with
// [context.WithoutCancel] of ctx, then unlock the write side.) The unlock of that Lock has nothing left to do, and returns nil: defer it
// as ever, or call Downgrade in a Do of the write side.
//
// On error the given ctx comes back, and an unlock that returns ErrNotHeld. If ctx carries no open write hold, the error satisfies
// errors.Is for ErrNotHeld. If the read lock could not be had, the error says why, and the writer goes on. If the unlock failed, both
// are over.
func (rw *RWMutex) Downgrade(ctx context.Context) (context.Context, UnlockFunc, error) {
	r, w := rw.Read(), rw.Write()
	w.check(ctx)
	return r.lockTraced(engine.CallerNow(ctx), rw.lock.Downgrade)
}
