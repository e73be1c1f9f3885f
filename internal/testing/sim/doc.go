// Package sim runs the library with as many Clients as a fleet has processes, in a bubble of testing/synctest: on a
// Redis in memory, over a network with simulated delays and faults, with a clock that costs nothing.
//
// A seed makes a [Plan]: processes, their latencies to the servers, locks, goroutines, faults. [Run] runs it, and
// oracles watch each Lock and unlock, and the servers. They report two owners, a holder without notice of its loss, a
// waiter asleep although the lock is free, a late return, and leftovers. Each finding comes with the conversation
// about that lock, and [Reduce] looks for a smaller world that fails as well.
//
// docs/internals/testing.md has a picture, and explains how to read a failure.
package sim
