package redistest

import (
	"net"
	"strconv"
	"strings"
	"testing"
)

// GuardOf returns the guard address that takePort listens on for the port of a server or proxy.
func GuardOf(addr string) string {
	_, port, _ := net.SplitHostPort(addr)
	n, _ := strconv.Atoi(port)
	return hostPort(n + 2)
}

// Swallowed reports whether a black hole lost data from conn.
func (p *Proxy) Swallowed(conn net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		if l.client.RemoteAddr().String() == conn.LocalAddr().String() {
			return l.lost
		}
	}
	return false
}

// ProxyGoroutines counts the proxies' own goroutines, which Goroutines leaves out.
func ProxyGoroutines() int {
	n := 0
	for _, g := range look() {
		if strings.Contains(g.stack, "redistest.(*link).") || strings.Contains(g.stack, "redistest.(*Proxy).accept") {
			n += g.count
		}
	}
	return n
}

// InBothWorlds makes tb the test of a bubble that also runs on real servers.
func InBothWorlds(tb testing.TB) {
	worlds.Store(tb, &world{alsoReal: true})
	tb.Cleanup(func() { worlds.Delete(tb) })
}
