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
//  4. the end of the remaining time that the last attempt, or a message, has told, a minute if there is no end,
//  5. the end of a waiter before it that had the turn, the process's place, or was due, and left,
//  6. the news that its slot is served by a node of which the client has not heard: the attempt is
//     what makes the client find that node,
//  7. [Hub.Look], where each waiter has a place.
//
// A wake-up is a hint, and several may merge into one: the waiter asks Redis, which knows. None is
// lost. A turn ends with [Waiter.Held] (keep waiting), [Waiter.Done] (got it) or [Waiter.Leave] (gave
// up: the turn goes on to the next), and a message that arrives during the turn makes its waiter due
// again. A waiter whose time is over ([Waiter.Until]), or whose hub is closed or drains ([Hub.Stop], [Hub.Drain]), is told
// so, and leaves. queue.go has all of this as a table of states.
//
// A process that waits may have a place in a queue in Redis: an attempt that finds the lock held leaves it
// there, for the waiter that made it. Whoever releases the lock gives it to the owner with the first place, and
// tells that process alone, on a channel of its own. Such a grant takes the waiter out of the queue with the lock; one that
// arrives in its turn, or while it is claimed, does so at the end of that. One for a waiter that has gone
// is ignored: the waiter's caller releases what it was given. "? <ms>" has a process with a place look at the lock
// by then, and "00" is "0" for those who have no place.
//
// Where each waiter has a place of its own ([Queue].Each), each of them becomes due when it has joined and the subscription is
// live, and whenever that is confirmed anew: to take its place, or to look after it. From then on each is told apart: by a grant,
// by "? <ms> <owner>", or by Redisson on a channel of the waiter's own, to which it subscribes only if Redisson may tell it
// something ([Waiter.Hear]). Other processes alone decide who is next, so nobody claims such a waiter.
//
// Where permits are waited for ([Queue].Counts), a message to all is a number. With a leading zero it is for those who have no place.
//
// The queue asks for the subscription when an attempt was answered "held", and tries again when it is
// confirmed; an attempt that began when it was live needs no other one after it. The subscription is
// given back when no queue needs it: at once if the last waiter gave up, or could not keep what it
// got ([Hub.Undone]), and after a while ([linger]) if it waited and got the lock.
//
// A subscription is to three channels: that of the unlocks, that of those in line, where nothing is said, and that of the grants to
// this process. One command asks for all of them, and it is live from the confirmation of the last until one of them is lost. Who is in line need not be told of
// unlocks, so if a waiter for the channel is not to have a place ([Queue].Places), or asked for one and got none, the subscription begins anew without
// the second.
//
// All channels of a node share one dedicated connection, served by one goroutine (a [link]), however
// many channels and waiters there are; a waiter costs no goroutine. Plain channels need one link.
// Sharded ones need a link for each node, and a [router] that knows which node serves which slot. A
// link ends when it has been without subscriptions for a while.
//
// Beside all that a process may have an ear ([Hub.Listen]): a subscription to a channel of its own, on which others speak to it, whatever the
// lock is. It has no queue, and lasts until the hub is closed.
//
// The files, each with one concept: hub.go (the entrance), queue.go (a waiter's way), claim.go (this
// process hands the lock to a waiter), grant.go (another process does), message.go (what it says), expiry.go (its time is over), topic.go
// (the queue), courtesy.go (after a run others go first), ear.go with spoken.go (what others say to this process), subscription.go, link.go with send.go and cutoff.go (the connection), router.go.
package pubsub
