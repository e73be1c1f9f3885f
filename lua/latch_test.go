package lua_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
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

func (l latch) down(client string, number uint64, n int64) bool {
	l.t.Helper()
	did, err := lua.CountDown(l.t.Context(), l.rdb, l.call(client, number), n)
	require.NoError(l.t, err)
	return did
}

func (l latch) delete(client string, number uint64) bool {
	l.t.Helper()
	did, err := lua.DeleteLatch(l.t.Context(), l.rdb, l.call(client, number))
	require.NoError(l.t, err)
	return did
}

func (l latch) look() lua.Latch {
	l.t.Helper()
	got, err := lua.LookAtLatch(l.t.Context(), l.rdb, l.name, l.record)
	require.NoError(l.t, err)
	n, err := lua.LatchCount(l.t.Context(), l.rdb, l.name)
	require.NoError(l.t, err)
	require.Equal(l.t, got.Count, n)
	return got
}

func (l latch) requireCount(want int64) {
	l.t.Helper()
	require.Equal(l.t, want, l.look().Count)
}

func TestLatch(t *testing.T) {
	t.Parallel()
	l := newLatch(t, redistest.Dial(t, redistest.Shared(t)))
	ear := l.listen(false)
	require.Equal(t, lua.Latch{}, l.look())
	require.False(t, l.down(thisClient, 1, 1), "it has no count")
	require.False(t, l.delete(thisClient, 2))
	require.True(t, l.set(thisClient, 3, 3))
	require.Equal(t, lua.Latch{Count: 3, TTL: noExpiry, Set: thisClient + ":3"}, l.look())
	require.False(t, l.set(thatClient, 1, 9), "it has one")
	require.True(t, l.down(thatClient, 2, 2))
	require.Equal(t, []string{"1"}, ear.said())
	l.requireCount(1)
	require.True(t, l.down(thisClient, 4, 5), "more than there is")
	require.Equal(t, []string{"0"}, ear.said())
	require.Equal(t, noKey, l.ttl())

	require.True(t, l.set(thatClient, 3, 0))
	require.Equal(t, lua.Latch{Count: 0, TTL: noExpiry, Set: thatClient + ":3"}, l.look())
	require.False(t, l.set(thatClient, 4, 1), "0 is a count")
	require.True(t, l.down(thatClient, 5, 1))
	require.Equal(t, noKey, l.ttl())
	require.Equal(t, []string{"1"}, ear.said(), "no process waits for 0")

	require.True(t, l.set(thisClient, 5, 7))
	require.True(t, l.delete(thatClient, 6))
	require.Equal(t, []string{"1", "0"}, ear.said())
	require.Equal(t, noKey, l.ttl())
	ttl := l.number("PTTL", l.record)
	require.LessOrEqual(t, ttl, kept.Milliseconds())
	require.Greater(t, ttl, (kept - slack).Milliseconds())
}

// A latch keeps any expiry set by another client.
func TestLatchKeepsItsExpiry(t *testing.T) {
	t.Parallel()
	l := newLatch(t, redistest.Dial(t, redistest.Shared(t)))
	require.True(t, l.set(thisClient, 1, 3))
	l.must("PEXPIRE", l.name, strconv.FormatInt(lease.Milliseconds(), 10))
	require.True(t, l.down(thisClient, 2, 1))
	l.requireTTL(lease)
	require.Greater(t, l.look().TTL, lease-slack)
}

// Counts are Redis's 64-bit integers, not Lua numbers.
func TestLatchCountsExactly(t *testing.T) {
	t.Parallel()
	l := newLatch(t, redistest.Dial(t, redistest.Shared(t)))
	require.True(t, l.set(thisClient, 1, 1<<62+1))
	require.True(t, l.down(thisClient, 2, 1))
	l.requireCount(1 << 62)
	require.True(t, l.down(thisClient, 3, 1<<62-1))
	l.requireCount(1)
}

// A repeat gets the original answer and changes nothing. So does a copy that arrives after later calls, whatever the latch is by then.
func TestLatchCallsCountOnce(t *testing.T) {
	t.Parallel()
	rdb := redistest.Dial(t, redistest.Shared(t))
	for name, row := range map[string]struct {
		before int64 // 0: it has no count
		call   func(latch) bool
		did    bool
		after  int64
	}{
		"set":             {0, func(l latch) bool { return l.set(thisClient, 5, 3) }, true, 3},
		"set, refused":    {2, func(l latch) bool { return l.set(thisClient, 5, 3) }, false, 2},
		"down":            {3, func(l latch) bool { return l.down(thisClient, 5, 1) }, true, 2},
		"down, the last":  {2, func(l latch) bool { return l.down(thisClient, 5, 2) }, true, 0},
		"down of nothing": {0, func(l latch) bool { return l.down(thisClient, 5, 1) }, false, 0},
		"delete":          {3, func(l latch) bool { return l.delete(thisClient, 5) }, true, 0},
		"delete nothing":  {0, func(l latch) bool { return l.delete(thisClient, 5) }, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLatch(t, rdb)
			if row.before > 0 {
				require.True(t, l.set(thatClient, 1, row.before))
			}
			ear := l.listen(false)
			require.Equal(t, row.did, row.call(l))
			ear.said()
			for range 3 {
				require.Equal(t, row.did, row.call(l), "a repeat")
				l.requireCount(row.after)
			}
			// Another client, then this client, changes the latch, and then a copy of an earlier call arrives.
			for i, client := range []string{thatClient, thisClient} {
				l.delete(thatClient, 10+uint64(i))
				require.True(t, l.set(client, 20+uint64(i), 7))
				ear.said()
				row.call(l)
				l.requireCount(7)
				require.Empty(t, ear.said())
				l.delete(thatClient, 30+uint64(i))
				ear.said()
				row.call(l)
				l.requireCount(0)
				require.Empty(t, ear.said())
			}
		})
	}
}

// Between two calls that set the latch it was open.
func TestLatchSaysWhoHasSetIt(t *testing.T) {
	t.Parallel()
	l := newLatch(t, redistest.Dial(t, redistest.Shared(t)))
	l.must("SET", l.name, "3") // by Redisson
	require.Equal(t, "", l.look().Set)
	require.False(t, l.set(thisClient, 1, 3))
	require.Equal(t, "", l.look().Set)
	require.True(t, l.delete(thisClient, 2))
	require.True(t, l.set(thisClient, 3, 3))
	require.Equal(t, thisClient+":3", l.look().Set)
	require.False(t, l.set(thatClient, 1, 3))
	require.True(t, l.down(thatClient, 2, 1))
	require.Equal(t, thisClient+":3", l.look().Set)
	l.must("DEL", l.record)
	require.Equal(t, "", l.look().Set)
}

func TestLatchOfAnotherType(t *testing.T) {
	t.Parallel()
	rdb := redistest.Dial(t, redistest.Shared(t))
	all := func(l latch) map[string]error {
		errs := make(map[string]error)
		_, errs["set"] = lua.SetCount(t.Context(), l.rdb, l.call(thisClient, 1), 1)
		_, errs["down"] = lua.CountDown(t.Context(), l.rdb, l.call(thisClient, 2), 1)
		_, errs["delete"] = lua.DeleteLatch(t.Context(), l.rdb, l.call(thisClient, 3))
		_, errs["look"] = lua.LookAtLatch(t.Context(), l.rdb, l.name, l.record)
		_, errs["count"] = lua.LatchCount(t.Context(), l.rdb, l.name)
		return errs
	}
	for name, fill := range map[string]func(latch){
		"hash":     func(l latch) { l.hold(me, "1", lease) },
		"text":     func(l latch) { l.must("SET", l.name, "3 and more") },
		"nothing":  func(l latch) { l.must("SET", l.name, "") },
		"fraction": func(l latch) { l.must("SET", l.name, "1.5") },
	} {
		l := newLatch(t, rdb)
		fill(l)
		before, err := l.do("DUMP", l.name).ToString()
		require.NoError(t, err)
		for call, err := range all(l) {
			require.ErrorIs(t, err, lua.ErrNoCounter, name+" "+call)
		}
		after, err := l.do("DUMP", l.name).ToString()
		require.NoError(t, err)
		require.Equal(t, before, after)
		require.Equal(t, int64(0), l.number("EXISTS", l.record))
	}
	l := newLatch(t, rdb)
	l.must("SET", l.name, "1")
	l.must("SET", l.record, "something else")
	for call, err := range all(l) {
		if call != "count" {
			require.ErrorIs(t, err, lua.ErrNoCounter, call)
			require.ErrorContains(t, err, l.record)
		}
	}
	count, err := l.do("GET", l.name).ToString()
	require.NoError(t, err)
	require.Equal(t, "1", count)
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
