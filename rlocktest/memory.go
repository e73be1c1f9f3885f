package rlocktest

import (
	"fmt"
	"net"
	"strings"
	"sync"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"

	"github.com/go-rlock/rlock/internal/memredis"
)

func init() { memredis.Start = startMemory } //nolint:gochecknoinits // as a driver of database/sql

// memory is the server of rlock's own tests in virtual time.
type memory struct {
	redis *miniredis.Miniredis

	mu    sync.Mutex     // guards the following
	calls map[string]int // of each command, as INFO commandstats names them
}

func (m *memory) ServeConn(conn net.Conn) { m.redis.Server().ServeConn(conn) }

func (m *memory) Close() { m.redis.Close() }

func startMemory() (memredis.Redis, error) {
	s, err := newServer()
	if err != nil {
		return nil, err
	}
	m := &memory{redis: s, calls: make(map[string]int)}
	s.Server().SetPreHook(m.hook)
	return m, nil
}

// hook counts commands, and answers those that miniredis does not know.
func (m *memory) hook(c *server.Peer, cmd string, args ...string) (done bool) {
	m.count(cmd, args)
	if cmd == "INFO" && len(args) == 1 && strings.EqualFold(args[0], "commandstats") {
		c.WriteBulk(m.stats())
		return true
	}
	return replicate(c, cmd, args...)
}

func (m *memory) count(cmd string, args []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	name := strings.ToLower(cmd)
	switch cmd {
	case "CLIENT", "PUBSUB", "SCRIPT", "CONFIG", "OBJECT":
		if len(args) > 0 {
			name += "|" + strings.ToLower(args[0])
		}
	}
	m.calls[name]++
}

func (m *memory) stats() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all strings.Builder
	all.WriteString("# Commandstats\r\n")
	for name, n := range m.calls {
		fmt.Fprintf(&all, "cmdstat_%s:calls=%d,usec=0\r\n", name, n)
	}
	return all.String()
}
