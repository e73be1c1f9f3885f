package rlock

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/calls"
)

// redialer leaves a former master. Behind one address (a DNS name, a Kubernetes Service, a load balancer) connections outlive an orderly
// failover: the server is a replica then, and answers READONLY for ever, while a new connection would lead to the new master. So when a
// connection reads that answer, all connections to its address are closed, those with subscriptions included, and rueidis dials anew.
type redialer struct {
	dial func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error)

	mu  sync.Mutex // guards the following; no other lock is taken under it
	via map[string]*connections
}

// connections are those to one address.
type connections struct {
	open map[*watchedConn]struct{}
	left time.Time // when they were closed last
}

// leaveEvery bounds how often they are closed: the address may lead to a replica for a while, or for good.
const leaveEvery = time.Second

// watch has a redialer make the connections of a rueidis client.
func watch(o rueidis.ClientOption) rueidis.ClientOption {
	r := &redialer{dial: o.DialCtxFn, via: make(map[string]*connections)}
	switch old := o.DialFn; {
	case r.dial != nil:
	case old != nil:
		r.dial = func(_ context.Context, to string, d *net.Dialer, c *tls.Config) (net.Conn, error) {
			return old(to, d, c)
		}
	default:
		r.dial = calls.Dial
	}
	noNoDelay := o.DisableTCPNoDelay // rueidis does not find the TCP connection in ours
	o.DialCtxFn = func(ctx context.Context, to string, d *net.Dialer, c *tls.Config) (net.Conn, error) {
		conn, err := r.dial(ctx, to, d, c)
		if err != nil {
			return nil, err
		}
		if tcp, ok := conn.(*net.TCPConn); ok && noNoDelay {
			_ = tcp.SetNoDelay(false)
		}
		return r.add(conn, to), nil
	}
	return o
}

func (r *redialer) add(conn net.Conn, to string) *watchedConn {
	w := &watchedConn{Conn: conn, to: to, of: r}
	r.mu.Lock()
	defer r.mu.Unlock()
	via := r.via[to]
	if via == nil {
		via = &connections{open: make(map[*watchedConn]struct{})}
		r.via[to] = via
	}
	via.open[w] = struct{}{}
	return w
}

// leave closes the connections to the address of w, which has read READONLY. A late answer on one that was closed says nothing of its
// successors.
func (r *redialer) leave(w *watchedConn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	via, now := r.via[w.to], time.Now()
	if _, open := via.open[w]; !open || now.Sub(via.left) < leaveEvery {
		return
	}
	old := via.open
	via.open, via.left = make(map[*watchedConn]struct{}), now
	go func() { // ends when they are closed, which with TLS takes up to five seconds each
		for w := range old {
			_ = w.Conn.Close()
		}
	}()
}

// watchedConn is a connection that looks for READONLY in what it reads, and for the reason why a server hangs up.
type watchedConn struct {
	net.Conn
	to string
	of *redialer

	answered bool   // something was read; there is one reader at a time
	refusal  string // all that was read, if it is an error, as of a server at maxclients; rueidis would report the end alone
}

// Read returns the answer, too: whoever asked learns of it.
func (w *watchedConn) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	if saysReadOnly(b[:n]) {
		w.of.leave(w)
	}
	switch {
	case n > 0:
		w.refusal = ""
		if !w.answered {
			w.refusal = onlyError(b[:n])
		}
		w.answered = true
	case err != nil && w.refusal != "":
		err = fmt.Errorf("%s: %w", w.refusal, err)
	}
	return n, err
}

// onlyError returns the first sentence of an error reply that has nothing behind it, or "".
func onlyError(b []byte) string {
	line, rest, whole := bytes.Cut(b, []byte("\r\n"))
	said, isError := bytes.CutPrefix(line, []byte("-"))
	if !whole || !isError || len(rest) > 0 {
		return ""
	}
	said, _, _ = bytes.Cut(said, []byte(". "))
	return string(said)
}

// Close is rueidis's.
func (w *watchedConn) Close() error {
	w.of.mu.Lock()
	delete(w.of.via[w.to].open, w)
	w.of.mu.Unlock()
	return w.Conn.Close()
}

var readOnly = []byte("-READONLY ")

// saysReadOnly reports whether an error reply has that code; before Redis 7 it is within the error of a script. A reply that two reads
// divide is not seen, which costs one more answer. Data may look like such a reply, and costs a new connection.
func saysReadOnly(b []byte) bool {
	for at := 0; ; {
		i := bytes.Index(b[at:], readOnly)
		if i < 0 {
			return false
		}
		at += i
		if b[bytes.LastIndexByte(b[:at], '\n')+1] == '-' {
			return true
		}
		at++
	}
}
