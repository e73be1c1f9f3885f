// Package rlockotel makes OpenTelemetry metrics and spans of what becomes of the locks of a Client:
//
//	trace, err := rlockotel.New(rlockotel.WithGroup(func(name string) string {
//		group, _, _ := strings.Cut(name, ":") // "order:42" is one of "order"
//		return group
//	}))
//	…
//	client, err := rlock.New(rdb, rlock.Options{Trace: trace})
//
// # Metrics
//
//	rlock.acquire.duration  histogram, s       of each Lock and TryLock, successful or not
//	rlock.hold.duration     histogram, s       of each section: from when Lock returned until unlock was called
//	rlock.wait.active       up-down counter    of those that wait for a lock now
//	rlock.hold.active       up-down counter    of sections that have not been unlocked yet
//	rlock.lease.margin      histogram, s       what was left of the lease when a renewal was confirmed
//	rlock.losses            counter            of holds that ended before their unlock
//	rlock.handoffs          counter            of locks that an unlock handed to the next one
//
// A re-entry has an acquire duration, and is no section of its own: what counts and measures holds leaves it out.
//
// A margin is two thirds of the watchdog time if all is well. One below a third says that a renewal was late; when nothing is
// left, the hold is lost. A renewal that was never confirmed has none. That of the first renewal of a hold which another process
// handed over is less than the two seconds for which such a hold is trusted at first; it has the path grant.
//
// # Attributes
//
//	rlock.kind     on all: mutex, fenced, fair, read, write, fenced write, upgradeable, all, quorum, latch
//	rlock.group    on all, see [WithGroup]
//	rlock.outcome  of an acquire: acquired; not_acquired, if its time ended while others had the lock; error
//	rlock.path     of an acquire that succeeded: free, reentry, handoff, grant, woken, shared, see [rlock.Path]; of a hand-off:
//	               handoff, in this process, or grant, from another one; of a margin: grant, see above, or none
//	error.type     of what failed, see below
//
// The error.type of an acquire, and of a hold whose unlock failed, is canceled or deadline_exceeded, if the ctx ended; unreachable,
// lost, not_replicated, not_held, reentry, upgrade or closed, for the sentinel of that name; or _OTHER. A TryLock that came to the end of its
// wait is not_acquired without an error.type. That of a loss is expired, gone or max_hold, see [rlock.LossReason].
//
// # Spans
//
// A Lock that had to wait makes a span called rlock.acquire, if the span of its ctx is recording: its child, from the call of Lock
// until it returned. It has the attributes above, rlock.name, and if others had the lock to the end rlock.holder, and rlock.holder.label if
// their Client has an Options.Label. If a section of the same process handed the lock over, it has a link to the span of that section. A Lock that did not wait makes none: if the Redis client
// makes spans of its commands, as rueidisotel does, those are children of the span of the caller.
package rlockotel
