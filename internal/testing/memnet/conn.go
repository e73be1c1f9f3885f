package memnet

import (
	"bytes"
	"io"
	"net"
	"os"
	"time"
)

// end is a net.Conn.
type end struct {
	*Link
	in, out *stream
	client  bool
	shut    bool // by its owner
}

func (e *end) Close() error {
	e.way.mu.Lock()
	defer e.way.mu.Unlock()
	e.in.stop()
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
		e.out.send(e.Link, nil)
	}
	if e.out.closed {
		e.over = true
		delete(e.way.links, e.Link)
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
	if !e.client && w.loses(e.Link) {
		w.watch(e.Link, e.client, b, true)
		e.cut()
		return len(b), nil
	}
	w.watch(e.Link, e.client, b, w.silent)
	if w.silent {
		e.lost = true
	} else if len(b) > 0 {
		e.out.send(e.Link, b)
	}
	return len(b), nil
}

func (e *end) Read(b []byte) (int, error) {
	e.way.mu.Lock()
	defer e.way.mu.Unlock()
	for e.in.arrived.Len() == 0 {
		switch {
		case e.over || e.in.closed:
			return 0, io.EOF
		case !e.in.deadline.IsZero() && !time.Now().Before(e.in.deadline):
			return 0, os.ErrDeadlineExceeded
		}
		e.in.news.Wait()
	}
	return e.in.arrived.Read(b) //nolint:wrapcheck // it never fails
}

func (e *end) SetReadDeadline(t time.Time) error {
	e.way.mu.Lock()
	defer e.way.mu.Unlock()
	e.in.stop()
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

// stop stops the reader's deadline timer; Way.mu is held.
func (s *stream) stop() {
	if s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
}

type address struct{}

func (address) Network() string { return "memory" }
func (address) String() string  { return "memory" }
