// Package engine takes locks, passes them on and releases them: a Lock on its way to a hold (attempt.go), the next owner (handoff.go), and
// the unlock (release.go, unlock.go). What a Client has is in package tenure. Kinds of locks are data for both, and features observe them.
//
// It carries no compatibility promise: package rlock is what users import.
//
// Below stands the design of all that packages rlock, engine, tenure, ear, quorum and counter do together. docs/how-it-works.md is easier to
// begin with; docs/guarantees.md has the promises G1 to G9, docs/internals/protocol.md the keys, scripts and messages, each file's first
// comment its states and reasons. Code and tests cite the invariants by number.
//
// # Tenure and hold
//
//   - A tenure is a Client's possession of one lock in Redis: one hash field, its lease, its count, and everything still unknown about
//     them. The field's name, the owner, is new for each tenure (I3).
//   - A hold is a caller's possession of the lock, from the Lock that won it to its last unlock. It stands on a tenure and knows nothing
//     of Redis. Each of its Locks is one level: the ctx that it returned.
//   - Readers of one process share a tenure (readers.go). A quorum's hold stands on a majority of tenures, its shares.
//   - The count in Redis follows the levels after 100 ms, and decides nothing (count.go).
//   - The loss of a tenure cancels the ctx of every level on it, but of no hold that has passed it on.
//
// A lock's way through two processes, in time:
//
//	Redis, order:42   A:7 = 1 ─────────────── 2 ───────── 1 ─────────────────┬ B:3 = 1 ─────────────
//	                  ▲                       ▲           ▲        ▲         ▲          ▲
//	                  acquire             count to 2  count to 1   renewal   release    renewal
//	process A
//	  tenure A:7      ├──────────────────────────────────────────────────────┤
//	    hold 1        ├──────────────────────────┤ passed on in memory
//	      level 1     ├──────────────────────────┤
//	      level 2          ├───────────────────┤ re-entered in memory
//	    hold 2                                   ├─────────────────┤
//	    hold 3                                                     ├─────────┤ the run is over
//	process B
//	  tenure B:3      granted by that release; a message notifies B alone    ├──────────────────────
//	    hold 4                                                               ├──────────────────────
//
// # The parts
//
// CONTRIBUTING lists the folders. rlock builds on quorum, counter, ear and deadlock, these on engine, that on tenure, that on the rest;
// lua, pubsub and lease do not import each other, and lease does no I/O. Read them in the order of a Lock call:
//
//  1. tenure/, the state: tenure.go, hold.go, level.go; lock.go is a handle and its terms; client.go what the locks of a Client share.
//     Only this package changes their fields. cluster.go is where the first call connects, if the Client does that late (rlock/late.go),
//     and learns of a cluster.
//  2. engine/enter.go re-enters or competes. attempt.go queues in the hub, asks Redis and sleeps; outcome.go decides whether the caller
//     or the lock came first.
//  3. release.go and unlock.go end a hold, handoff.go finds the next; tenure/sweep.go removes leftovers.
//  4. tenure/observer.go and engine/watch.go are where features come in. They are told of holds and waits, and neither package names one
//     of them: WithAsked, WithLinger and labels (package ear), and the search for deadlocks. A Lock that none of them observes calls
//     none.
//
// Nobody owns what a semaphore or a latch counts, so counter has no tenures: a combiner (combiner.go) for each name makes one call at a
// time, with the next change and the first waiters that there are by then; a latch has one for each of the two. A PermitHold is a section
// with permits.
//
// # Who gets the lock next
//
// Each process queues its goroutines; Redis queues the processes, with one place each at most. The last unlock does the first of these that
// applies:
//
//  1. Pass on, without a command, if the next waiter here wants the same of Redis (kind, plain or fenced, watchdog time; no lease, grace
//     or longest hold), and has no place, which only a call could remove. The run is not over, no call is under way, nothing is
//     unresolved, and a third of the first lease is left.
//  2. Leave it to other readers of the process, if any stand on the tenure.
//  3. Hand off, if a goroutine waits here and the run is not over. The release call replaces the owner by the waiter's. Until its reply
//     the unlocking goroutine, the claimant, stands for the waiter (I10).
//  4. Grant, if a process in the queue is counted and there are no outsiders. The call gives the lock to the first such process, and
//     notifies it alone. A goroutine that waits here joins at the end.
//  5. Free. Outsiders hear 00, and the head of the queue ? 0. With an empty queue everybody hears 0.
//
// Read/write locks know no grants: everybody is notified, and marks of waiting writers hold later readers back. In a fair lock's queue each
// waiter has a place, and scripts alone choose.
//
// # Words
//
//   - turn: the right to ask Redis for a lock. apart: asking for a share without the turn, beside the queue.
//   - run: consecutive hand-offs in a process (Options.HandOff). courtesy: a moment for which a first waiter lets others go first.
//   - in line: having a place, or about to ask for one. outsider: a listener that is not: Redisson, Clients without queues, waiters of
//     quorums and fair locks.
//   - unresolved: unknown for lack of an answer. orphan: an unresolved field that is swept. kept: a tenure without a hold, for the next
//     Lock of its process.
//   - within: the hold of a read/write lock's other side that lets a Lock in. share: also a reader's part in a lock.
//
// # Invariants
//
//   - I1. Calls that lengthen or end a tenure's lease are made one at a time, under the right to make calls. Without a hold, its Lock
//     has that right, or the Lock's claimant. A tenure is passed on only while nobody has or awaits the right. Taking a kept tenure out
//     of its list confers it. Counts exclude these calls too, except the last unlock, after which they find nothing (I2, I3).
//   - I2. Scripts state the count they end with. An acquire never lowers it; a release never raises it. An acquire for more than 1, or a
//     release for more than 0, neither makes nor removes a field, nor shortens an expiry. So each may be repeated or late, and the next
//     change corrects a wrong count. In the queue, joining keeps an existing place, getting the lock gives it up, and a release without
//     the lock removes it.
//   - I3. An owner field belongs to one tenure and is never used again. So leftovers can be removed blindly, and late commands touch no
//     other tenure. Apart from repeats, a release is sent once, and nothing after it; until then the field is this process's, whichever
//     hold stands on it. A grant names its owner, so it finds the waiter of that tenure, or nobody.
//   - I4. A hold is live once. No level is opened on one that is over or lost. A Lock that finds its hold over competes; one that finds
//     it lost returns the loss until the unlock. A grant that nobody can take goes back.
//   - I5. Trusted until = time before the last successful acquire or renewal was sent + lease (proof: package lease). A grant counts,
//     for the grant lease, from before the first call that may have queued its owner. In a fair queue it counts from before the last
//     call that saw the place, unless the joining call is unresolved (place.go). WithMaxHold ends trust earlier. At its end the ctx of
//     each level is done, and all that package context derived from it, even if Redis is silent or the ctx's parent blocks, and before a
//     Lock of the same Client returns with the lock (tenure/loss.go).
//   - I6 (I-wake). While a queue of the hub is not empty, a waiter is about to ask, or will hear of the unlock; in a fair queue each of
//     them. pubsub/topic.go has the cases.
//   - I7. At most one waiter of a process has the turn for a lock, until its attempt is resolved, even if its caller has gone. Waiters
//     for a share may ask apart (pubsub/waiter.go). At most one waiter has the process's place (in a fair queue each its own), until it
//     has the lock, left, or learns that it did not join. One that leaves asleep bequeaths it to the next here, if that wants the same
//     and nothing is unresolved. Otherwise it stays until the waiter's release arrives, which passes on a grant that found nobody.
//   - I8. A hold's expiry in Redis never moves to an earlier time, except by its end. A grant, a placeholder, an Export and an Adopt are
//     such ends.
//   - I9. Close waits for every goroutine and call; the hub, the renewer and the Client count them. It does not wait for an unlock that
//     begins when nothing else is left, a call that rueidis keeps beyond 5 s, or a quorum's Lock (its calls here are counted): G9. Nor
//     does it for a wake-up under way (Hub.WakeSoon).
//   - I10. A claimant alone acts for the waiter that it has claimed, with its turn (I7) and its hold's calls (I1). A claim ends with the
//     lock, with a place in Redis, or, if the outcome is unknown, with a turn. A claimed waiter that gives up returns at once; its
//     claimant finishes, and gives back lock or place. A grant that arrives during a turn or claim is kept until that ends.
//
// # Lock order
//
// A quorum's votes come before a tenure; a tenure, or a hold of permits, before the renewer, so the last of concurrent level
// changes decides about renewal, and before the count of foreign calls (tell.Each). The mutex of the combiners of semaphores and latches
// comes before the left calls' and the hub's; a Leadership's before those of a tenure and the renewer; a deadlock search's before those of tenures, the
// hub, the graph and the held locks. The hub's comes before that of its connections, and those of the votes, the combiners, the kept tenures,
// the workers and the sweepers before that of the running calls. An adapter's comes before all of these. All others are leaves. None is held
// while waiting for the network or a goroutine. The renewer reports losses outside its mutex, and leaves wake-ups in the hub to a goroutine
// there (Hub.WakeSoon): it waits for no queue. A stopped waiter is out of its queue at once, and nothing under the hub's mutex walks a queue
// for each of its waiters. Callbacks with which one waiter takes over from another run under the hub's mutex and take no other.
//
// # Goroutines
//
// A Client runs
//
//   - one each to keep the leases, the places of waiters for fair locks, and the label,
//   - one to watch its ear, from the first lock with WithAsked or WithLinger, or the first search for a deadlock, on, and one to look for
//     waiters, from the first with WithAsked on,
//   - one for each label of another Client while it is looked up, and for each owner in another process while it is asked for a lock,
//   - one while fair locks are to be looked at, after a loss or with waiters of Redisson's behind the first; on a cluster, one for each slot,
//   - one for each kept lock while it is released, or its waiters are looked for,
//   - one for each Redis node with a waiter, with a connection of its own, and a second while that node is to answer,
//   - one to ask which nodes have the slots of a cluster, while somebody waits for that, and one for each question without an answer,
//   - when needed, one to undo the effects of unanswered calls; on a cluster, one for each slot,
//   - one for each latch with a waiter, each latch being changed, and each semaphore in use,
//   - one for each call in flight; up to 64 of them stay for the next calls, until they were idle for one to two seconds,
//   - with Options.Deadlock, one for each Lock while it looks for a deadlock, and for each message about one,
//   - one each to call the Logger and the Trace, while they have something to report,
//   - one for each section that a loss or Close ends, until the methods of its parent ctx have returned,
//   - one for each hold that Redis has forgotten, for the moment in which it wakes who waits here.
//
// One comment at each go statement or its function says who ends it. Calls end with their answer, a
// time-out or Close; a worker without a call, with Close, or when nobody needed it for one to two seconds; a sweeper, with nothing left to
// find; looks, with the last one; a link, after 5 s without use; the renewer, with Close. The renewer, timers and the sweeper never call a Logger
// or a Trace: internal/tell does. A ctx is foreign code, too. Its methods are called by its Lock and unlock alone, under no mutex, and by searches
// for a deadlock, each on its own goroutine. Cancelling a ctx calls its parent's Done and Value, after the ctx is done: a loss and Close leave
// that to a goroutine for each level, which ends when these return.
package engine
