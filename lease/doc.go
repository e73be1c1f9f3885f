// Package lease keeps holds alive and reports, in time, the ones that it
// could not keep. It is the part of rlock that other libraries call the
// watchdog.
//
// The package is a building block of rlock, outside its compatibility
// promise: names and behaviour may change in any release. It does no I/O, it
// is given a [RenewFunc] that does, and it knows nothing of Redis but the rule
// below.
//
// # Trusted until
//
// A holder may act on its lock only as long as nobody else can get it, and
// somebody else can get it once the key has expired. The holder can't see that
// expiry: it is set by Redis, on the clock of Redis, at some instant between
// the sending of the command and the arrival of the reply. So the holder trusts
// itself up to an instant that it can compute alone:
//
//	trusted until = (local monotonic time before the last successful
//	                 acquire or renew was sent) + lease
//
// It is never later than the expiry in Redis. Let the command be sent at s and
// executed at x; a command isn't executed before it is sent, so s <= x. Redis
// lets the key live until x + lease, and s + lease <= x + lease. The
// milliseconds that Redis counts in don't spoil this: it truncates the time of
// both ends, but drops a key only once its clock is past the expiry, not when
// it is at it.
//
// A slow reply never stretches it. The instant at which the reply arrives is
// in no term above: a reply that took four seconds leaves four seconds less to
// trust, and a reply that comes after the trusted time has ended changes
// nothing, since by then the holder has been told (a lost lease stays lost).
// Nor does a renewal that failed, or whose reply was lost, take anything away:
// the expiry in Redis only ever moves later, so what the last success bought
// still holds. That is why a failed renewal is tried again until the trusted
// time ends, and why only the end of it, or the store's own word that the
// owner holds the name no more, is a loss.
//
// The argument needs two things from the caller. First, the times given to
// [Renewer.Keep] and [Renewer.Update] are computed as above, from a
// time.Now() taken before sending (it carries the monotonic reading; a time
// that was marshalled, rounded or built by time.Unix doesn't). Second, no
// command may shorten an expiry while its lease is kept: neither a renewal
// that finds a longer expiry set by a re-entry that overtook it, nor a
// re-entry with a short lease of its own.
//
// # Limits
//
//   - Both clocks must run at the same rate. Over a lease of 30 s two ordinary
//     clocks drift apart by a few milliseconds at most, but nothing here
//     subtracts a margin for it.
//   - Redis expires keys by its wall clock. When that is stepped forward, keys
//     expire early, and no client can see it.
//   - Go's monotonic clock is CLOCK_MONOTONIC on Linux, which stands still
//     while the machine is suspended. A virtual machine that is suspended for a
//     minute and resumed believes that no time has passed, and is told late.
//   - A process that the scheduler or the garbage collector has stopped
//     can't be told until it runs again, and between a check and the act that
//     it permits there is always a gap. Only a fencing token, checked by
//     whatever the lock protects, closes it.
//
// # How it runs
//
// One goroutine serves all leases. It sleeps on one timer until the earliest
// of three heaps asks for it: the ends of trust, the renewals that are due, and
// the retries of renewals that failed. It never does I/O and never waits for a
// renew call, which runs on a goroutine of its own and ends with its ctx; so
// a loss is on time while any number of calls is stuck. Who gets a name next
// does not rely on that goroutine's turn: [Renewer.CatchUp] passes on the losses
// that are due.
//
// Renewals are due every third of the watchdog time, give or take a twentieth,
// so that two in a row may fail. Waking for the first renewal of a lease, the
// goroutine takes along those that are due shortly after, sorts them by group, and
// sends up to [Options].Batch leases in a call; room left in it goes to leases of
// the group that are due later. Leases that were sent together are due together
// from then on, so batches form by themselves, and n leases of one group cost
// n/Batch calls a period.
//
// A renewal that failed is tried again after a hundredth of the watchdog time,
// then after twice that, and at last every thirtieth of it: a store that
// answers for that long between two outages saves what is left of the leases.
// Only a store that refuses every one of many leases is asked less often, every
// sixth. Leases whose renewal failed go before those that are due.
package lease
