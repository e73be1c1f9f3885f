package lua_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
	"github.com/go-rlock/rlock/lua"
)

// parrot is a server that answers every script with the same RESP value.
type parrot struct {
	mu    sync.Mutex // guards reply
	reply string
}

func (p *parrot) say(reply string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reply = reply
}

func (p *parrot) client(tb testing.TB) rueidis.Client {
	tb.Helper()
	c, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{"parrot:1"}, ForceSingleClient: true, DisableCache: true, DisableRetry: true,
		DialCtxFn: func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) {
			here, there := net.Pipe()
			go p.serve(there) // ended by the client, which closes its end
			return here, nil
		},
	})
	require.NoError(tb, err)
	tb.Cleanup(c.Close)
	return c
}

func (p *parrot) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	r := bufio.NewReader(conn)
	for {
		words, err := command(r)
		if err != nil {
			return
		}
		reply := "+OK\r\n"
		switch words[0] {
		case "HELLO":
			reply = "%2\r\n+version\r\n+7.0.0\r\n+proto\r\n:3\r\n"
		case "PING":
			reply = "+PONG\r\n"
		case "EVALSHA", "HGET", "HLEN":
			p.mu.Lock()
			reply = p.reply
			p.mu.Unlock()
		}
		if _, err := io.WriteString(conn, reply); err != nil {
			return
		}
	}
}

// command reads an array of bulk strings.
func command(r *bufio.Reader) ([]string, error) {
	n, err := length(r)
	if err != nil {
		return nil, err
	}
	words := make([]string, n)
	for i := range words {
		size, err := length(r)
		if err != nil {
			return nil, err
		}
		word := make([]byte, size+len("\r\n"))
		if _, err := io.ReadFull(r, word); err != nil {
			return nil, err
		}
		words[i] = string(word[:size])
	}
	return words, nil
}

func length(r *bufio.Reader) (int, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(line[1:]))
}

// outcome is the functions' results for one reply.
type outcome struct {
	acquired           lua.AcquireReply
	released           lua.ReleaseReply
	forced             bool
	renewed            []lua.Renewal
	err, rel, ren, frc error
}

func ask(ctx context.Context, c rueidis.Client) outcome {
	var o outcome
	o.acquired, o.err = lua.Acquire(ctx, c, lua.AcquireArgs{Name: "a", Fence: "f", Owner: me, Lease: lease, Count: 2})
	o.released, o.rel = lua.Release(ctx, c, lua.ReleaseArgs{Name: "a", Owner: me})
	o.renewed, o.ren = lua.Renew(ctx, c, lease, []lua.Hold{{Name: "a", Owner: me}, {Name: "b", Owner: me}})
	o.forced, o.frc = lua.Force(ctx, c, "a", lua.Publish{})
	return o
}

func (o outcome) errors() map[string]error {
	return map[string]error{"acquire": o.err, "release": o.rel, "renew": o.ren, "force": o.frc}
}

// The hold of a first acquire cannot be gone.
func TestFirstAcquireLosesNothing(t *testing.T) {
	t.Parallel()
	p := &parrot{}
	p.say(":-1\r\n")
	got, err := lua.Acquire(t.Context(), p.client(t), lua.AcquireArgs{Name: "a", Owner: me, Lease: lease, Count: 1})
	require.ErrorContains(t, err, "acquire script: unknown reply -1")
	require.Zero(t, got)
}

// unknown are replies that no script makes. Each is an error, but never an error by which a server reports that it did nothing.
var unknown = []string{
	"_\r\n", "$-1\r\n", "*-1\r\n", "#t\r\n", "+OK\r\n", "$1\r\n1\r\n", ",1.0\r\n", "(1\r\n",
	":-2\r\n", ":-9223372036854775808\r\n",
	"*0\r\n", "*1\r\n:-1\r\n", "*2\r\n$1\r\na\r\n:7\r\n", "*2\r\n:7\r\n_\r\n", "*2\r\n:7\r\n#t\r\n", "*2\r\n:7\r\n$1\r\na\r\n",
	"*3\r\n:7\r\n$1\r\na\r\n$1\r\na\r\n", "*3\r\n:7\r\n$1\r\na\r\n:-1\r\n", "*3\r\n:7\r\n$1\r\na\r\n#t\r\n",
	"*4\r\n:7\r\n$1\r\na\r\n:0\r\n:0\r\n", "*1\r\n+1\r\n", "*1\r\n*1\r\n:1\r\n", "*1\r\n_\r\n", "*1\r\n#t\r\n", "*3\r\n:1\r\n:1\r\n:1\r\n",
	"*2\r\n:2\r\n:0\r\n", "*2\r\n:-2\r\n:0\r\n",
	"*2\r\n+1\r\n+1\r\n", "*2\r\n$1\r\n1\r\n$1\r\n0\r\n", "*2\r\n_\r\n_\r\n", "*2\r\n#t\r\n#t\r\n", "*2\r\n#f\r\n#f\r\n",
	"*2\r\n*1\r\n:9\r\n*0\r\n", "*2\r\n:1\r\n_\r\n", "*2\r\n_\r\n:1\r\n", "*2\r\n-ERR no\r\n:1\r\n",
	"*2\r\n,1\r\n,1\r\n", "%1\r\n:1\r\n:1\r\n",
}

func TestUnknownReplies(t *testing.T) {
	t.Parallel()
	p := &parrot{}
	c := p.client(t)
	for _, reply := range unknown {
		p.say(reply)
		got := ask(t.Context(), c)
		require.Zero(t, got.acquired, "%q", reply)
		require.Zero(t, got.released, "%q", reply)
		require.Nil(t, got.renewed, "%q", reply)
		require.False(t, got.forced, "%q", reply)
		for script, err := range got.errors() {
			var said *rueidis.RedisError
			require.ErrorContains(t, err, script+" script: ", "%q", reply)
			require.False(t, errors.As(err, &said), "%q", reply)
		}
	}
}

func TestErrorReplies(t *testing.T) {
	t.Parallel()
	p := &parrot{}
	c := p.client(t)
	for _, reply := range []string{"-LOADING wait\r\n", "-BUSY wait\r\n", "!9\r\nERR\r\nline\r\n"} {
		p.say(reply)
		got := ask(t.Context(), c)
		for script, err := range got.errors() {
			var said *rueidis.RedisError
			require.ErrorAs(t, err, &said, "%q", reply)
			require.ErrorContains(t, err, script+" script: ")
		}
	}
}

// The errors of Redis 6.2, Redis 8 and Valkey 9 for a command that fails inside a script.
func TestSaid(t *testing.T) {
	t.Parallel()
	rdb := redistest.Dial(t, redistest.Shared(t))
	const call = "Error running script (call to f_dfa094601748940e7a4eb38df28cfad457f6c155): "
	for said, want := range map[string]string{
		call + "@user_script:93: @user_script: 93: -READONLY You can't write": "READONLY You can't write",
		call + "@user_script:1: WRONGTYPE Operation against a key":            "WRONGTYPE Operation against a key",
		"@user_script: 12: -OOM command not allowed":                          "OOM command not allowed",
		"UNTOLD @user_script: 1: -NOPERM no":                                  "UNTOLD @user_script: 1: -NOPERM no",
		`FOREIGN the key holds a hash with the field "@user_script:1: x"`:     `FOREIGN the key holds a hash with the field "@user_script:1: x"`,
		"OOM not allowed script: dfa094, on @user_script:1.":                  "OOM not allowed script: dfa094, on @user_script:1.",
		"OOM not allowed script: on @user_script:1.":                          "OOM not allowed script: on @user_script:1.",
		"Error running script":                                                "Error running script",
		"Error running script: @user_script:":                                 "Error running script: @user_script:",
	} {
		err := rdb.Do(t.Context(), rdb.B().Eval().Script("return redis.error_reply(ARGV[1])").Numkeys(0).Arg(said).Build()).Error()
		var redisErr *rueidis.RedisError
		require.ErrorAs(t, err, &redisErr)
		require.Equal(t, want, lua.Said(redisErr))
	}
}

// Two clients, and how long the server remembers their calls.
const (
	thisClient = "11111111-2222-3333-4444-555555555555"
	kept       = 120 * time.Second
)

// Replies that no script makes are errors, never answers.
func TestLatchReplies(t *testing.T) {
	t.Parallel()
	p := &parrot{}
	c := p.client(t)
	a := lua.LatchCall{Name: "latch", Record: "record", Client: thisClient, Number: 1, Keep: kept}
	for reply, want := range map[string]struct {
		call bool // it is an answer to a call that changes something
		look bool
	}{
		":0\r\n":                            {true, true},
		":1\r\n":                            {true, false},
		":2\r\n":                            {false, false},
		":-1\r\n":                           {false, false},
		"_\r\n":                             {false, false},
		"+OK\r\n":                           {false, false},
		"*0\r\n":                            {false, false},
		"*3\r\n$1\r\n7\r\n:5\r\n$0\r\n\r\n": {false, true},
		"*3\r\n$1\r\nx\r\n:5\r\n$0\r\n\r\n": {false, false},
		"*2\r\n$1\r\n7\r\n:5\r\n":           {false, false},
		"*4\r\n$1\r\n7\r\n:5\r\n$0\r\n\r\n:1\r\n":       {false, false},
		"-ERR unknown command 'EVALSHA', with args\r\n": {false, false},
	} {
		p.say(reply)
		for name, call := range map[string]func(context.Context) (bool, error){
			"set":    func(ctx context.Context) (bool, error) { return lua.SetCount(ctx, c, a, 1) },
			"down":   func(ctx context.Context) (bool, error) { return lua.CountDown(ctx, c, a, 1) },
			"delete": func(ctx context.Context) (bool, error) { return lua.DeleteLatch(ctx, c, a) },
		} {
			did, err := call(t.Context())
			require.Equal(t, want.call, err == nil, fmt.Sprintf("%s: %q: %v", name, reply, err))
			require.Equal(t, reply == ":1\r\n", did)
		}
		_, err := lua.LookAtLatch(t.Context(), c, "latch", "record")
		require.Equal(t, want.look, err == nil, fmt.Sprintf("look: %q: %v", reply, err))
	}
}
