package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strconv"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/calls"
)

// mostBytes is the longest string of a Redis without proto-max-bulk-len, mostElements is more than any reply to us has.
const (
	mostBytes    = 512 << 20
	mostElements = 1 << 24

	longestHeader = 64 // longer than any length
)

var errMalformed = errors.New("a malformed reply: what listens there is no Redis, or a proxy breaks its answers")

// checkReplies makes the connections of a client end with an error at a length that is impossible. rueidis 1.0.79 panics there, on a
// goroutine of its own.
func checkReplies(o *rueidis.ClientOption) {
	dial := o.DialCtxFn
	if dial == nil {
		dial = calls.DialEither
	}
	o.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, config *tls.Config) (net.Conn, error) {
		conn, err := dial(ctx, addr, d, config)
		if err != nil {
			return nil, err
		}
		return &checked{Conn: conn}, nil
	}
}

// checked is a connection that follows the lengths in what it reads. One goroutine reads it.
type checked struct {
	net.Conn

	line []byte // the beginning of a line
	skip int64  // bytes of a string that are still to come, with its line break
}

func (c *checked) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if !c.follow(p[:n]) {
		return 0, errMalformed
	}
	return n, err
}

// follow reports false at an impossible length.
func (c *checked) follow(p []byte) bool {
	for len(p) > 0 {
		if c.skip > 0 {
			jump := min(c.skip, int64(len(p)))
			c.skip, p = c.skip-jump, p[jump:]
			continue
		}
		text, rest, ended := bytes.Cut(p, []byte("\n"))
		c.line = append(c.line, text[:min(len(text), longestHeader-len(c.line))]...)
		if p = rest; !ended {
			return true
		}
		sane := c.measure(bytes.TrimSuffix(c.line, []byte("\r")))
		if c.line = c.line[:0]; !sane {
			return false
		}
	}
	return true
}

// measure reads a line that may begin a string, or an aggregate, whose elements follow as any other replies.
func (c *checked) measure(line []byte) bool {
	if len(line) < 2 || line[1] == '?' { // a length that is not known yet
		return true
	}
	most := int64(mostElements)
	switch line[0] {
	case '$', '!', '=', ';':
		most = mostBytes
	case '*', '%', '~', '>', '|':
	default:
		return true
	}
	length, err := strconv.ParseInt(string(line[1:]), 10, 64)
	if err != nil || length < -1 || length > most {
		return false
	}
	if most == mostBytes && length >= 0 && (line[0] != ';' || length > 0) {
		c.skip = length + 2
	}
	return true
}
