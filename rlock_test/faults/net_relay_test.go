package faults

import (
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// netRelay carries bytes between clients and a server. It can cut a connection after a given byte, in the
// middle of a request or a reply.
type netRelay struct {
	target string
	ln     net.Listener
	wg     sync.WaitGroup

	mu     sync.Mutex // guards the following
	conns  map[net.Conn]net.Conn
	closed bool
	armed  bool
	upward bool     // cut a request; else a reply
	left   int      // bytes to pass before the cut
	word   string   // armed by the first request containing this word
	only   net.Conn // armed only for this client's connection
}

func newNetRelay(t *testing.T, target string) *netRelay {
	t.Helper()
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	r := &netRelay{target: target, ln: ln, conns: make(map[net.Conn]net.Conn)}
	r.wg.Go(r.accept) // ended by closing the listener
	t.Cleanup(r.close)
	return r
}

// arm lets n more bytes pass in one direction, then cuts the connection carrying the next one.
func (r *netRelay) arm(upward bool, n int) { r.armAt("", upward, n) }

// armAt is arm for the connection of the next request containing word, counting from that request.
func (r *netRelay) armAt(word string, upward bool, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.armed, r.upward, r.left, r.word, r.only = true, upward, n, word, nil
}

// struck reports whether the connection was cut.
func (r *netRelay) struck() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.armed
}

// disarm reports whether a connection was cut.
func (r *netRelay) disarm() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	cut := !r.armed
	r.armed = false
	return cut
}

func (r *netRelay) close() {
	_ = r.ln.Close()
	r.mu.Lock()
	r.closed = true
	for a, b := range r.conns {
		_, _ = a.Close(), b.Close()
	}
	r.mu.Unlock()
	r.wg.Wait()
}

func (r *netRelay) accept() {
	for {
		client, err := r.ln.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp4", r.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		r.mu.Lock()
		if r.closed {
			_, _ = client.Close(), server.Close()
		} else {
			r.conns[client] = server
			// Both end when either connection does.
			r.wg.Go(func() { r.carry(client, client, server, true) })
			r.wg.Go(func() { r.carry(client, server, client, false) })
		}
		r.mu.Unlock()
	}
}

func (r *netRelay) carry(client, from, to net.Conn, upward bool) {
	defer func() { _, _ = from.Close(), to.Close() }()
	for buf := make([]byte, 4096); ; {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		pass, cut := r.decide(client, buf[:n], upward)
		if _, err := to.Write(buf[:pass]); err != nil || cut {
			return
		}
	}
}

// decide returns how many bytes pass, and whether to cut the connection after them.
func (r *netRelay) decide(client net.Conn, bytes []byte, upward bool) (pass int, cut bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.armed && r.word != "" && upward && strings.Contains(string(bytes), r.word) {
		r.word, r.only = "", client
	}
	n := len(bytes)
	switch {
	case !r.armed || r.upward != upward || r.word != "" || r.only != nil && r.only != client:
		return n, false
	case n <= r.left:
		r.left -= n
		return n, false
	}
	r.armed = false
	return r.left, true
}
