// Package memnet is a network in memory, with faults on demand, for tests in virtual time: whoever reads waits on a sync.Cond, which lets
// the clock of a testing/synctest bubble go on.
//
// Unlike net.Pipe it has buffers: with none, a client that writes much before it reads would wait for a server that waits for it.
package memnet

import (
	"bytes"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// Options are what a Way is made of. Its functions are called under the Way's mutex, and must not call the Way.
type Options struct {
	// Serve gets the server's end of each new connection. It must not block.
	Serve func(net.Conn)

	// Latency returns how long a message takes, in one direction. Messages of a connection stay in order. Nil: no time.
	Latency func() time.Duration

	// Watch sees each message as it is sent; lost says that it will not arrive. May be nil.
	Watch func(l *Link, toServer bool, data []byte, lost bool)

	// Loses says whether a reply is lost, together with its connection. It is not asked about connections with subscriptions. May be nil.
	Loses func() bool
}

// Way is the path from a process to a server. What one end of a connection writes at once is a message. Faults act on the way. All methods
// may be called from any goroutine.
type Way struct {
	options Options

	mu        sync.Mutex // guards the fields below, and everything in the connections
	links     map[*Link]struct{}
	number    int  // of links so far
	refused   bool // new connections are refused
	silent    bool // messages are lost, and new connections are not answered
	gone      bool // for good
	held      bool // messages arrive later
	loseReply int  // so many messages of the server are lost, each with its connection
}

// New returns a Way without faults.
func New(o Options) *Way { return &Way{options: o, links: make(map[*Link]struct{})} }

// Link is a connection on a Way.
type Link struct {
	way      *Way
	number   int
	up, down stream // to the server, to the client
	lost     bool   // it lost something, and breaks as soon as the way is whole again
	over     bool
	held     bool // messages arrive later
	listens  bool // it has a subscription
}

// Number tells the Links of a Way apart, from 1.
func (l *Link) Number() int { return l.number }

// Listens reports whether a SUBSCRIBE was sent on it; Way.Cut may ask for it.
func (l *Link) Listens() bool { return l.listens }

// Dial returns the client's end of a new connection. While the way is silent it succeeds, but nobody answers.
func (w *Way) Dial() (net.Conn, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.gone || w.refused {
		return nil, &net.OpError{Op: "dial", Net: address{}.Network(), Addr: address{}, Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	}
	w.number++
	l := &Link{way: w, number: w.number}
	l.up.news, l.down.news = sync.NewCond(&w.mu), sync.NewCond(&w.mu)
	w.links[l] = struct{}{}
	w.options.Serve(&end{Link: l, in: &l.up, out: &l.down})
	return &end{Link: l, in: &l.down, out: &l.up, client: true}, nil
}

// Conns returns the number of open connections.
func (w *Way) Conns() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.links)
}

// Hold holds everything back, also on new connections, until Free.
func (w *Way) Hold() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held = true
}

// HoldOpen holds back the messages of the connections that there are, until Free.
func (w *Way) HoldOpen() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for l := range w.links {
		l.held = true
	}
}

// Free ends Hold and HoldOpen.
func (w *Way) Free() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held = false
	for l := range w.links {
		l.held = false
		l.up.arrive(l)
		l.down.arrive(l)
	}
}

// Silence loses everything until Heal.
func (w *Way) Silence() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.silent = true
}

// Heal ends Silence: connections that have lost something break.
func (w *Way) Heal() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.silent = false
	for l := range w.links {
		if l.lost {
			l.cut()
		}
	}
}

// Cut closes both ends of connections at once. Which may be nil, for all.
func (w *Way) Cut(which func(*Link) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for l := range w.links {
		if which == nil || which(l) {
			l.cut()
		}
	}
}

// Refuse refuses new connections, or accepts them again.
func (w *Way) Refuse(refused bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refused = refused
}

// LoseReplies loses the server's next n messages, each with its connection. Connections with subscriptions are spared.
func (w *Way) LoseReplies(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.loseReply = n
}

// Kill is the end of the client's process: the server sees its connections close, nothing that was not sent yet arrives, and there are no
// new ones.
func (w *Way) Kill() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gone, w.held = true, false
	for l := range w.links {
		l.cut()
	}
}

// loses reports whether a message of the server is lost with its connection; Way.mu is held.
func (w *Way) loses(l *Link) bool {
	if l.listens || w.silent {
		return false
	}
	if w.loseReply > 0 {
		w.loseReply--
		return true
	}
	return w.options.Loses != nil && w.options.Loses()
}

// watch tells Options.Watch of a message; Way.mu is held.
func (w *Way) watch(l *Link, toServer bool, data []byte, lost bool) {
	if w.options.Watch != nil {
		w.options.Watch(l, toServer, data, lost)
	}
}

// cut closes both ends; Way.mu is held. What has arrived can still be read.
func (l *Link) cut() {
	l.over = true
	delete(l.way.links, l)
	for _, s := range []*stream{&l.up, &l.down} {
		s.closed, s.queue = true, nil
		s.news.Broadcast()
	}
}

// stream is one direction of a Link.
type stream struct {
	news     *sync.Cond // of the fields below; its lock is Way.mu
	queue    []message  // on the way
	arrived  bytes.Buffer
	last     time.Time // when the last of queue arrives
	deadline time.Time // of the reader
	timer    *time.Timer
	closed   bool // no more will arrive
}

type message struct {
	at   time.Time
	data []byte // nil: the end
}

// send puts data on its way; Way.mu is held. The end of the stream, nil, travels like data.
func (s *stream) send(l *Link, data []byte) {
	w := l.way
	if s.closed {
		return
	}
	var at time.Time
	if w.options.Latency != nil {
		at = time.Now().Add(w.options.Latency())
		if at.Before(s.last) {
			at = s.last
		}
		s.last = at
	}
	s.queue = append(s.queue, message{at, bytes.Clone(data)})
	if len(s.queue) == 1 {
		s.arrive(l)
	}
}

// arrive moves what is due, and comes back for the next; Way.mu is held.
func (s *stream) arrive(l *Link) {
	if l.way.held || l.held || s.closed || len(s.queue) == 0 {
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
		time.AfterFunc(time.Until(s.queue[0].at), func() {
			l.way.mu.Lock()
			defer l.way.mu.Unlock()
			s.arrive(l)
		})
	}
}
