package sim

import (
	"bytes"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// way is the path from one process to one server. Each chunk written to one of its connections is a message: it takes
// the latency of the way, and stays in order on its connection. Faults act on the way.
type way struct {
	world   *world
	process int // its number
	server  *server

	latency, jitter time.Duration // of one direction

	mu      sync.Mutex // guards the fields below, and everything in the connections
	links   map[*link]struct{}
	refused bool // new connections are refused
	silent  bool // messages are lost, and new connections are not answered
	gone    bool // for good: the process was killed

	held      bool // messages arrive later
	loseReply int  // so many chunks of the server are lost, each with its connection
}

// link is a connection.
type link struct {
	way      *way
	number   int
	up, down stream // to the server, to the process
	lost     bool   // it lost something, and breaks as soon as the way is whole again
	over     bool
	held     bool // messages arrive later
	listens  bool // it has a subscription
}

// stream is one direction of a link.
type stream struct {
	news     *sync.Cond // of the fields below; its lock is way.mu
	queue    []chunk    // on the way
	arrived  bytes.Buffer
	last     time.Time // when the last of queue arrives
	deadline time.Time // of the reader
	timer    *time.Timer
	closed   bool // no more will arrive
}

type chunk struct {
	at   time.Time
	data []byte // nil: the end
}

// end is a net.Conn.
type end struct {
	*link
	in, out *stream
	client  bool
	shut    bool // by its owner
}

func newWay(w *world, process int, s *server, latency, jitter time.Duration) *way {
	return &way{world: w, process: process, server: s, latency: latency, jitter: jitter, links: make(map[*link]struct{})}
}

// dial makes a connection, which the server serves.
func (w *way) dial() (net.Conn, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.gone || w.refused {
		return nil, &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", errRefused)}
	}
	l := &link{way: w, number: w.world.trace.link()}
	l.up.news, l.down.news = sync.NewCond(&w.mu), sync.NewCond(&w.mu)
	w.links[l] = struct{}{}
	w.server.serve(&end{link: l, in: &l.up, out: &l.down})
	return &end{link: l, in: &l.down, out: &l.up, client: true}, nil
}

// send puts data on its way; way.mu is held. The end of the stream travels like data.
func (s *stream) send(l *link, data []byte) {
	w := l.way
	if s.closed {
		return
	}
	at := time.Now().Add(w.latency)
	if w.jitter > 0 {
		at = at.Add(w.world.jitter(w.jitter))
	}
	if at.Before(s.last) {
		at = s.last
	}
	s.last = at
	s.queue = append(s.queue, chunk{at, data})
	if len(s.queue) == 1 && !w.held && !l.held {
		s.arm(l)
	}
}

// arm makes the head of the queue arrive in time; way.mu is held.
func (s *stream) arm(l *link) {
	time.AfterFunc(time.Until(s.queue[0].at), func() {
		l.way.mu.Lock()
		defer l.way.mu.Unlock()
		s.arrive(l)
	})
}

// arrive moves due chunks; way.mu is held.
func (s *stream) arrive(l *link) {
	if l.way.held || l.held || s.closed {
		return
	}
	for len(s.queue) > 0 && !s.queue[0].at.After(time.Now()) {
		if s.queue[0].data == nil {
			s.closed = true
			s.queue = nil
			break
		}
		s.arrived.Write(s.queue[0].data)
		s.queue = s.queue[1:]
	}
	s.news.Broadcast()
	if len(s.queue) > 0 {
		s.arm(l)
	}
}

// hold holds everything back until free.
func (w *way) hold() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held = true
}

// holdLinks holds back the traffic of existing connections until free.
func (w *way) holdLinks() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for l := range w.links {
		l.held = true
	}
}

func (w *way) free() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held = false
	for l := range w.links {
		l.held = false
		l.up.arrive(l)
		l.down.arrive(l)
	}
}

// silence loses everything until heal.
func (w *way) silence() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.silent = true
}

// heal ends silence: connections that have lost something break.
func (w *way) heal() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.silent = false
	for l := range w.links {
		if l.lost {
			l.cut()
		}
	}
}

// cutAll closes connections for both ends at once.
func (w *way) cutAll(which func(*link) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for l := range w.links {
		if which == nil || which(l) {
			l.cut()
		}
	}
}

func (w *way) refuse(refused bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refused = refused
}

func (w *way) loseReplies(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.loseReply = n
}

// kill is the effect of a process's end: the server sees its connections close, and nothing that was not sent yet
// arrives.
func (w *way) kill() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gone, w.held = true, false
	for l := range w.links {
		l.cut()
	}
}

// cut closes both ends; way.mu is held.
func (l *link) cut() {
	l.over = true
	delete(l.way.links, l)
	for _, s := range []*stream{&l.up, &l.down} {
		s.closed, s.queue = true, nil
		s.news.Broadcast()
	}
}

func (e *end) Close() error {
	e.way.mu.Lock()
	defer e.way.mu.Unlock()
	if e.in.timer != nil {
		e.in.timer.Stop()
		e.in.timer = nil
	}
	if e.over || e.shut {
		return nil
	}
	e.shut = true
	// The other end sees it when the message arrives, if one can.
	e.in.closed, e.in.queue = true, nil
	e.in.news.Broadcast()
	if e.way.silent || e.way.gone {
		e.lost = true
	} else {
		e.out.send(e.link, nil)
	}
	if e.out.closed {
		e.over = true
		delete(e.way.links, e.link)
	}
	return nil
}

func (e *end) Write(b []byte) (int, error) {
	w := e.way
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.over || e.shut || e.in.closed {
		return 0, net.ErrClosed
	}
	if e.client && bytes.Contains(b, []byte("SUBSCRIBE")) {
		e.listens = true
	}
	lost := w.silent
	if !e.client && !e.listens && !lost && (w.loseReply > 0 || w.world.loses(w.process)) {
		w.loseReply = max(w.loseReply-1, 0)
		w.world.trace.add(w, e.link, e.client, b, true)
		e.cut()
		return len(b), nil
	}
	w.world.trace.add(w, e.link, e.client, b, lost)
	if lost {
		e.lost = true
		return len(b), nil
	}
	e.out.send(e.link, bytes.Clone(b))
	return len(b), nil
}

func (e *end) Read(b []byte) (int, error) {
	w := e.way
	w.mu.Lock()
	defer w.mu.Unlock()
	for e.in.arrived.Len() == 0 {
		switch {
		case e.over || e.in.closed:
			return 0, io.EOF
		case !e.in.deadline.IsZero() && !time.Now().Before(e.in.deadline):
			return 0, os.ErrDeadlineExceeded
		}
		e.in.news.Wait()
	}
	return e.in.arrived.Read(b)
}

func (e *end) SetReadDeadline(t time.Time) error {
	e.way.mu.Lock()
	defer e.way.mu.Unlock()
	if e.in.timer != nil {
		e.in.timer.Stop()
		e.in.timer = nil
	}
	e.in.deadline = t
	if !t.IsZero() && !e.over {
		e.in.timer = time.AfterFunc(time.Until(t), func() {
			e.way.mu.Lock()
			defer e.way.mu.Unlock()
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
func (address) String() string  { return "sim" }
