// Package rlock is a re-entrant distributed lock on Redis, Valkey and their clusters, compatible with Redisson: a Go and a Java holder of one
// name exclude and wake each other.
//
//	client, err := rlock.Open("redis://127.0.0.1:6379", rlock.Options{})
//	…
//	defer client.Close()
//
//	err = client.Mutex("order:42").Do(ctx, func(ctx context.Context) error {
//		return ship(ctx) // pass this ctx on
//	})
//
// [Mutex.Do] holds the lock while the function runs. [Mutex.Lock] returns the section's ctx and its unlock, and [Acquire] a [Hold] for code that
// locks in one method and unlocks in another.
//
// # Who owns a lock
//
// Ownership follows the context. The ctx that Lock returns carries a hold: a Lock under it re-enters that hold, and any other Lock of that name
// competes. So each layer can lock what it needs without knowing its callers.
//
// Always use the ctx that Lock returned: code that locks a name again under the outer ctx waits for itself. Goroutines that share a section's
// ctx are all inside it, and compete for every other lock; [Detach] makes one compete for this lock too.
//
// A section's ctx is a child of the ctx passed to Lock, and ends with it, which unlocks nothing: see [WaitOnly]. If locks overlap but do not
// nest, take the next one with the ctx from before the first.
//
// # How long it lasts
//
// Each hold is renewed until its unlock. If the process dies, it expires within [Options].WatchdogTimeout.
//
// A section's ctx is cancelled when its hold ends: by its unlock, or by a loss, with [ErrLost] as its [context.Cause], no later than the
// earliest moment the lease can have expired in Redis. It is never safe to assume that a lock is held until unlock: pass the ctx to everything
// in the section. No lock can stop a holder that was paused between a check of its ctx and a write: see [Client.FencedMutex].
//
// A waiter sends nothing until it is given the lock, or has a reason to ask.
//
// # Errors
//
// Each error is one line and names the lock. Tell them apart with errors.Is and [IsBusy]. A sentinel matches only if it is about the lock and
// the Client of the call. An error without one is an error reply from Redis, or says that the lock's key holds something else. A call whose
// reply was lost is not counted twice, and what a failed call may have left in Redis is found and removed. A ctx, Locker or function that is
// nil panics.
//
// Other kinds of locks, semaphores and latches are methods of [Client], and [All], [Quorum] and [Lead]. docs/locks.md helps to choose,
// docs/guarantees.md has the promises and their limits, and internal/engine/doc.go the architecture.
package rlock
