package lua_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/require"
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

func TestEveryKnownReply(t *testing.T) {
	t.Parallel()
	p := &parrot{}
	c := p.client(t)
	acquired := func(token int64) lua.AcquireReply { return lua.AcquireReply{Status: lua.Acquired, Token: token} }
	lost := lua.AcquireReply{Status: lua.Lost}
	held := func(ttl time.Duration, holder string, joined bool) lua.AcquireReply {
		reply := lua.AcquireReply{Status: lua.Held, TTL: ttl, Holder: holder, Joined: joined}
		if joined {
			reply.Place = 1
		}
		return reply
	}
	handed := func(token int64) lua.ReleaseReply { return lua.ReleaseReply{Status: lua.HandedOff, Token: token} }
	spare := func(token, more int64) lua.ReleaseReply {
		return lua.ReleaseReply{Status: lua.HandedOff, Token: token, Spare: more}
	}
	const all = "acquire release force"
	for reply, want := range map[string]struct {
		outcome
		known string // to which scripts
	}{
		":0\r\n":                        {outcome{acquired: acquired(0), released: notHeld}, all},
		":1\r\n":                        {outcome{acquired: acquired(1), released: freed, forced: true}, all},
		":2\r\n":                        {outcome{acquired: acquired(2), released: lua.ReleaseReply{Status: lua.Granted}}, "acquire release"},
		":7\r\n":                        {outcome{acquired: acquired(7)}, "acquire"},
		":-1\r\n":                       {outcome{acquired: lost}, "acquire"},
		"*1\r\n:0\r\n":                  {outcome{released: handed(0)}, "release"},
		"*1\r\n:7\r\n":                  {outcome{released: handed(7)}, "release"},
		"*3\r\n:7\r\n$1\r\na\r\n:0\r\n": {outcome{acquired: held(7*time.Millisecond, "a", false)}, "acquire"},
		"*3\r\n:0\r\n$1\r\na\r\n:1\r\n": {outcome{acquired: held(0, "a", true)}, "acquire"},
		"*3\r\n:-1\r\n$0\r\n\r\n:0\r\n": {outcome{acquired: held(-time.Millisecond, "", false)}, "acquire"},
		"*2\r\n:0\r\n:-1\r\n":           {outcome{renewed: []lua.Renewal{lua.Gone, lua.Refused}}, "renew"},
		"*2\r\n:-1\r\n:0\r\n":           {outcome{renewed: []lua.Renewal{lua.Refused, lua.Gone}}, "renew"},
		"*2\r\n:1\r\n:1\r\n":            {outcome{renewed: []lua.Renewal{lua.Renewed, lua.Renewed}, released: spare(1, 1)}, "renew release"},
		"*2\r\n:7\r\n:3\r\n":            {outcome{released: spare(7, 3)}, "release"},
		"*2\r\n:-1\r\n:-1\r\n":          {outcome{renewed: []lua.Renewal{lua.Refused, lua.Refused}}, "renew"},
	} {
		p.say(reply)
		got := ask(t.Context(), c)
		require.Equal(t, want.acquired, got.acquired, "%q", reply)
		require.Equal(t, want.released, got.released, "%q", reply)
		require.Equal(t, want.renewed, got.renewed, "%q", reply)
		require.Equal(t, want.forced, got.forced, "%q", reply)
		for script, err := range got.errors() {
			require.Equal(t, slices.Contains(strings.Fields(want.known), script), err == nil, "%s: %q", script, reply)
		}
	}
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
