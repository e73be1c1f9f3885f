package redistest

import (
	"net"
	"sync"
	"testing"
)

// StartFake serves connections on a new port, each on a goroutine of its own, until the test ends. serve returns when the peer has gone at
// the latest; the connection is closed then.
func StartFake(tb testing.TB, serve func(conn net.Conn)) (addr string) {
	tb.Helper()
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() { // ended by closing the listener
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			all.Go(func() { // ends with serve
				serve(conn)
				_ = conn.Close()
			})
		}
	})
	tb.Cleanup(func() {
		_ = ln.Close()
		all.Wait()
	})
	return ln.Addr().String()
}

// Says makes a fake server that waits for a command, whatever it is, answers with the text, and hangs up.
func Says(text string) func(net.Conn) {
	return func(conn net.Conn) {
		if _, err := conn.Read(make([]byte, 1<<16)); err == nil {
			_, _ = conn.Write([]byte(text))
		}
	}
}

// HangsUp is a fake server that takes a connection and ends it.
func HangsUp(net.Conn) {}

// Resets is one that ends it with a reset, as a server that closes a connection with unread data.
func Resets(conn net.Conn) { _ = conn.(*net.TCPConn).SetLinger(0) } //nolint:errcheck // there are no others
