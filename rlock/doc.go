// Package rlock is a re-entrant distributed lock on Redis, Valkey and their clusters, compatible
// with Redisson: a Go and a Java holder of one name exclude and wake each other.
//
// # Taking a lock
//
//	client, err := rlock.New(redisClient, rlock.Options{})
//	…
//	defer client.Close()
//
//	err = client.Mutex("order:42").Do(ctx, func(ctx context.Context) error {
//		return ship(ctx) // pass this ctx on
//	})
//
// [Mutex.Do] holds the lock while the function runs, and reports if the lock was lost meanwhile.
// Where a section is not one function body, [Mutex.Lock] returns the ctx of the section and its
// unlock, and [Mutex.TryLock] bounds the waiting.
//
// [Lead] keeps a function running in one of many processes.
//
// # Who owns a lock
//
// Ownership follows the context. The ctx that Lock returns carries a hold. A Lock under it re-enters
// that hold; a Lock under a ctx that carries no open hold of the lock competes. So layers can lock
// what they need without knowing who called them.
//
// Always use the ctx that Lock returned. Code that locks a name again under the ctx from before
// waits for itself. If that wait ends, its error says that this client holds the lock.
//
// Goroutines that share the ctx of a section are inside it: they do not exclude each other on that
// lock, and do on every other one. Give a goroutine that must compete [Detach](ctx). A ctx that
// escaped from its section carries nothing after the unlock.
//
// The ctx of a section is a child of the ctx given to Lock, and ends with it. Where locks overlap
// but do not nest, take the next one with the ctx from before the first.
//
// # Several locks
//
// [All] takes several locks or none, in any order of its arguments, and holds none of them while it waits. Where sections
// lock one name inside of another, keep to one order of names; two that do it in opposite orders block each other.
//
// # Readers and writers
//
// [Client.RWMutex] is a lock that many readers may hold at a time, or one writer; each side is a [Mutex]. A writer may read, and
// become a reader without letting another writer in between ([RWMutex.Downgrade]). A reader cannot become the writer, since two
// would wait for each other: [RWMutex.Upgradeable] is for the one that may.
//
// # How long it lasts
//
// A hold is renewed by a watchdog for as long as the process lives, and ends by itself within
// [Options].WatchdogTimeout if it dies. [WithLease] gives a hold a fixed time instead.
//
// The ctx of a section is cancelled when its hold ends: by its unlock, or because it was lost, with
// [ErrLost] as its [context.Cause]. That happens no later than the moment when the lease can run
// out in Redis, whatever the network does. It is never safe to assume that a lock is held until
// unlock, so pass the ctx to everything that the section does. Until the unlock of a lost hold is
// called, a Lock under its ctx returns ErrLost as well.
//
// No lock that lives in another process can stop a holder that was paused between a look at its ctx
// and a write. A store that must not be damaged should check a fencing token: see
// [Client.FencedMutex]. A lock that outlives the death of a server is kept by several: see [Quorum].
//
// # How it waits
//
// A waiter sends nothing while it waits. It subscribes, tries again, and sleeps until it is given the
// lock, or until an unlock message, the end of the holder's lease, or a new connection wakes it.
// Goroutines of one process that wait for the same lock stand in line, first in, first out, and only
// the first one talks to Redis. The processes stand in a line there. An unlock hands the lock to the
// next goroutine of its process or, after a bounded run of these, to the next process, and tells that
// one alone. See [HandOff]. With [Client.FairMutex] each waiter, of whichever process, has a place of its
// own in that line, and nobody gets in before those that wait.
//
// # Errors
//
// Each error is one line and names the lock. Tell them apart with [errors.Is]:
//
//   - [ErrNotAcquired]: the wait ended first; the ctx's error is found, too, if that was why. With
//     [ErrUnreachable] as well, Redis had not answered, and nothing is known of the lock.
//   - [ErrUnreachable]: Redis did not answer, or was not ready, for as long as the call tried.
//   - [ErrLost]: the hold ended before its unlock. Somebody else may be in the section.
//   - [ErrNotHeld]: there was nothing to unlock.
//   - [ErrUpgrade]: a reader wants to write, and would wait for itself.
//   - [ErrNotReplicated]: too few replicas confirmed, see [Options].Replicas.
//   - [ErrReentry]: the ctx holds the lock already, see [WithoutReentry].
//   - [ErrClosed]: the Client was closed.
//
// Any other error is a refusal by Redis, or says that the key of the lock holds something else.
// [NotAcquiredError] and [LostError] have the details.
//
// A sentinel is found only if it is about the lock and the Client of the call. If ctx ended because
// another lock was lost, the text says so. A call whose reply was lost is never counted twice, and
// what a failed call may have left in Redis is found and removed.
//
// Which kind of lock to choose, and what each costs, is in docs/locks.md; the promises and their limits are in
// docs/guarantees.md, the architecture in docs/design.md.
package rlock
