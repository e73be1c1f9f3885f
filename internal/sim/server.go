package sim

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	redis "github.com/alicebob/miniredis/v2/server"
	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/memnet"
	"github.com/go-rlock/rlock/lua"
)

// server is a Redis in memory. Its clock is the bubble's.
type server struct {
	number  int
	redis   *miniredis.Miniredis
	scripts *scripts

	renewing func(owners []string, again bool) // gets the owners about to be renewed, maybe by an earlier call; may be nil

	wrong func(cmd string, args []string) bool // makes a command answer 0 instead of running; may be nil

	mu      sync.Mutex // guards the fields below
	refusal string     // the answer to every script; empty: they run
	calls   int        // of scripts, including refused ones
}

func newServer(number int) (*server, error) {
	s := &server{number: number, redis: miniredis.NewMiniRedis()}
	s.redis.ClockTTL(true)
	conn, err := s.redis.Dial() // starts it, without a socket
	if err != nil {
		return nil, fmt.Errorf("sim: %w", err)
	}
	s.scripts = newScripts(s.redis)
	s.redis.Server().SetPreHook(s.hook)
	begun := make(chan struct{})
	go func() { // ends with the answer, or the pipe
		defer close(begun)
		_, _ = conn.Read(make([]byte, 64))
	}()
	text := "return redis.call('" + nested + "')"
	_, err = fmt.Fprintf(conn, "*3\r\n$4\r\nEVAL\r\n$%d\r\n%s\r\n$1\r\n0\r\n", len(text), text)
	<-begun
	return s, errors.Join(err, conn.Close())
}

func (s *server) serve(conn net.Conn) { s.redis.Server().ServeConn(conn) }

// hook answers a command in place of the server.
func (s *server) hook(c *redis.Peer, cmd string, args ...string) bool {
	switch {
	case s.wrong != nil && s.wrong(cmd, args):
		c.WriteInt(0)
		return true
	case cmd == nested:
		s.scripts.peer.Ctx = c.Ctx
		c.WriteOK()
		return true
	case cmd == "WAIT" && len(args) == 2: // the number of replicas requested
		n, err := strconv.Atoi(args[0])
		if err == nil {
			c.WriteInt(n)
		}
		return err == nil
	case !strings.HasPrefix(cmd, "EVAL") || s.scripts.peer.Ctx == nil:
		return false
	}
	if refusal := s.called(); refusal != "" {
		c.WriteError(refusal)
		return true
	}
	s.tick()
	if text := s.scripts.run(c, cmd, args); s.renewing != nil && (text == renew || text == readRenew || text == permitsRenew) {
		s.renewing(args, cmd == "EVAL")
	}
	return true
}

// The scripts that renew.
var renew, readRenew, permitsRenew = lua.Text("renew"), lua.Text("read_renew"), lua.Text("permits_renew")

// tick sets the clock of the server, which has milliseconds. It is called before each look at its keys.
func (s *server) tick() { s.redis.SetTime(time.Now().Truncate(time.Millisecond)) }

// fields returns the fields of a hash.
func (s *server) fields(key string) []string {
	s.tick()
	fields, _ := s.redis.HKeys(key) // none
	return fields
}

func (s *server) exists(key string) bool {
	s.tick()
	return s.redis.Exists(key)
}

// called counts a call of a script, and returns the error to answer with; empty: the script runs.
func (s *server) called() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	return s.refusal
}

// answer makes every script answer with an error; empty: they run again.
func (s *server) answer(refusal string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refusal = refusal
}

func (s *server) ran() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

// has reports whether a field of the hash belongs to the owner, on either side of a read/write lock.
func (s *server) has(key, owner string) bool {
	s.tick()
	return s.redis.HGet(key, owner) != "" || s.redis.HGet(key, owner+":write") != ""
}

// forget is a start without data.
func (s *server) forget() {
	s.redis.FlushAll()
	s.scripts.forget()
}

// client returns a client of the server, by the way.
func client(w *memnet.Way) (rueidis.Client, error) {
	c, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{"sim"},
		DialCtxFn: func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) {
			return w.Dial()
		},
		// The server has no client-side caching, and no commands on a subscribed connection.
		DisableCache: true, AlwaysRESP2: true, ForceSingleClient: true,
		ReadBufferEachConn: 1 << 10, WriteBufferEachConn: 1 << 10, RingScaleEachConn: 6,
	})
	if err != nil {
		return nil, fmt.Errorf("sim: %w", err)
	}
	return c, nil
}
