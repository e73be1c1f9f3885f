// Package redistest gives tests real Redis servers, and a network between
// client and server that fails on request.
//
// A lock is only as good as its behaviour while things break, so the tests of
// this module run against real processes that they may stop, kill, pause and
// restart, and through a [Proxy] that loses, holds or cuts single commands.
// Nothing here sleeps and hopes: whatever is started is waited for with a
// bound, and whatever a test started ends with that test.
//
//   - [Shared] is one plain server for a whole test binary; enough for most tests.
//   - [Start] is a server of a test's own, to be stopped and started.
//   - [ForExample] is a server for an example on a package page.
//   - [StartCluster] and [StartSentinel] are small real deployments.
//   - [StartProxy] stands between a client and a server.
//   - [Eventually], [Commands] and [Goroutines] observe.
//   - [Parallel] lets tests that look at goroutines run beside each other.
//
// Everything listens on 127.0.0.1 only. The server is the redis-server on PATH:
// Redis 6.2 or later, or Valkey under that name.
package redistest
