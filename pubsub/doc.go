// Package pubsub lets goroutines that want the same lock wait in line for its unlock messages.
//
// It is a building block of package rlock, outside its compatibility promise.
//
// A [Hub] keeps a queue (a [topic]) for each lock with waiters, and a [subscription] for each channel on which
// unlocks are published. Mostly that is one of each.
//
// The queue is first in, first out, and gives the turn to one [Waiter] at a time, which may then ask Redis for the
// lock. So a process never has more than one attempt in flight for it. The turn goes to the first of the due waiters.
// A waiter becomes due by
//
//  1. being the first of a new queue, unless this process is known to hold the lock (topic.localHold),
//  2. a message: "0" makes the first waiter due, "1" all of them,
//  3. the confirmation of the subscription, the first one and each after a reconnect,
//  4. the end of the remaining lease in the last refusal or message, or of a minute if the lock has no expiry,
//  5. the departure of a waiter before it that had the turn, the process's place, or was due,
//  6. the news that an unknown node serves its slot, for the first waiter, unless one has the turn: the attempt makes
//     the client find that node,
//  7. [Hub.Look], where each waiter has a place,
//  8. a second without a subscription, though the server answers, for the first waiter alone.
//
// A wake-up is a hint, and several may merge into one: the waiter asks Redis, which knows. None is lost. A turn ends
// with [Waiter.Held] (keep waiting), [Waiter.Done] (got it) or [Waiter.Leave] (gave up: the turn goes on to the
// next). A message that arrives during the turn makes its waiter due again. A waiter gets an error, and leaves, when
// its time is over ([Waiter.Until]) or its hub closes or drains ([Hub.Stop], [Hub.Drain]). waiter.go has all of this
// as a table of states.
//
// A waiting process may have a place in a queue in Redis: an attempt that finds the lock held leaves it there, for
// the waiter that made the attempt. The release gives the lock to the owner with the first place, and notifies that
// process alone, on a channel of its own. Such a grant takes the waiter out of the queue with the lock. If the grant
// arrives during the waiter's turn or claim, that happens at the end of it. A grant for a waiter that has gone is
// ignored: the waiter's caller releases the lock. "? <ms>" makes a process with a place look at the lock by then, and
// "00" is "0" for processes without a place.
//
// Where waiters may want a share ([Queue].Shared), there is no queue in Redis. An unlock of this library sends "00" and
// then "1", those of others "1" alone. Either makes the first waiter due.
//
// Where each waiter has a place of its own ([Queue].Each), each becomes due when it has joined and the subscription
// is live, and after each reconnect, to take or check its place. From then on each has its own messages: a grant,
// "? 0 <owner>", or one from Redisson on a channel of the waiter's own, to which it subscribes only if Redisson may
// use it ([Waiter.Hear]). Other processes alone decide who is next, so nobody claims such a waiter.
//
// The queue asks for the subscription after an attempt was answered "held", and makes another attempt after the
// confirmation; an attempt begun on a live subscription needs no second one. The subscription is given back when no
// queue needs it. That is at once if the last waiter gave up, or could not keep the lock it got ([Hub.Undone]), and
// after a while ([linger]) if it waited and got the lock.
//
// A subscription has three channels: one for unlocks, one for processes in line, on which nothing is ever said, and
// one for grants to this process. One command subscribes to all of them. The subscription is live from the
// confirmation of the last channel until one of them is lost. Processes in line need no unlock messages. So if a
// waiter for the channel is not to have a place ([Queue].Places), or failed to get one, the subscription begins anew
// without the second channel.
//
// All channels of a node share one dedicated connection, served by one goroutine (a [link]), however many channels
// and waiters there are; a waiter costs no goroutine. Plain channels need one link. Sharded ones need a link for each
// node, and a [router] that knows which node serves which slot. A link ends when it has been without subscriptions
// for a while.
//
// There are two layers, each with a type and a lock of its own. Lock order: Hub.mu, then connections.mu.
//
// The queues, under Hub.mu, know no connection. There are three entrances, which nothing below calls:
//
//   - join.go: for waiters
//   - ending.go: for holders, who may hand the lock to a waiter
//   - news.go: for messages, and what else becomes of a subscription
//
// Below them:
//
//   - hub.go: all queues, their end, and their numbers
//   - topic.go: the queue of a lock, and who asks when; its order is in waiters.go
//   - waiter.go: a waiter's states, and the end of its turn
//   - claim.go: this process gets the lock for a waiter
//   - grant.go: another process does, by a message
//   - expiry.go: a waiter's time is over
//   - courtesy.go, rivals.go: when other processes go first
//
// The connections, under connections.mu, know no lock and no waiter. A queue has a [share] in a subscription, and is
// called as a [listener], without connections.mu:
//
//   - connections.go: all subscriptions, their end, and what listeners are told
//   - subscription.go: one channel, which its listeners need or not
//   - link.go, send.go, cutoff.go: the connection to a node
//   - overdue.go: a server that takes no subscription
//   - router.go: which node has a slot
//
// Beside both: channel.go and queue.go for names, message.go and spoken.go for what is said, and ear.go, which listens
// to messages to this process and has no queue.
package pubsub
