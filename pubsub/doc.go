// Package pubsub lets goroutines that want the same lock wait in line for its unlock messages.
//
// It is a building block of package rlock, outside its compatibility promise.
//
// A [Hub] keeps a queue (a [topic]) for each lock that somebody waits for, and a [subscription] for
// each channel on which unlocks are published. Mostly that is one of each.
//
// The queue is first in, first out, and gives the turn to one waiter at a time: whoever has the
// turn may ask Redis for the lock, so that a process never has more than one attempt in flight for
// it. A waiter gets the turn when it is at the front of those that are due, and it becomes due by
//
//  1. being the first of a new queue, unless this process has the lock, got it through the queue, and would have heard of its end,
//  2. a message: "0" makes the first waiter due, "1" all of them,
//  3. the confirmation of the subscription, the first one and each after a reconnect,
//  4. the end of the remaining time that the last attempt was told,
//  5. the turn of a waiter before it that left without an answer,
//  6. the news that its slot is served by a node of which the client has not heard: the attempt is
//     what makes the client find that node.
//
// A wake-up is a hint, and several may merge into one: the waiter asks Redis, which knows. What
// matters is that none is lost. A turn ends with [Waiter.Held] (keep waiting), [Waiter.Done] (got
// it) or [Waiter.Leave] (gave up: the turn goes on to the next), and a message that arrives during
// the turn makes its waiter due again. A waiter whose time is over ([Waiter.Until]), or whose hub is closed
// ([Hub.Stop]), is told so, and leaves.
//
// The subscription is shared by the queue. It is asked for when an attempt was answered "held", and
// given back when no queue needs it: at once if the last waiter gave up, or could not keep what it got ([Hub.Undone]), and
// after a while ([linger]) if it waited and got the lock. An attempt that was made while it stood needs no other one after it. All channels of a node share one dedicated connection, served
// by one goroutine (a [link]), however many channels and waiters there are; a waiter costs no
// goroutine. Plain channels need one link; sharded ones need a link for each node, and a router
// that knows which node serves which slot.
package pubsub
