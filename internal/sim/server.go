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
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	redis "github.com/alicebob/miniredis/v2/server"
	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/lua"
)

var errRefused = syscall.ECONNREFUSED

// server is a Redis in memory. Its clock is the bubble's.
type server struct {
	number  int
	redis   *miniredis.Miniredis
	scripts *scripts

	renewing func(owners []string, again bool) // is told of those that are about to be renewed, maybe by a call that came before; may be nil

	wrong func(cmd string, args []string) bool // has a command answered with 0 instead of run; may be nil

	mu      sync.Mutex // guards the following
	refusal string     // what is said to every script; empty: they run
	calls   int        // of scripts, with those that were refused
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
	case cmd == "WAIT" && len(args) == 2: // as many replicas as it asks for
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

// tick sets the clock of the server, which has milliseconds, and is called before each look at its keys.
func (s *server) tick() { s.redis.SetTime(time.Now().Truncate(time.Millisecond)) }

// fields are those of a hash.
func (s *server) fields(key string) []string {
	s.tick()
	fields, _ := s.redis.HKeys(key) // none
	return fields
}

func (s *server) exists(key string) bool {
	s.tick()
	return s.redis.Exists(key)
}

// called counts a call of a script, and returns what is said in place of running it; empty: it runs.
func (s *server) called() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	return s.refusal
}

// answer has every script answered with an error; empty: they run again.
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

// has reports whether a field of the hash belongs to the owner, on whichever side of a read/write lock.
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
func client(w *way) (rueidis.Client, error) {
	c, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{address{}.String()},
		DialCtxFn: func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) {
			return w.dial()
		},
		// The server does not have client-side caching, nor commands on a connection that is subscribed.
		DisableCache: true, AlwaysRESP2: true, ForceSingleClient: true,
		ReadBufferEachConn: 1 << 10, WriteBufferEachConn: 1 << 10, RingScaleEachConn: 6,
	})
	if err != nil {
		return nil, fmt.Errorf("sim: %w", err)
	}
	return c, nil
}
