package redistest

import (
	"bufio"
	"io"
	"net"
	"sync"
	"time"
)

// link is a client's connection with its counterpart to the server.
//
// Each direction has a reader, which cuts the stream into frames and lets the hooks decide, and a writer, which
// carries out the decisions in order. So a delayed or held frame never hides the frames behind it from the hooks.
type link struct {
	p      *Proxy
	client net.Conn
	ledger ledger
	lost   bool // guarded by p.mu: a black hole took something

	once sync.Once
	done chan struct{} // closed by close
}

// parcel is a frame on its way through the proxy.
type parcel struct {
	raw     []byte
	due     time.Time
	act     Action
	release <-chan struct{} // of Hold
	alone   bool            // the stream has no hole without it
}

// parcels are those of one direction, from its reader to its writer. There is no bound, and so no need for room before there are any.
type parcels struct {
	news chan struct{} // has room for one

	mu    sync.Mutex // guards the following
	queue []parcel
}

func newParcels() *parcels { return &parcels{news: make(chan struct{}, 1)} }

func (q *parcels) put(p parcel) {
	q.mu.Lock()
	q.queue = append(q.queue, p)
	q.mu.Unlock()
	select {
	case q.news <- struct{}{}:
	default:
	}
}

// take returns the first parcel, if there is one.
func (q *parcels) take() (p parcel, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.queue) == 0 {
		return parcel{}, false
	}
	p, q.queue = q.queue[0], q.queue[1:]
	return p, true
}

// close ends the link; run returns shortly after.
func (l *link) close() {
	l.once.Do(func() {
		close(l.done)
		_ = l.client.Close()
	})
}

// run serves the client until the link or either side closes.
func (l *link) run() {
	defer l.close()
	if l.p.swallows(l) {
		// A connection made into a black hole never reaches the server.
		_, _ = io.Copy(io.Discard, l.client)
		return
	}
	server, err := l.p.world.dial(l.p.target)
	if err != nil {
		return
	}
	requests, replies := newParcels(), newParcels()
	var wg sync.WaitGroup
	// Closing done and both connections ends all four.
	wg.Go(func() { l.readRequests(requests) })
	wg.Go(func() { l.deliver(server, requests) })
	wg.Go(func() { l.readReplies(server, replies) })
	wg.Go(func() { l.deliver(l.client, replies) })
	<-l.done
	_ = server.Close()
	wg.Wait()
}

func (l *link) readRequests(out *parcels) {
	d := newDecoder(l.client)
	for {
		f, err := d.frame()
		if err != nil {
			l.put(out, parcel{act: Cut}) // after everything sent before it
			return
		}
		cmd := f.command()
		if len(cmd) == 0 {
			continue // an empty line, which servers ignore
		}
		act, release := l.p.decide(&l.p.hooks.request, cmd)
		fail := act.fails()
		if fail != "" {
			// The server's answer to this keeps the error in its place.
			f.raw, act = []byte("*1\r\n$4\r\nPING\r\n"), Pass // in no inline form: the server in memory hangs up on that
		}
		if act == Pass || act == Hold {
			l.ledger.sent(cmd, fail)
		}
		l.put(out, parcel{raw: f.raw, act: act, release: release})
	}
}

func (l *link) readReplies(server net.Conn, out *parcels) {
	d := newDecoder(server)
	for {
		f, err := d.frame()
		if err != nil {
			l.put(out, parcel{act: Cut})
			return
		}
		c, reply := l.ledger.answered(f)
		if c == nil {
			l.put(out, parcel{raw: f.raw})
			continue
		}
		act, release := l.p.decide(&l.p.hooks.reply, c.cmd)
		fail := act.fails()
		if fail != "" {
			act = Pass
		}
		if c.fail != "" {
			fail = c.fail
		}
		if fail != "" && reply {
			f.raw = []byte("-" + fail + "\r\n")
		}
		l.put(out, parcel{raw: f.raw, act: act, release: release, alone: !reply})
	}
}

// put sends a parcel, to arrive after the current delay.
func (l *link) put(out *parcels, p parcel) {
	if d := l.p.delay.Load(); d > 0 {
		p.due = time.Now().Add(time.Duration(d))
	}
	out.put(p)
}

// deliver carries out the decisions about parcels in order.
func (l *link) deliver(to net.Conn, in *parcels) {
	w := bufio.NewWriter(to)
	silent := false
	for {
		p, ok := l.next(w, in)
		if !ok {
			return
		}
		if !l.await(w, p) {
			return
		}
		switch {
		case l.p.swallows(l):
		case p.act == Cut:
			_ = w.Flush()
			l.close()
			return
		case p.act == Drop:
			silent = silent || !p.alone
		case silent:
		default:
			_, _ = w.Write(p.raw) // the error shows at Flush
		}
	}
}

// next returns the next parcel. It flushes before it has to wait.
func (l *link) next(w *bufio.Writer, in *parcels) (parcel, bool) {
	for {
		if p, ok := in.take(); ok {
			return p, true
		}
		if !l.flush(w) {
			return parcel{}, false
		}
		select {
		case <-in.news:
		case <-l.done:
			return parcel{}, false
		}
	}
}

// await reports whether the parcel's time came before the link closed.
func (l *link) await(w *bufio.Writer, p parcel) bool {
	if d := time.Until(p.due); !p.due.IsZero() && d > 0 {
		if !l.flush(w) {
			return false
		}
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
		case <-l.done:
			return false
		}
	}
	if p.release == nil {
		return true
	}
	if !l.flush(w) {
		return false
	}
	l.p.held.Add(1)
	defer l.p.held.Add(-1)
	select {
	case <-p.release:
		return true
	case <-l.done:
		return false
	}
}

// flush closes the link if the receiver is gone.
func (l *link) flush(w *bufio.Writer) bool {
	if w.Flush() != nil {
		l.close()
		return false
	}
	return true
}
