// Package memredis lets tests of any module run a Redis in memory, without requiring one: package rlocktest has it, and says so when it is
// imported.
package memredis

import "net"

// Redis is a server in memory, without data at first. Its clock is that of package time: in a testing/synctest bubble, the bubble's.
type Redis interface {
	// ServeConn serves a connection until its end, on a goroutine of its own.
	ServeConn(conn net.Conn)

	// Close ends all connections, and waits until nothing of the server is left.
	Close()
}

// Start starts a server. It is nil if package rlocktest is not in the program.
var Start func() (Redis, error)
