package redistest

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
)

// Proxy is the network between clients and one server, with faults on demand.
// It understands RESP2 and RESP3, so that a fault can strike one command.
// All methods may be called from any goroutine.
//
// Lock order: hooks before mu. Neither is held while a connection is read or written.
type Proxy struct {
	tb     testing.TB
	addr   string
	guard  io.Closer // of the port in addr, also while that is closed
	target string
	world  *world
	wg     sync.WaitGroup // the accept loop and the links; close waits for them

	hooks struct {
		sync.Mutex     // guards the fields below, and is held while they run
		request, reply []Hook
	}

	mu        sync.Mutex // guards the fields below
	ln        net.Listener
	links     map[*link]struct{}
	release   chan struct{} // closed by Release
	blackHole bool
	closed    bool

	delay atomic.Int64 // nanoseconds each way
	held  atomic.Int64
}

// StartProxy listens on a new port and connects its clients to the server at target. The test's clean-up closes everything and waits for
// the goroutines.
func StartProxy(tb testing.TB, target string) *Proxy {
	tb.Helper()
	p := &Proxy{tb: tb, target: target, world: worldOf(tb), links: make(map[*link]struct{}), release: make(chan struct{})}
	if p.world != nil {
		p.addr = p.world.NewAddress()
		p.ln, p.guard = p.world.Listen(p.addr), io.NopCloser(nil)
	} else {
		p.takePort()
	}
	p.wg.Add(1)
	go p.accept(p.ln) // ended by closing the listener
	tb.Cleanup(p.close)
	return p
}

// takePort listens on a new port of the machine.
func (p *Proxy) takePort() {
	p.tb.Helper()
	for try := 0; ; try++ {
		port, guard := takePort()
		ln, err := net.Listen("tcp4", hostPort(port))
		if err == nil {
			p.ln, p.addr, p.guard = ln, ln.Addr().String(), guard
			return
		}
		_ = guard.Close()
		if try == 5 {
			p.tb.Fatal(err)
		}
	}
}

// Via routes a client's connections to the proxies' targets through the proxies. Unlike a proxy's address, it also works for nodes that the
// client discovers, as with a cluster or sentinels.
func Via(proxies ...*Proxy) func(*rueidis.ClientOption) {
	return func(opt *rueidis.ClientOption) {
		opt.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
			for _, p := range proxies {
				if p.target == addr {
					addr = p.addr
				}
			}
			if w := proxies[0].world; w != nil {
				return w.Dial(addr)
			}
			return d.DialContext(ctx, "tcp", addr)
		}
	}
}

// Addr returns the address for clients; it never changes.
func (p *Proxy) Addr() string { return p.addr }

// OnRequest adds a hook for commands on their way to the server. All hooks see every command; the first result other than Pass counts.
func (p *Proxy) OnRequest(h Hook) {
	p.hooks.Lock()
	defer p.hooks.Unlock()
	p.hooks.request = append(p.hooks.request, h)
}

// OnReply adds a hook for frames from the server; see OnRequest.
func (p *Proxy) OnReply(h Hook) {
	p.hooks.Lock()
	defer p.hooks.Unlock()
	p.hooks.reply = append(p.hooks.reply, h)
}

// Release lets all frames currently on hold continue.
func (p *Proxy) Release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.release)
	p.release = make(chan struct{})
}

// Held returns the number of connection directions currently on hold.
func (p *Proxy) Held() int { return int(p.held.Load()) }

// Delay makes each later frame take d longer in each direction, so a round trip takes 2d longer. Frames travel in parallel, so pipelining
// keeps its benefit.
func (p *Proxy) Delay(d time.Duration) { p.delay.Store(int64(d)) }

// BlackHole loses everything sent in both directions, while connections stay open and new ones are accepted. Turning it off cuts
// connections that lost something, because their stream has a hole; see Drop.
func (p *Proxy) BlackHole(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.blackHole = on
	for l := range p.links {
		if !on && l.lost {
			l.close()
		}
	}
}

// CutAll closes all connections. New ones are still accepted.
func (p *Proxy) CutAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.close()
	}
}

// Refuse closes the port for new connections, or reopens it.
func (p *Proxy) Refuse(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if on && p.ln != nil {
		_ = p.ln.Close()
		p.ln = nil
		p.awaitClosed()
	}
	if !on && p.ln == nil && !p.closed {
		ln, err := p.world.listen(p.addr)
		if err != nil {
			p.tb.Errorf("redistest: proxy can't listen again: %v", err)
			return
		}
		p.ln = ln
		p.wg.Add(1)
		go p.accept(ln) // ended by closing the listener
	}
}

// awaitClosed waits until connections are refused: a process that is just being started has a copy of each socket until it runs its program.
func (p *Proxy) awaitClosed() {
	for deadline := time.Now().Add(startTimeout); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		conn, err := p.world.dial(p.addr)
		if err != nil {
			return
		}
		_ = conn.Close()
	}
}

// Conns returns the number of open client connections.
func (p *Proxy) Conns() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.links)
}

func (p *Proxy) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.Refuse(true)
	p.CutAll()
	p.wg.Wait()
	_ = p.guard.Close()
}

// accept runs until ln is closed.
func (p *Proxy) accept(ln net.Listener) {
	defer p.wg.Done()
	for {
		client, err := ln.Accept()
		if err != nil {
			return
		}
		if l := p.add(ln, client); l != nil {
			p.wg.Go(func() { // ended by l.close
				defer p.remove(l)
				l.run()
			})
		}
	}
}

// add returns nil if the port was closed meanwhile: CutAll may have been called, too.
func (p *Proxy) add(ln net.Listener, client net.Conn) *link {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.ln != ln {
		_ = client.Close()
		return nil
	}
	l := &link{p: p, client: client, lost: p.blackHole, done: make(chan struct{})}
	p.links[l] = struct{}{}
	return l
}

func (p *Proxy) remove(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.links, l)
}

// swallows reports whether l's traffic is lost, and records the loss.
func (p *Proxy) swallows(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	l.lost = l.lost || p.blackHole
	return p.blackHole
}

// decide asks the hooks about cmd. For Hold it also returns the channel whose closing ends the hold.
func (p *Proxy) decide(hooks *[]Hook, cmd []string) (Action, <-chan struct{}) {
	p.hooks.Lock()
	defer p.hooks.Unlock()
	act := Pass
	for _, h := range *hooks {
		if a := h(cmd); act == Pass {
			act = a
		}
	}
	if act != Hold {
		return act, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return act, p.release
}
