// Package lease keeps holds alive and reports, in time, those that it could not keep. Other libraries call this part
// the watchdog.
//
// The package is a building block of rlock, outside its compatibility promise: names and behaviour may change in any
// release. It does no I/O, for which it is given a [RenewFunc], and it knows nothing of Redis but the rule below.
//
// # Trusted until
//
// A holder may act on its lock only as long as nobody else can get it, and somebody else can get it once the key has
// expired. The holder cannot see that: Redis sets the expiry on its own clock, at some instant between the sending of
// the command and the arrival of the reply. So the holder trusts itself up to an instant that it can compute alone:
//
//	trusted until = (local monotonic time before the last successful
//	                 acquire or renew was sent) + lease
//
// This is never later than the expiry in Redis. Let the command be sent at s and executed at x; then s <= x, Redis lets
// the key live until x + lease, and s + lease <= x + lease. That Redis counts in milliseconds does not spoil this: it
// truncates both ends, but drops a key only when its clock is past the expiry, not when it is at it.
//
//   - A slow reply stretches nothing, since the instant of its arrival is in no term above. A reply that took four
//     seconds leaves four seconds less to trust. One that comes after the trusted time has ended changes nothing: by
//     then the holder was told, and a lost lease stays lost.
//   - A renewal that failed, or whose reply was lost, takes nothing away: the expiry in Redis only ever moves later.
//     So it is tried again until the trusted time ends. Only that end is a loss, or the store's own word that the owner
//     does not hold the name any more.
//   - A renewal that arrives after the release of its name changes nothing: an owner is used for one hold and never
//     again, so the store finds nothing to renew. Whoever releases need not wait for it.
//
// The caller sees to three things. The times given to [Renewer.Keep] and [Renewer.Update] are computed as above, from a
// time.Now() taken before sending; it carries the monotonic reading, which a time that was marshalled, rounded or built
// by time.Unix does not. No command shortens an expiry while its lease is kept: neither a renewal that finds a longer
// expiry set by a re-entry that overtook it, nor a re-entry with a short lease of its own. And no owner is used twice.
//
// # Limits
//
//   - Both clocks must run at the same rate. Over a lease of 30 s two ordinary clocks drift apart by a few milliseconds
//     at most, but nothing here subtracts a margin for it.
//   - Redis expires keys by its wall clock. When that is stepped forward, keys expire early, and no client can see it.
//   - Go's monotonic clock is CLOCK_MONOTONIC on Linux, which stands still while the machine is suspended. A virtual
//     machine that is suspended for a minute and resumed believes that no time has passed, and its holders are told late.
//   - A process that is stopped, by the scheduler or the garbage collector, cannot be told until it runs again, and
//     between a check and the act that it permits there is always a gap. Only a fencing token closes it, checked by
//     whatever the lock protects.
//
// # How it runs
//
// One goroutine serves all leases. It sleeps on one timer until the earlier of two heaps asks for it: the ends of trust,
// and the renewals that are due. It never does I/O and never waits for a renew call, which runs on a goroutine of its
// own and ends with its ctx; so a loss is told on time while any number of calls is stuck. Whoever gets a name next need
// not rely on that goroutine's turn: [Renewer.CatchUp] passes on the losses that are due.
//
// Each lease has a ttl of its own, mostly the watchdog time. Renewals are due every third of it, give or take a twentieth, so that two in a row
// may fail. One that was given for a shorter time at first ([Renewer.KeepShort]) is due after a third of that, and from then on like the others.
// Leases of different ttls never share a call. For the
// first renewal of a lease the goroutine takes along those that are due shortly after, sorts them by group, and sends up
// to [Options].Batch leases in a call; room left in it goes to leases of the group that are due later. Leases that were
// sent together are due together from then on, so batches form by themselves, and n leases of one group cost n/Batch
// calls a period.
//
// A lease may have a limit ([Renewer.Limit]): its trusted time ends there at the latest. The renewal that brings it there is
// the last one.
//
// A renewal that failed is tried again after a hundredth of the ttl, then after twice that, and at last every
// thirtieth of it: a store that answers for that long between two outages saves what is left of the leases. Only a
// store that refuses every one of many leases is asked less often, every sixth. Leases whose renewal failed go before
// those that are due.
package lease
