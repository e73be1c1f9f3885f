// Package sim runs the library with as many Clients as a fleet has processes, in a bubble of testing/synctest: on a Redis in memory, over a
// network whose delays and faults it makes itself, with a clock that costs nothing.
//
// A seed makes a [Plan]: processes, their ways to the servers, locks, goroutines, faults. [Run] runs it, and oracles look at each Lock and
// unlock, and at the servers: two owners, a holder who is not told, a waiter that sleeps though the lock is free, a call that returns late,
// something that is left behind. Whatever they find comes with the conversation about that lock, and [Reduce] looks for a smaller
// world in which something fails as well.
//
// docs/testing.md has a picture, and how to read a failure.
package sim
