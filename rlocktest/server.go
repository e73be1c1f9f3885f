package rlocktest

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/memnet"
	"github.com/go-rlock/rlock/rlocktest/internal/memory"
)

// dial returns a client of the server, and the way between them.
func dial(s *memory.Server) (rueidis.Client, *memnet.Way, error) {
	way := memnet.New(memnet.Options{Serve: s.ServeConn})
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
