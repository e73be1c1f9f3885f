// Package memory is a Redis in memory: miniredis, with a faster way to run scripts, and with expiry as exact as Redis's.
package memory

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"

	"github.com/go-rlock/rlock/internal/testing/memredis"
)

// Server is a Redis on the clock of package time: in a testing/synctest bubble, the bubble's. Methods of Miniredis see the keys as they
// were at the last command: call Now before.
type Server struct {
	*miniredis.Miniredis // its lock guards the fields below

	options memredis.Options
	frozen  atomic.Bool

	scripts map[string]*script // by the sum
	peer    *server.Peer       // that the commands of a script come from
	writer  *bufio.Writer      // to reply
	reply   bytes.Buffer
	reader  *bufio.Reader // from reply

	mu    sync.Mutex            // guards the following; a leaf
	calls map[string]int        // of each command, by its name in capitals
	multi map[*server.Peer]bool // those that are in a transaction
}

// New starts a server, without a socket.
func New(o memredis.Options) (*Server, error) {
	s := &Server{
		Miniredis: miniredis.NewMiniRedis(), options: o, scripts: make(map[string]*script),
		calls: make(map[string]int), multi: make(map[*server.Peer]bool),
	}
	s.ClockTTL(true)
	conn, err := s.Dial() // starts it
	if err != nil {
		return nil, fmt.Errorf("rlocktest: %w", err)
	}
	s.writer, s.reader = bufio.NewWriter(&s.reply), bufio.NewReader(&s.reply)
	s.peer = server.NewPeer(s.writer)
	s.peer.Ctx = nested()
	s.Server().SetPreHook(s.hook)
	return s, conn.Close()
}

// ServeConn serves a connection until its end.
func (s *Server) ServeConn(conn net.Conn) { s.Server().ServeConn(conn) }

// Now sets the clock of the server to the present time, in milliseconds as Redis counts them, and returns it.
func (s *Server) Now() *Server {
	if !s.frozen.Load() {
		s.SetTime(time.Now().Truncate(time.Millisecond))
	}
	return s
}

// Freeze stops the clock: keys don't expire any more.
func (s *Server) Freeze() {
	s.Now()
	s.frozen.Store(true)
}

// Atomic calls f while no client's command runs. Its parameter runs commands.
func (s *Server) Atomic(f func(do memredis.Do)) {
	s.Now()
	s.Lock()
	defer s.Unlock()
	f(s.do)
}

// Forget is SCRIPT FLUSH.
func (s *Server) Forget() {
	s.Lock()
	defer s.Unlock()
	clear(s.scripts)
}

// do is a memredis.Do; the lock is held.
func (s *Server) do(args ...string) any {
	v, err := s.exact(s.dispatch, args)
	if err != nil {
		return err
	}
	return v
}

// dispatch runs a command of miniredis; the lock is held.
func (s *Server) dispatch(args []string) (any, error) {
	s.Server().Dispatch(s.peer, args)
	_ = s.writer.Flush() // to memory
	v, err := server.ParseReply(s.reader)
	s.reply.Reset()
	s.reader.Reset(&s.reply)
	return v, err
}

// nested returns the context of a peer that runs commands for a script: such a one has the lock of the server, and does not take it again.
func nested() any {
	like := reflect.ValueOf(nestedLike()).Elem()
	own := reflect.New(like.Type())
	own.Elem().Set(like)
	return own.Interface()
}

// isNested reports whether a peer has such a context. Apart from that of a Server, it is one of a script in a transaction.
func isNested(c *server.Peer) bool {
	return c.Ctx != nil && reflect.ValueOf(c.Ctx).Elem().FieldByName("nested").Bool()
}

// nestedLike gets such a context from a script of miniredis.
var nestedLike = sync.OnceValue(func() (ctx any) {
	r := miniredis.NewMiniRedis()
	conn, err := r.Dial() // starts it
	if err != nil {
		panic(err)
	}
	_ = conn.Close()
	defer r.Close()
	r.Server().SetPreHook(func(c *server.Peer, cmd string, _ ...string) bool {
		if cmd == "PING" {
			ctx = c.Ctx
		}
		return false
	})
	r.Server().Dispatch(server.NewPeer(bufio.NewWriter(new(bytes.Buffer))), []string{"EVAL", "return redis.call('PING')", "0"})
	return ctx
})

// again is the ClientName of a peer whose commands have passed the hook already.
const again = "rlocktest: again"

// hook answers a command in place of miniredis.
func (s *Server) hook(c *server.Peer, cmd string, args ...string) (done bool) {
	if c.ClientName == again {
		return false
	}
	s.count(cmd, args)
	if s.options.Answer != nil {
		switch reply, done := s.options.Answer(cmd, args); reply := reply.(type) {
		case int:
			c.WriteInt(reply)
			return done
		case error:
			c.WriteError(reply.Error())
			return done
		}
	}
	if c == s.peer || isNested(c) {
		return false
	}
	s.Now()
	switch cmd {
	case "EVAL", "EVALSHA", "EVAL_RO", "EVALSHA_RO":
		return s.eval(c, cmd, args)
	case "SCRIPT":
		return s.script(c, args)
	case "MULTI", "EXEC", "DISCARD":
		s.mu.Lock()
		s.multi[c] = cmd == "MULTI"
		s.mu.Unlock()
	case "WAIT": // the number of replicas requested
		if len(args) != 2 {
			return false
		}
		n, err := strconv.Atoi(args[0])
		if err != nil {
			return false
		}
		c.WriteInt(n)
		return true
	case "INFO":
		if len(args) == 1 && strings.EqualFold(args[0], "commandstats") {
			c.WriteBulk(s.stats())
			return true
		}
	default:
		if !s.options.DropEarly && expiry[cmd] {
			s.pass(c, append([]string{cmd}, args...))
			return true
		}
	}
	return false
}

// pass runs a command of a client that has to do with expiry.
func (s *Server) pass(c *server.Peer, args []string) {
	v, err := s.exact(func(args []string) (any, error) {
		var reply bytes.Buffer
		w := bufio.NewWriter(&reply)
		p := server.NewPeer(w)
		p.Ctx, p.ClientName = c.Ctx, again
		s.Server().Dispatch(p, args)
		c.Ctx = p.Ctx
		_ = w.Flush() // to memory
		return server.ParseReply(bufio.NewReader(&reply))
	}, args)
	switch v := v.(type) {
	case int:
		c.WriteInt(v)
	case string:
		c.WriteBulk(v)
	case server.Simple:
		c.WriteInline(string(v))
	case nil:
		if err != nil {
			c.WriteError(err.Error())
		} else {
			c.WriteNull()
		}
	}
}

func (s *Server) count(cmd string, args []string) {
	switch cmd {
	case "CLIENT", "PUBSUB", "SCRIPT", "CONFIG", "OBJECT":
		if len(args) > 0 {
			cmd += "|" + args[0]
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls[cmd]++
}

// stats is INFO commandstats.
func (s *Server) stats() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	calls := make(map[string]int)
	for name, n := range s.calls {
		calls[strings.ToLower(name)] += n
	}
	var all strings.Builder
	all.WriteString("# Commandstats\r\n")
	for name, n := range calls {
		fmt.Fprintf(&all, "cmdstat_%s:calls=%d,usec=0\r\n", name, n)
	}
	return all.String()
}
