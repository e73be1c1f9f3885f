// Package rlock is a re-entrant distributed lock on Redis, Valkey and their clusters, compatible
// with Redisson: a Go and a Java holder of one name exclude and wake each other.
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
// sections that are not one function body, [Mutex.Lock] returns the section's ctx and its unlock. [Mutex.TryLock] bounds the wait. Code that
// locks in one method and unlocks in another takes a [Hold] with [Acquire].
//
// # Who owns a lock
//
// Ownership follows the context. The ctx that Lock returns carries a hold. A Lock under it re-enters
// that hold; a Lock under a ctx that carries no open hold of the lock competes. So each layer can lock
// what it needs without knowing its callers.
//
// Check the error of Lock: the ctx and the unlock that a failed Lock returns can be used, but there is no hold.
// Always use the ctx that Lock returned: code that locks a name again under the outer ctx waits for itself.
//
// Goroutines that share a section's ctx are inside it: they do not exclude each other on that
// lock, but they do on every other one. Give a goroutine that must compete [Detach](ctx). A ctx that
// escapes from its section carries no hold after the unlock.
//
// A section's ctx is a child of the ctx passed to Lock, and ends with it, which unlocks nothing. If locks overlap
// but do not nest, take the next one with the ctx you had before the first.
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
// check a fencing token: see [Client.FencedMutex].
//
// # How it waits
//
// A waiter sends nothing while it waits. It sleeps until it is given the lock, or until an unlock message, the end of the holder's lease, or
// a new connection makes it ask. The goroutines of a process form a line, and the processes form another one in Redis. An unlock hands
// the lock to the next goroutine of its process, mostly without asking Redis; after a bounded run ([HandOff]) to the next process.
//
// A Lock returns when its ctx is done. An unlock, and so Do after its function, waits for Redis for up to [Options].UnlockTimeout, whether
// or not the ctx is done.
//
// # What else there is
//
// [Client.FairMutex] serves waiters strictly in order, [Client.RWMutex] has readers and writers, [All] takes several locks or none, and a
// [Quorum] survives the death of a server. [Client.Semaphore], [Client.PermitSemaphore] and [Client.CountDownLatch] are no locks: they
// count. [Lead] keeps a function running in one of many processes. [Export] and [Client.Adopt] move a section to another process. A holder
// [WithAsked] learns when somebody waits; [WithLinger] keeps a lock that its process uses again and again.
//
// # Errors
//
// Each error is one line and names the lock. Tell them apart with [errors.Is] and [IsBusy], and see [ErrNotAcquired] for all of them. It
// matches a sentinel only for the lock and Client the call was made on; if ctx ended because another lock was lost, the text says so. Any
// error without a sentinel is an error reply from Redis, or says that the lock's key holds something else. A call whose reply was lost is
// never counted twice, and what a failed call may have left in Redis is found and removed.
//
// Which kind of lock to choose, and what each costs, is in docs/locks.md; the promises and their limits are in
// docs/guarantees.md, the architecture in internal/engine/doc.go.
package rlock
