package rlocktest

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strconv"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/memnet"
)

// newServer starts an in-memory Redis on the clock of package time: in a bubble, the bubble's.
func newServer() (*miniredis.Miniredis, error) {
	s := miniredis.NewMiniRedis()
	s.ClockTTL(true)
	conn, err := s.Dial() // starts it, without a socket
	if err != nil {
		return nil, fmt.Errorf("rlocktest: %w", err)
	}
	s.Server().SetPreHook(replicate)
	return s, conn.Close()
}

// replicate answers WAIT with the requested number of replicas.
func replicate(c *server.Peer, cmd string, args ...string) (done bool) {
	if cmd != "WAIT" || len(args) != 2 {
		return false
	}
	n, err := strconv.Atoi(args[0])
	if err != nil {
		return false
	}
	c.WriteInt(n)
	return true
}

// dial returns a client of the server, and the way between them.
func dial(s *miniredis.Miniredis) (rueidis.Client, *memnet.Way, error) {
	way := memnet.New(memnet.Options{Serve: s.Server().ServeConn})
	redis, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{"rlocktest"},
		DialCtxFn: func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) {
			return way.Dial()
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
