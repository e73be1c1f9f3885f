package rlocktest

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/testing/memnet"
	"github.com/go-rlock/rlock/rlocktest/internal/memory"
)

// dial returns a client of the server for goroutines of that bubble, and the way between them.
func dial(s *memory.Server, b bubble) (rueidis.Client, *memnet.Way, error) {
	way := memnet.New(memnet.Options{Serve: s.ServeConn})
	redis, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{"rlocktest"},
		DialCtxFn: func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) {
			b.check()
			conn, err := way.Dial()
			return checkedConn{conn, b}, err //nolint:wrapcheck // rueidis looks into it
		},
		// miniredis has no client-side caching, no commands on a subscribed connection, and no cluster, although it knows the commands.
		DisableCache: true, AlwaysRESP2: true, ForceSingleClient: true,
		// The default buffers are half a megabyte each, too much for connections made per test.
		ReadBufferEachConn: 4 << 10, WriteBufferEachConn: 4 << 10, RingScaleEachConn: 8,
	})
	if err != nil {
		return nil, nil, fmt.Errorf("rlocktest: %w", err)
	}
	return redis, way, nil
}

// checkedConn is a connection for goroutines of a bubble.
type checkedConn struct {
	net.Conn

	bubble bubble
}

// Write is where a command is sent, mostly by the goroutine that asks.
func (c checkedConn) Write(b []byte) (int, error) {
	c.bubble.check()
	return c.Conn.Write(b) //nolint:wrapcheck // rueidis looks into it
}
