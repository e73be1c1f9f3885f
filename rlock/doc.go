// Package rlock is a reentrant distributed lock on Redis, Valkey and their clusters, compatible
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
// # Who owns a lock
//
// Ownership follows the context. The first Lock of a call chain mints an owner, and the ctx it
// returns carries it: a Lock under that ctx re-enters, a Lock under any other ctx competes. So
// layers can lock what they need without knowing who called them, as long as they pass the ctx on.
//
// Whoever carries the ctx of a hold is inside it, also a goroutine that was started inside. A
// goroutine that should compete instead gets [Detach](ctx). When the last hold of an owner ends,
// the owner is retired: a ctx that escaped from the section competes from then on.
//
// # How long it lasts
//
// A hold is renewed by a watchdog for as long as the process lives, and ends by itself within
// [Options].WatchdogTimeout if it dies. [WithLease] gives a hold a fixed time instead.
//
// The ctx of a hold is cancelled when the hold ends: by its unlock, or because it was lost, with
// [ErrLost] as its [context.Cause]. That happens no later than the moment when the lease can run
// out in Redis, whatever the network does. It is never safe to assume that a lock is held until
// unlock, so pass the ctx to everything that the section does. And since no lock that lives in
// another process can stop a holder that was paused between a look at its ctx and a write, a store
// that must not be damaged should check a fencing token: see [Client.FencedMutex].
//
// # How it waits
//
// A waiter sends nothing while it waits. It subscribes, tries again, and sleeps until the unlock
// message, the end of the holder's lease, or a new connection wakes it. Goroutines of one process
// that wait for the same lock stand in line, first in, first out, and only the first one talks to
// Redis.
//
// # Errors
//
// All errors name the lock and can be told apart with errors.Is: [ErrNotAcquired] (and the ctx's
// error) if the wait ended first, [ErrLost], [ErrNotHeld], [ErrClosed], or what Redis said. A call
// whose reply was lost is never counted twice, and what a failed call may have left in Redis is
// found and removed.
//
// What is promised, and what is not, is in docs/guarantees.md; the architecture in docs/design.md.
package rlock
