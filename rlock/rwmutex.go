package rlock

import (
	"context"

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
