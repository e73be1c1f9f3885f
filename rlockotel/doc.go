// Package rlockotel provides OpenTelemetry metrics and spans for the locks of a Client:
//
//	trace, err := rlockotel.New(rlockotel.WithGroup(func(name string) string {
//		group, _, _ := strings.Cut(name, ":") // "order:42" is in group "order"
//		return group
//	}))
//	…
//	client, err := rlock.New(rdb, rlock.Options{Trace: trace})
//
// # Metrics
//
//	rlock.acquire.duration  histogram, s       of each Lock and TryLock, successful or not
//	rlock.hold.duration     histogram, s       of each section: from when Lock returned until unlock was called
//	rlock.wait.active       up-down counter    callers waiting for a lock now
//	rlock.hold.active       up-down counter    sections not yet unlocked
//	rlock.lease.margin      histogram          the share of the lease left when a renewal was confirmed, from 0 to 1
//	rlock.losses            counter            holds that ended before their unlock
//	rlock.handoffs          counter            locks handed to the next waiter by an unlock
//
// A re-entry has an acquire duration, but is no section of its own: it is left out of hold durations and counts.
//
// The margin is relative to the watchdog time of the hold: [rlock.Options].WatchdogTimeout, or that of its WithWatchdog. A healthy one is two
// thirds. Below one third, the renewal was late; at zero, the hold is lost. Unconfirmed renewals are not recorded. The first renewal of a
// handed-over hold has the path grant, and a small margin: such a hold is trusted for two seconds at first.
//
// # Attributes
//
//	rlock.kind     on all: mutex, fenced, fair, read, write, fenced write, upgradeable, all, quorum, latch,
//	               semaphore, permits
//	rlock.group    on all, see [WithGroup]
//	rlock.outcome  of an acquire: acquired; not_acquired, if its time ended while others had the lock; error
//	rlock.path     of an acquire that succeeded: free, reentry, handoff, grant, woken, shared, kept, adopted, see [rlock.Path]; of a
//	               hand-off: handoff, in this process, or grant, from another one; of a margin: grant, see above, or none
//	error.type     of what failed, see below
//
// The error.type of an acquire, or of a hold whose unlock failed, is canceled or deadline_exceeded if the ctx ended; deadlock, unreachable, lost,
// not_replicated, not_held, reentry, upgrade or closed for the sentinel of that name; otherwise _OTHER. A TryLock whose wait ran out has the
// outcome not_acquired without an error.type. The error.type of a loss is expired, gone or max_hold, see [rlock.LossReason].
//
// # Spans
//
// A Lock that waited makes a span called rlock.acquire, from the call of Lock to its return, if ctx has a span that is recording: without a
// parent there is none. It has the attributes above and rlock.name. If the lock was not acquired, rlock.holder names the holder, and rlock.holder.label its Client's
// Options.Label, if any. If a section of the same process handed the lock over, the span links to that section's span. A Lock that did not wait
// makes none. If the Redis client traces its commands, as rueidisotel does, their spans are children of the caller's span.
package rlockotel
