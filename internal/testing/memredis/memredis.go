// Package memredis lets tests of any module run a Redis in memory, without requiring one: package rlocktest has it, and says so when it is
// imported.
package memredis

import "net"

// Redis is a server in memory, without data at first. Its clock is that of package time: in a testing/synctest bubble, the bubble's.
type Redis interface {
	// ServeConn serves a connection until its end, on a goroutine of its own.
	ServeConn(conn net.Conn)

	// Atomic calls f while no client's command runs. Its parameter runs commands.
	Atomic(f func(do Do))

	// Forget makes it forget all scripts, as SCRIPT FLUSH does.
	Forget()

	// Close ends all connections, and waits until nothing of the server is left.
	Close()
}

// Do runs a command. It returns nil, an int, a string, an error, or a []any of these.
type Do func(args ...string) any

// Options change a server, for tests of tests. The zero value is a Redis as it is.
type Options struct {
	// Change returns what runs in place of a script. May be nil.
	Change func(text string) string

	// Answer sees each command first, also those of scripts, with its name in capitals. With done, the reply, an int or an error, is sent
	// and the command does not run. May be nil.
	Answer func(cmd string, args []string) (reply any, done bool)

	// Reply returns what a script gets as the reply to a command. May be nil.
	Reply func(args []string, reply any) any

	// Saw gets the keys and the first argument of each script that ran, while no other command runs. May be nil.
	Saw func(keys []string, by string, do Do)

	// Ran gets each script that ran, and the arguments of its EVAL or EVALSHA. May be nil.
	Ran func(text, cmd string, args []string)

	// DropEarly drops a key at the beginning of its last millisecond, as miniredis does. Redis drops it at the end.
	DropEarly bool
}

// Start starts a server. It is nil if package rlocktest is not in the program.
var Start func(Options) (Redis, error)
