// Package rlock is a re-entrant distributed lock on Redis, Valkey and their clusters, compatible
// with Redisson: a Go and a Java holder of one name exclude and wake each other.
//
// # Taking a lock
//
//	client, err := rlock.Open("redis://127.0.0.1:6379", rlock.Options{})
//	…
//	defer client.Close()
//
//	err = client.Mutex("order:42").Do(ctx, func(ctx context.Context) error {
//		return ship(ctx) // pass this ctx on
//	})
//
// [New] takes an existing rueidis client. [Mutex.Do] holds the lock while the function runs, and reports a loss in the meantime. For
// sections that are not one function body, [Mutex.Lock] returns the section's ctx and its unlock, and [Mutex.TryLock] bounds the wait. A
// Lock returns when its ctx is done. An unlock, and so Do after its function, waits for Redis for up to [Options].UnlockTimeout, whether
// or not the ctx is done.
//
// [Lead] keeps a function running in one of many processes.
//
// # Who owns a lock
//
// Ownership follows the context. The ctx that Lock returns carries a hold. A Lock under it re-enters
// that hold; a Lock under a ctx that carries no open hold of the lock competes. So each layer can lock
// what it needs without knowing its callers.
//
// Check the error of Lock: the ctx and the unlock that a failed Lock returns can be used, but there is no hold.
// Always use the ctx that Lock returned. Code that locks a name again under the outer ctx
// waits for itself. If that wait ends, its error says that this client holds the lock, under the same ctx.
//
// Goroutines that share a section's ctx are inside it: they do not exclude each other on that
// lock, but they do on every other one. Give a goroutine that must compete [Detach](ctx). A ctx that
// escapes from its section carries no hold after the unlock.
//
// A section's ctx is a child of the ctx passed to Lock, and ends with it. If locks overlap
// but do not nest, take the next one with the ctx you had before the first.
//
// # Semaphores and latches
//
// [Client.Semaphore] is a number of permits, and [Client.CountDownLatch] a count that goroutines wait for. They are not locks: nobody owns
// a permit or a count, so none can be lost, and none comes back by itself. The permits of a [Client.PermitSemaphore] have a lease, renewed
// like a lock's. They begin a section, whose ctx is cancelled when a permit is lost, and a dead holder's permits come back.
//
// # Several locks
//
// [All] takes several locks or none, whatever the order of its arguments, and holds none of them while it waits. If sections
// lock one name inside another, keep one order of names everywhere: opposite orders can deadlock, and [Options].Deadlock detects that.
//
// # Readers and writers
//
// [Client.RWMutex] is a lock for many readers or one writer at a time; each side is a [Mutex]. A writer may also read, and can become a
// reader without letting another writer in ([RWMutex.Downgrade]). A reader cannot become the writer, because two readers that tried would
// wait for each other. [RWMutex.Upgradeable] lets one reader at a time do so.
//
// # Moving a section to another process
//
// A section can continue in another process: [Export] ends it here and leaves its lock to a ticket, a secret text that works once.
// [Client.Adopt] takes the lock over there. Nobody else gets the lock in between.
//
// # How long it lasts
//
// A watchdog renews each hold for as long as the process lives. If the process dies, the hold expires within [Options].WatchdogTimeout, or
// the handle's [WithWatchdog]. [WithLease] gives a hold a fixed time instead.
//
// A section's ctx is cancelled when its hold ends: by its unlock, or by a loss, with
// [ErrLost] as its [context.Cause]. That happens no later than the earliest moment the lease can have
// expired in Redis, whatever the network does. It is never safe to assume that a lock is held until
// unlock, so pass the ctx to everything that the section does. Until the unlock of a lost hold is
// called, a Lock under its ctx also returns ErrLost.
//
// No distributed lock can stop a holder that was paused between a check of its ctx and a write. A store that must not be damaged should
// check a fencing token: see [Client.FencedMutex]. For a lock that survives the death of a server, see [Quorum].
//
// # How it waits
//
// A waiter sends nothing while it waits. It subscribes, tries again, and sleeps until it is given the
// lock, or until an unlock message, the end of the holder's lease, or a new connection wakes it.
// Goroutines of one process that wait for the same lock form a line, first in, first out, and only the first one talks to Redis. The
// processes form a line in Redis. An unlock hands the lock to the next goroutine of its process, mostly without asking Redis. After a
// bounded run of these hand-offs, it hands the lock to the next process, and wakes only that one. See [HandOff]. With [Client.FairMutex]
// each waiter of every process has its own place in that line, and nobody overtakes a waiter.
//
// A holder that takes the lock with [WithAsked] learns from [Asked] when somebody waits, and can make room.
// With [WithLinger] a process keeps a lock that it uses again and again, until another process waits for it.
//
// # Errors
//
// Each error is one line and names the lock. Tell them apart with [errors.Is]:
//
//   - [ErrNotAcquired]: the wait ended first; errors.Is finds the ctx's error too, if that was why. Together
//     with [ErrUnreachable], Redis had not answered, and nothing is known about the lock.
//   - [ErrUnreachable]: Redis did not answer, or was not ready, for as long as the call tried.
//   - [ErrLost]: the hold ended before its unlock. Another holder may be in the section.
//   - [ErrNotHeld]: there was nothing to unlock: it was unlocked before, or its Lock failed.
//   - [ErrUpgrade]: a reader wants to write, and would wait for itself.
//   - [ErrNotExported], [ErrTicket]: there is nothing to export, or to adopt.
//   - [ErrNotReplicated]: too few replicas confirmed, see [Options].Replicas.
//   - [ErrDeadlock]: the Lock was the victim of a deadlock, see [Deadlock]; it is an ErrNotAcquired as well.
//   - [ErrReentry]: the ctx holds the lock already, see [WithoutReentry].
//   - [ErrClosed]: the Client was closed.
//
// Any other error is an error reply from Redis, or says that the lock's key holds something else.
// [NotAcquiredError] and [LostError] have the details.
//
// errors.Is matches a sentinel only for the lock and Client the call was made on. If ctx ended because
// another lock was lost, the text says so. A call whose reply was lost is never counted twice, and
// what a failed call may have left in Redis is found and removed.
//
// Which kind of lock to choose, and what each costs, is in docs/locks.md; the promises and their limits are in
// docs/guarantees.md, the architecture in docs/internals/design.md.
package rlock
