// Package redistest gives tests real Redis servers, and a network between client and server that fails on request.
//
// The tests of this module run against real processes, because locks must hold up while things break. Tests may stop, kill, pause and
// restart a server, or put a [Proxy] before it that loses, holds or cuts single commands. Nothing relies on sleeping: every start is
// awaited with a time limit. Everything a test started ends with the test.
//
//   - [Shared] is one plain server for a whole test binary; enough for most tests.
//   - [Start] runs a server for one test, which may stop and restart it.
//   - [SharedCluster] and [SharedSentinel] are small deployments for a whole test binary.
//   - [ForExample] runs a server for an example on a package page.
//   - [StartCluster], [StartSentinel] and [StartWatchfulSentinel] run small real deployments.
//   - [StartProxy] puts a proxy between a client and a server.
//   - [Eventually], [Commands] and [Goroutines] observe.
//   - [Parallel] lets tests that look at goroutines run beside each other.
//   - [Virtual] runs a test in virtual time, where all of these work on servers and a network in memory.
//
// Everything listens on 127.0.0.1 only. The server is the redis-server on PATH: Redis 6.2 or later, or Valkey under
// that name.
package redistest
