package memnet

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
)

// Net gives servers in memory addresses.
type Net struct {
	mu    sync.Mutex // guards the following
	ports int        // so far
	at    map[string]func() (net.Conn, error)
}

// NewAddress returns an address of its own, at which nobody listens yet.
func (n *Net) NewAddress() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ports++
	return fmt.Sprintf("127.0.0.1:%d", n.ports)
}

// Serve makes dial connect to an address; nil: nobody listens there any more.
func (n *Net) Serve(address string, dial func() (net.Conn, error)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.at == nil {
		n.at = make(map[string]func() (net.Conn, error))
	}
	n.at[address] = dial
}

// Dial connects to an address.
func (n *Net) Dial(to string) (net.Conn, error) {
	n.mu.Lock()
	dial := n.at[to]
	n.mu.Unlock()
	if dial == nil {
		return nil, refused(to)
	}
	conn, err := dial()
	if errors.Is(err, syscall.ECONNREFUSED) {
		err = refused(to)
	}
	return conn, err
}

// refused is the error of a socket: what users read of an outage is the same.
func refused(to string) error {
	return &net.OpError{Op: "dial", Net: "tcp", Addr: named(to), Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
}

// Listen listens at an address until the Listener is closed.
func (n *Net) Listen(at string) net.Listener {
	l := &listener{net: n, at: at, conns: make(chan net.Conn), closed: make(chan struct{})}
	way := New(Options{Serve: func(conn net.Conn) {
		go func() { // ends with Accept, or Close
			select {
			case l.conns <- conn:
			case <-l.closed:
				_ = conn.Close()
			}
		}()
	}})
	n.Serve(at, way.Dial)
	return l
}

// listener is a net.Listener.
type listener struct {
	net    *Net
	at     string
	conns  chan net.Conn
	once   sync.Once
	closed chan struct{}
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error {
	l.once.Do(func() {
		close(l.closed)
		l.net.Serve(l.at, nil)
	})
	return nil
}

func (l *listener) Addr() net.Addr { return named(l.at) }

type named string

func (named) Network() string  { return address{}.Network() }
func (n named) String() string { return string(n) }
