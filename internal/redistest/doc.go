// Package redistest gives tests real Redis servers, and a network between client and server that fails on request.
//
// A lock is only as good as its behaviour while things break. So the tests of this module run against real processes,
// which they may stop, kill, pause and restart, and through a [Proxy] that loses, holds or cuts single commands.
// Nothing here relies on sleeping: every start is awaited with a bound, and everything a test started ends with that
// test.
//
//   - [Shared] is one plain server for a whole test binary; enough for most tests.
//   - [Start] runs a server for one test, which may stop and restart it.
//   - [ForExample] runs a server for an example on a package page.
//   - [StartCluster] and [StartSentinel] run small real deployments.
//   - [StartProxy] puts a proxy between a client and a server.
//   - [Eventually], [Commands] and [Goroutines] observe.
//   - [Parallel] lets tests that look at goroutines run beside each other.
//
// Everything listens on 127.0.0.1 only. The server is the redis-server on PATH: Redis 6.2 or later, or Valkey under
// that name.
package redistest
