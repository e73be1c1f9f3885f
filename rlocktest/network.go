package rlocktest

import (
	"bytes"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// network connects a process to Redis in memory. Its readers wait on a sync.Cond, which lets a bubble's clock advance. net.Pipe has no
// buffer: a client that writes much before it reads would deadlock with the server's replies.
type network struct {
	mu    sync.Mutex // guards the following, and all fields of links
	fails int        // open failures; while there are any, traffic is lost in both directions
	gone  bool       // for good
	links map[*link]struct{}
}

// link is a connection.
type link struct {
	net                *network
	toRedis, fromRedis stream
	lost               bool // has lost traffic
	over               bool // both ends are closed
}

// stream is one direction of a connection.
type stream struct {
	news     *sync.Cond // for the following; its lock is network.mu
	data     bytes.Buffer
	deadline time.Time // the reader's
	timer    *time.Timer
}

// end is a net.Conn.
type end struct {
	*link
	in, out *stream
}

func newNetwork() *network { return &network{links: make(map[*link]struct{})} }

// connect returns both ends of a new connection. During a failure it succeeds as well, but nobody answers.
func (n *network) connect() (client, server net.Conn, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.gone {
		return nil, nil, net.ErrClosed
	}
	l := &link{net: n}
	l.toRedis.news, l.fromRedis.news = sync.NewCond(&n.mu), sync.NewCond(&n.mu)
	n.links[l] = struct{}{}
	return &end{l, &l.fromRedis, &l.toRedis}, &end{l, &l.toRedis, &l.fromRedis}, nil
}

// close breaks all connections and refuses new ones.
func (n *network) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.gone = true
	for l := range n.links {
		l.cut()
	}
}

// fail takes the network down. It comes back after as many calls of restore.
func (n *network) fail() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.fails++
}

// restore ends one failure. With the last, connections that lost traffic break.
func (n *network) restore() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.fails == 0 {
		return // restoreAll came first
	}
	if n.fails--; n.fails == 0 {
		n.breakLossy()
	}
}

// restoreAll ends all failures.
func (n *network) restoreAll() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.fails = 0
	n.breakLossy()
}

// breakLossy breaks the connections that lost traffic; network.mu is held.
func (n *network) breakLossy() {
	for l := range n.links {
		if l.lost {
			l.cut()
		}
	}
}

// cut closes both ends; network.mu is held. Buffered data can still be read.
func (l *link) cut() {
	l.over = true
	delete(l.net.links, l)
	l.toRedis.news.Broadcast()
	l.fromRedis.news.Broadcast()
}

func (e *end) Close() error {
	e.net.mu.Lock()
	defer e.net.mu.Unlock()
	e.cut()
	e.in.stop()
	return nil
}

func (e *end) Write(b []byte) (int, error) {
	e.net.mu.Lock()
	defer e.net.mu.Unlock()
	switch {
	case e.over:
		return 0, net.ErrClosed
	case e.net.fails > 0:
		e.lost = true
	default:
		e.out.data.Write(b)
		e.out.news.Broadcast()
	}
	return len(b), nil
}

func (e *end) Read(b []byte) (int, error) {
	e.net.mu.Lock()
	defer e.net.mu.Unlock()
	for e.in.data.Len() == 0 {
		switch {
		case e.over:
			return 0, io.EOF
		case !e.in.deadline.IsZero() && !time.Now().Before(e.in.deadline):
			return 0, os.ErrDeadlineExceeded
		}
		e.in.news.Wait()
	}
	return e.in.data.Read(b)
}

// stop stops the reader's deadline timer; network.mu is held.
func (s *stream) stop() {
	if s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
}

func (e *end) SetReadDeadline(t time.Time) error {
	e.net.mu.Lock()
	defer e.net.mu.Unlock()
	e.in.stop()
	e.in.deadline = t
	if !t.IsZero() && !e.over {
		e.in.timer = time.AfterFunc(time.Until(t), func() {
			e.net.mu.Lock()
			defer e.net.mu.Unlock()
			e.in.news.Broadcast()
		})
	}
	e.in.news.Broadcast()
	return nil
}

// SetWriteDeadline does nothing: writes never block.
func (e *end) SetWriteDeadline(time.Time) error { return nil }

func (e *end) SetDeadline(t time.Time) error { return e.SetReadDeadline(t) }

func (e *end) LocalAddr() net.Addr  { return address{} }
func (e *end) RemoteAddr() net.Addr { return address{} }

type address struct{}

func (address) Network() string { return "memory" }
func (address) String() string  { return "rlocktest" }
