// Package pubsub lets goroutines that want the same lock wait in line for its unlock messages.
//
// It is a building block of package rlock, outside its compatibility promise.
//
// A [Hub] keeps a queue (a [topic]) for each lock that somebody waits for, and a [subscription] for
// each channel on which unlocks are published. Mostly that is one of each.
//
// The queue is first in, first out, and gives the turn to one [Waiter] at a time, which may then ask
// Redis for the lock. So a process never has more than one attempt in flight for it. The first of
// those that are due gets the turn. A waiter becomes due by
//
//  1. being the first of a new queue, unless this process is known to hold the lock (topic.localHold),
//  2. a message: "0" makes the first waiter due, "1" all of them,
//  3. the confirmation of the subscription, the first one and each after a reconnect,
//  4. the end of the remaining time that the last attempt was told,
//  5. the end of a waiter before it that had the turn, or was due, and left,
//  6. the news that its slot is served by a node of which the client has not heard: the attempt is
//     what makes the client find that node.
//
// A wake-up is a hint, and several may merge into one: the waiter asks Redis, which knows. None is
// lost. A turn ends with [Waiter.Held] (keep waiting), [Waiter.Done] (got it) or [Waiter.Leave] (gave
// up: the turn goes on to the next), and a message that arrives during the turn makes its waiter due
// again. A waiter whose time is over ([Waiter.Until]), or whose hub is closed ([Hub.Stop]), is told
// so, and leaves. queue.go has all of this as a table of states.
//
// The queue asks for the subscription when an attempt was answered "held", and tries again when it is
// confirmed; an attempt that began when it was live needs no other one after it. The subscription is
// given back when no queue needs it: at once if the last waiter gave up, or could not keep what it
// got ([Hub.Undone]), and after a while ([linger]) if it waited and got the lock.
//
// All channels of a node share one dedicated connection, served by one goroutine (a [link]), however
// many channels and waiters there are; a waiter costs no goroutine. Plain channels need one link.
// Sharded ones need a link for each node, and a [router] that knows which node serves which slot. A
// link ends when it has been without subscriptions for a while.
//
// The files, each with one concept: hub.go (the entrance), queue.go (a waiter's way), claim.go (the
// lock is handed to a waiter), expiry.go (its time is over), topic.go (the queue), subscription.go,
// link.go with send.go and cutoff.go (the connection), router.go.
package pubsub
