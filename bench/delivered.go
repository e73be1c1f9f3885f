package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"net"
	"sync/atomic"

	"github.com/redis/rueidis"
)

// delivered counts the published messages that the server has sent to this process, on all connections of rueidis.
var delivered atomic.Int64

// hearing is a connection whose messages are counted. One that is split between two reads is missed, which is rare.
type hearing struct{ net.Conn }

func (c hearing) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	for _, word := range [][]byte{[]byte("$7\r\nmessage\r\n"), []byte("$8\r\nsmessage\r\n")} {
		delivered.Add(int64(bytes.Count(b[:n], word)))
	}
	return n, err
}

// counted has a client count what it is told.
func counted(o rueidis.ClientOption) rueidis.ClientOption {
	o.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
		conn, err := d.DialContext(ctx, "tcp", addr)
		if err != nil {
			return nil, err
		}
		return hearing{conn}, nil
	}
	return o
}

// deliveredPerOp is how many messages the server has delivered for each section; 0 for libraries on other clients than rueidis, whose messages
// nobody counts.
func (s *sample) deliveredPerOp() float64 {
	return s.Extra["delivered"] * float64(s.Processes) / s.passes() // Extra has the mean of the processes
}
