package rlocktest

import (
	"bytes"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// network is what a process reaches Redis through. Its connections are memory, and whoever waits for them waits for a sync.Cond, so
// that the clock of a bubble goes on. They are no net.Pipe, which has no buffer: a client that sends much before it reads, and a server
// that answers meanwhile, would wait for each other.
type network struct {
	mu    sync.Mutex // guards the following, and all that is in links
	fails int        // how many have taken it down: while there are any, what is sent is lost, in both directions
	gone  bool       // for good
	links map[*link]struct{}
}

// link is a connection.
type link struct {
	net                *network
	toRedis, fromRedis stream
	lost               bool // something
	over               bool // both ends are closed
}

// stream is one direction of a connection.
type stream struct {
	news     *sync.Cond // of the following; its lock is network.mu
	data     bytes.Buffer
	deadline time.Time // of whoever reads
	timer    *time.Timer
}

// end is a net.Conn.
type end struct {
	*link
	in, out *stream
}

func newNetwork() *network { return &network{links: make(map[*link]struct{})} }

// connect returns the two ends of a new connection. It is made also if the network is down; then nobody answers.
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

// close breaks all connections. From then on there are none.
func (n *network) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.gone = true
	for l := range n.links {
		l.cut()
	}
}

// fail takes the network down. It is back when all that have called fail have called restore.
func (n *network) fail() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.fails++
}

// restore ends one failure. If it was the last one, connections that have lost something break.
func (n *network) restore() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.fails == 0 {
		return // restoreAll was quicker
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

// breakLossy breaks the connections that have lost something; network.mu is held.
func (n *network) breakLossy() {
	for l := range n.links {
		if l.lost {
			l.cut()
		}
	}
}

// cut closes both ends; network.mu is held. What was sent before can still be read.
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

// stop stops the clock of whoever reads; network.mu is held.
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

// SetWriteDeadline does nothing: no write waits.
func (e *end) SetWriteDeadline(time.Time) error { return nil }

func (e *end) SetDeadline(t time.Time) error { return e.SetReadDeadline(t) }

func (e *end) LocalAddr() net.Addr  { return address{} }
func (e *end) RemoteAddr() net.Addr { return address{} }

type address struct{}

func (address) Network() string { return "memory" }
func (address) String() string  { return "rlocktest" }
