package rlock

import (
	"context"

	"github.com/go-rlock/rlock/internal/engine"
	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/internal/tenure"
)

// RWMutex is a handle on a read/write lock in Redis, which many readers or one writer may hold. It is Redisson's RReadWriteLock. Each side
// is a [Mutex], with everything that a Mutex has. Like a Mutex, an RWMutex has no state of its own.
//
// A Lock depends on the hold of this lock that ctx carries:
//
//	ctx carries        Read().Lock              Write().Lock
//	no hold            waits for the writer     waits for the writer and all readers
//	a read hold        re-enters                ErrUpgrade at once
//	a write hold       gets a read hold         re-enters
//
// With [WithoutReentry] a Lock that would re-enter returns [ErrReentry]. The sides count as two locks, so a writer may still read.
//
// While a writer waits, later readers wait behind it, in all processes of this library; Redisson's cannot be made to wait. After a writer,
// the first to ask is next. Readers of one process that wait together are let in together. Readers that come within [HandOff].For after
// that join them without a command, unless they have a lease or a bound of their own; all of these have one [Owner].
type RWMutex struct {
	read, write *Mutex
	lock        *engine.RW
}

// RWMutex returns a handle on the read/write lock called name. It does no I/O. The options apply to both sides. The methods of the handles
// report an empty name and bad options. It panics if the Client is nil.
//
// The lock is the Redis key of that name, as for [Client.Mutex]. A Mutex and an RWMutex of one name exclude each other, but do not wake
// each other; Redisson's read/write lock even enters a Mutex that is held. On a cluster, braces in a name may only enclose the hash tag.
func (c *Client) RWMutex(name string, options ...Option) *RWMutex {
	return c.sidesOf(kinds.Write, name, options)
}

// FencedRWMutex is RWMutex with a fencing token for its writers, like that of a [Client.FencedMutex]. The token is a number that rises
// with every hold of the write side, and of a FencedMutex of that name. [FencingToken] returns it from the ctx of the writer's section,
// and of a reader inside it, while the writer's section is open; [RWMutex.Downgrade] ends that section. Other readers have no token, and
// do not change the counter.
//
// Use it wherever the name is locked: the writers of an RWMutex do not count, nor do Redisson's, which has no such lock.
func (c *Client) FencedRWMutex(name string, options ...Option) *RWMutex {
	return c.sidesOf(kinds.FencedWrite, name, options)
}

func (c *Client) sidesOf(write *kinds.Kind, name string, options []Option) *RWMutex {
	r, w := c.handle(kinds.Read, name, options), c.handle(write, name, options)
	return &RWMutex{read: r, write: w, lock: engine.NewRW(r.lock, w.lock)}
}

// Name returns the name of the lock.
func (rw *RWMutex) Name() string { return rw.sides().read.Name() }

// Read returns the readers' lock, which many can hold at a time. Under a writer's ctx it is acquired at once, as a separate hold. That
// hold lasts until its own unlock, but its ctx ends with the writer's, see [RWMutex.Downgrade].
func (rw *RWMutex) Read() *Mutex { return rw.sides().read }

// Write returns the writer's lock, which excludes all others.
func (rw *RWMutex) Write() *Mutex { return rw.sides().write }

func (rw *RWMutex) sides() *RWMutex {
	if rw == nil || rw.read == nil {
		panic("rlock: an RWMutex that was not made by a Client")
	}
	return rw
}

// Downgrade turns the writer that ctx carries into a reader, without letting another writer in. It takes the read lock, and unlocks the
// innermost open level of the write lock. Waiting readers are woken, and come in.
//
// The returned ctx has the values of ctx. Its cancellation and deadline are those of the ctx passed to the write side's Lock, because the
// writer's section ends here. The unlock of that Lock has nothing left to do, and returns nil: defer it as usual, or call Downgrade in a Do
// of the write side.
//
// On error Downgrade returns the given ctx, and an unlock that returns ErrNotHeld. If ctx carries no open write hold, the error satisfies
// errors.Is for ErrNotHeld. If the read lock could not be acquired, the error says why, and the caller is still the writer. If the unlock
// failed, both holds are over.
func (rw *RWMutex) Downgrade(ctx context.Context) (context.Context, UnlockFunc, error) {
	r, w := rw.Read(), rw.Write()
	w.check(ctx)
	return r.lockTraced(tenure.CallerNow(ctx), without(rw.lock.Downgrade))
}
