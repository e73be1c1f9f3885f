// Package lease keeps holds alive and reports, in time, those it could not keep. Other libraries call this part the
// watchdog.
//
// The package is a building block of rlock, outside its compatibility promise: names and behaviour may change in any
// release. It does no I/O itself but calls a [RenewFunc], and it knows nothing about Redis except the rule below.
//
// # Trusted until
//
// A holder may act on its lock only while nobody else can get it, and somebody else can get it once the key has
// expired. The holder cannot see the expiry: Redis sets it on its own clock, at some instant between the sending of
// the command and the arrival of the reply. So the holder trusts its lease up to an instant it can compute alone:
//
//	trusted until = (local monotonic time before the last successful
//	                 acquire or renew was sent) + lease
//
// This is never later than the expiry in Redis. Let the command be sent at s and executed at x; then s <= x, Redis
// lets the key live until x + lease, and s + lease <= x + lease. Redis's resolution of milliseconds does not spoil
// this: Redis truncates both ends, but drops a key only when its clock is past the expiry, not when it is at it.
//
//   - A slow reply does not stretch the lease, since the formula ignores its arrival. A reply that took four seconds
//     leaves four seconds less to trust. A reply after the end of the trusted time changes nothing: the loss has
//     been reported by then, and a lost lease stays lost.
//   - A failed renewal, or a lost reply, takes nothing away: the expiry in Redis only ever moves later. So the renewal
//     is repeated until the trusted time ends. A lease is lost only then, or when the store answers
//     that the owner does not hold the name any more.
//   - A renewal that arrives after the release of its name changes nothing: an owner is used for one hold and never
//     again, so the store finds nothing to renew. A release need not wait for renewals.
//
// Callers must ensure three things. The times passed to [Renewer.Keep] and [Renewer.Update] are computed as above,
// from a time.Now() taken before sending. It carries the monotonic reading; a time that was marshalled, rounded or
// built by time.Unix does not. No command shortens an expiry while its lease is kept: neither a renewal that finds a
// longer expiry set by an overtaking re-entry, nor a re-entry with a short lease of its own. And no owner is used
// twice.
//
// # Limits
//
//   - Both clocks must run at the same rate. Over a lease of 30 s two ordinary clocks drift apart by a few milliseconds
//     at most; the package subtracts no margin for it.
//   - Redis expires keys by its wall clock. When that is stepped forward, keys expire early, and no client can see it.
//   - Go's monotonic clock is CLOCK_MONOTONIC on Linux, which stands still while the machine is suspended. A virtual
//     machine resumed after a minute believes that no time has passed, and reports losses late.
//   - A process stopped by the scheduler or the garbage collector learns of a loss only when it runs again, and
//     there is always a gap between a check and the act it permits. Only a fencing token closes that gap, checked by
//     the resource that the lock protects.
//
// # How it runs
//
// One goroutine serves all leases. It sleeps on one timer until the earlier of two heaps asks for it: the ends of
// trust, and the renewals due. It never does I/O and never waits for a renew call, which runs on a goroutine of its
// own and ends with its ctx; so losses are reported on time however many calls are stuck. The next holder of a name
// need not rely on that goroutine's turn: [Renewer.CatchUp] reports the losses that are due.
//
// Each lease has a ttl of its own, mostly the watchdog time. Renewals are due every third of it, give or take a
// twentieth, so two in a row may fail. A lease first granted for a shorter time ([Renewer.KeepShort]) is due after a
// third of that, and from then on like the others. Leases with different ttls never share a call. For the first due
// renewal the goroutine takes along those due shortly after, sorts them by group, and sends up to [Options].Batch
// leases in a call; leases of the group due later fill the rest. Leases sent together are due together from then on,
// so batches form by themselves, and n leases of one group cost n/Batch calls a period.
//
// A lease may have a limit ([Renewer.Limit]): its trusted time ends there at the latest. The renewal that reaches the
// limit is the last.
//
// A failed renewal is repeated after a hundredth of the ttl, then after twice that, and at last every thirtieth of
// it: a store that answers for that long between two outages saves the remaining leases. Only a store that refuses
// all of many leases is asked less often, every sixth. Leases whose renewal failed go before those that are due.
package lease
