package redistest

import (
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/go-rlock/rlock/internal/testing/memnet"
	"github.com/go-rlock/rlock/internal/testing/memredis"
)

// memory is a server in the virtual world.
type memory struct {
	addr string
	way  *memnet.Way // to it, for everybody

	mu    sync.Mutex // guards the following
	redis memredis.Redis
}

var errNoMemory = errors.New(`redistest: the virtual world needs a Redis in memory: import _ "github.com/go-rlock/rlock/rlocktest"`)

// newMemory starts a server with an address.
func newMemory(w *world) (*memory, error) {
	if memredis.Start == nil {
		return nil, errNoMemory
	}
	m := &memory{addr: w.NewAddress()}
	m.way = memnet.New(memnet.Options{Serve: func(conn net.Conn) { m.redis.ServeConn(conn) }}) // while it is up
	w.Serve(m.addr, m.way.Dial)
	if err := m.start(); err != nil {
		return nil, err
	}
	return m, nil
}

func (m *memory) start() error {
	redis, err := memredis.Start(memredis.Options{})
	if err != nil {
		return fmt.Errorf("redistest: %w", err)
	}
	m.mu.Lock()
	m.redis = redis
	m.mu.Unlock()
	m.way.Refuse(false)
	return nil
}

// stop ends the server, if it is up.
func (m *memory) stop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.redis == nil {
		return
	}
	m.way.Refuse(true)
	m.way.Free()
	m.way.Cut(nil)
	m.redis.Close()
	m.redis = nil
}

// pid is 0 while it is down.
func (m *memory) pid() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.redis == nil {
		return 0
	}
	return 1
}
