package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"net"
	"sync/atomic"

	"github.com/redis/rueidis"
)

// delivered counts the messages that the server has published to this process, on all rueidis connections.
var delivered atomic.Int64

// hearing is a connection that counts messages. It misses a message split between two reads, which is rare.
type hearing struct{ net.Conn }

func (c hearing) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	for _, word := range [][]byte{[]byte("$7\r\nmessage\r\n"), []byte("$8\r\nsmessage\r\n")} {
		delivered.Add(int64(bytes.Count(b[:n], word)))
	}
	return n, err
}

// counted makes a client count its messages.
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

// deliveredPerOp returns the delivered messages per section; 0 for libraries on other clients than rueidis, whose messages are not counted.
func (s *sample) deliveredPerOp() float64 {
	return s.Extra["delivered"] * float64(s.Processes) / s.passes() // Extra is the mean over the processes
}
