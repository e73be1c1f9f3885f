package sim

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strings"
	"sync"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/testing/memnet"
	"github.com/go-rlock/rlock/internal/testing/memredis"
	"github.com/go-rlock/rlock/lua"
	_ "github.com/go-rlock/rlock/rlocktest" // has the Redis in memory
)

// server is a Redis in memory. Its clock is the bubble's.
type server struct {
	number int
	redis  memredis.Redis

	// The following may be nil, and are set before the server is used.
	renewing func(owners []string, again bool)              // gets the owners about to be renewed, maybe by an earlier call
	wrong    func(cmd string, args []string) bool           // makes a command answer 0 instead of running
	change   func(text string) string                       // of each script
	saw      func(keys []string, by string, do memredis.Do) // sees each script that ran

	uncounted Uncounted

	mu      sync.Mutex // guards the fields below
	refusal string     // the answer to every script; empty: they run
	calls   int        // of scripts, including refused ones
}

func newServer(number int) (*server, error) { return startServer(number, memredis.Options{}) }

func startServer(number int, o memredis.Options) (*server, error) {
	s := &server{number: number}
	o.Answer = s.answers
	o.Change = func(text string) string {
		if s.change != nil {
			return s.change(text)
		}
		return text
	}
	o.Reply = func(args []string, reply any) any { return s.uncounted.hide(args, reply) }
	o.Saw = s.tell
	o.Ran = func(text, cmd string, args []string) {
		if s.renewing != nil && (text == renew || text == readRenew || text == permitsRenew) {
			s.renewing(args, cmd == "EVAL")
		}
	}
	var err error
	if s.redis, err = memredis.Start(o); err != nil {
		return nil, fmt.Errorf("sim: %w", err)
	}
	return s, nil
}

// answers replies to a command in place of the server.
func (s *server) answers(cmd string, args []string) (reply any, done bool) {
	if s.wrong != nil && s.wrong(cmd, args) {
		return 0, true
	}
	if strings.HasPrefix(cmd, "EVAL") {
		if refusal := s.called(); refusal != "" {
			return refusedError(refusal), true
		}
	}
	return nil, false
}

type refusedError string

func (e refusedError) Error() string { return string(e) }

// The scripts that renew.
var renew, readRenew, permitsRenew = lua.Text("renew"), lua.Text("read_renew"), lua.Text("permits_renew")

// tell calls saw; nothing else runs on the server.
func (s *server) tell(keys []string, by string, do memredis.Do) {
	if s.saw != nil {
		s.saw(keys, by, do)
	}
}

// look makes saw look at a key that no script has changed.
func (s *server) look(key string) {
	s.redis.Atomic(func(do memredis.Do) { s.tell([]string{key}, "", do) })
}

// do runs a command.
func (s *server) do(args ...string) (reply any) {
	s.redis.Atomic(func(do memredis.Do) { reply = do(args...) })
	return reply
}

// texts runs a command that returns texts; there are none if the key holds something else.
func (s *server) texts(args ...string) []string {
	all, _ := s.do(args...).([]any)
	texts := make([]string, len(all))
	for i := range all {
		texts[i], _ = all[i].(string)
	}
	return texts
}

// keys returns all keys.
func (s *server) keys() []string { return s.texts("keys", "*") }

// channels returns the channels with a subscriber.
func (s *server) channels() []string { return s.texts("pubsub", "channels") }

// fields returns the fields of a hash.
func (s *server) fields(key string) []string { return s.texts("hkeys", key) }

func (s *server) exists(key string) bool { return s.do("exists", key) == 1 }

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
	return s.do("hexists", key, owner) == 1 || s.do("hexists", key, owner+":write") == 1
}

// forget is a start without data.
func (s *server) forget() {
	s.do("flushall")
	s.redis.Forget()
}

// clientOption is that of a client of the server, with a way to dial.
func clientOption(dial func() (net.Conn, error)) rueidis.ClientOption {
	return rueidis.ClientOption{
		InitAddress: []string{"sim"},
		DialCtxFn: func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) {
			return dial()
		},
		// The server has no client-side caching, and no commands on a subscribed connection.
		DisableCache: true, AlwaysRESP2: true, ForceSingleClient: true,
		ReadBufferEachConn: 1 << 10, WriteBufferEachConn: 1 << 10, RingScaleEachConn: 6,
	}
}

// client returns a client of the server, by the way.
func client(w *memnet.Way) (rueidis.Client, error) {
	c, err := rueidis.NewClient(clientOption(w.Dial))
	if err != nil {
		return nil, fmt.Errorf("sim: %w", err)
	}
	return c, nil
}
