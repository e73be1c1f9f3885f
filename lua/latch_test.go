package lua_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
	"github.com/go-rlock/rlock/lua"
)

// Two clients, and how long the server remembers their calls.
const (
	thisClient = "11111111-2222-3333-4444-555555555555"
	thatClient = "66666666-2222-3333-4444-555555555555"
	kept       = 120 * time.Second
)

// latch is a latch on a server.
type latch struct {
	lab
	record string
}

func newLatch(t *testing.T, rdb rueidis.Client) latch {
	t.Helper()
	l := newLab(t, rdb)
	return latch{l, "record:{" + l.name + "}"}
}

func (l latch) call(client string, number uint64) lua.LatchCall {
	return lua.LatchCall{
		Name: l.name, Record: l.record, Client: client, Number: number, Keep: kept, Publish: lua.Publish{Name: l.channel},
	}
}

func (l latch) set(client string, number uint64, n int64) bool {
	l.t.Helper()
	did, err := lua.SetCount(l.t.Context(), l.rdb, l.call(client, number), n)
	require.NoError(l.t, err)
	return did
}

// A user lacks rights. A forbidden channel does not undo a count.
func TestLatchRights(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	limited := user(t, s, "~* resetchannels &other +@all")
	l := newLatch(t, s.Client(t))
	require.True(t, l.set(thisClient, 1, 2))
	for n := uint64(2); n < 4; n++ {
		_, err := lua.CountDown(t.Context(), limited, l.call(thisClient, n), 1)
		if n == 2 {
			require.NoError(t, err, "no process needs a message")
			continue
		}
		var said *rueidis.RedisError
		require.True(t, errors.As(err, &said))
		require.ErrorContains(t, err, "latch count-down script: UNTOLD ")
	}
	require.Equal(t, noKey, l.ttl())
	did, err := lua.SetCount(t.Context(), limited, l.call(thisClient, 4), 2)
	require.NoError(t, err)
	require.True(t, did)
	_, err = lua.DeleteLatch(t.Context(), limited, l.call(thisClient, 5))
	require.ErrorContains(t, err, "latch delete script: UNTOLD ")
	require.Equal(t, noKey, l.ttl())

	minimal := user(t, s, "~* &* -@all +@connection +evalsha +eval +get +set +del +decrby +hget +hset +pexpire +pttl +publish")
	l = newLatch(t, s.Client(t))
	for call, err := range map[string]error{
		"set":    func() error { _, err := lua.SetCount(t.Context(), minimal, l.call(thisClient, 1), 2); return err }(),
		"look":   func() error { _, err := lua.LookAtLatch(t.Context(), minimal, l.name, l.record); return err }(),
		"down":   func() error { _, err := lua.CountDown(t.Context(), minimal, l.call(thisClient, 2), 2); return err }(),
		"delete": func() error { _, err := lua.DeleteLatch(t.Context(), minimal, l.call(thisClient, 3)); return err }(),
		"count":  func() error { _, err := lua.LatchCount(t.Context(), minimal, l.name); return err }(),
	} {
		require.NoError(t, err, call)
	}
}

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
