package lua_test

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/internal/require"
	"github.com/go-rlock/rlock/lua"
)

// rwCalls runs each script of read/write locks, on every path that needs another right.
func rwCalls(t *testing.T, c rueidis.Client, name, marks string) (errs []error) {
	t.Helper()
	ctx, p := t.Context(), lua.Publish{Name: "redisson_rwlock:{x}"}
	acquire := func(side lua.Side, owner string, count int, within string) {
		a := lua.AcquireArgs{
			Name: name, Side: side, Owner: owner, Lease: lease, Count: count, Within: within, Publish: p, Listens: true,
		}
		if within == "" || side == lua.Writer {
			a.Queue = marks
		}
		_, err := lua.Acquire(ctx, c, a)
		errs = append(errs, err)
	}
	release := func(side lua.Side, owner string, count int) {
		a := lua.ReleaseArgs{Name: name, Side: side, Owner: owner, Count: count, Lease: lease, Publish: p}
		a.Key = marks
		_, err := lua.Release(ctx, c, a)
		errs = append(errs, err)
	}
	acquire(lua.Reader, me, 1, "")
	acquire(lua.Reader, me, 2, "")
	acquire(lua.Reader, other, 1, "")
	acquire(lua.Writer, me+"1:write", 1, "") // refused, and leaves a mark
	acquire(lua.Reader, other+"2", 1, "")    // drops it, for nobody listens
	release(lua.Reader, other+"2", 0)
	_, err := lua.RenewReaders(ctx, c, long, []lua.Hold{{Name: name, Owner: me}})
	errs = append(errs, err)
	release(lua.Reader, me, 1)
	release(lua.Reader, other, 0)
	acquire(lua.Writer, me+"3:write", 1, me) // becomes the writer
	_, err = lua.IsLocked(ctx, c, name, lua.Reader)
	errs = append(errs, err)
	release(lua.Writer, me+"3:write", 0)
	release(lua.Reader, me, 0)
	acquire(lua.Writer, me+"4:write", 1, "")
	_, err = lua.ForceSide(ctx, c, name, lua.Writer, p)
	return append(errs, err)
}

// The rights in docs/protocol.md suffice, and each of the keys is needed.
func TestReadWriteRights(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	admin := s.Client(t)
	const commands = " +evalsha +eval +del +hdel +hexists +hget +hincrby +hrandfield +hset +pexpire +pttl +publish" +
		" +hgetall +hlen +set +time +zadd +zrange +zrem +exists +pubsub"
	const keys = " ~x ~{*}:*:rwlock_timeout:* ~rlock_writers:* &redisson_rwlock:*"
	run := func(rules string) []error {
		cmd := admin.B().Arbitrary("ACL", "SETUSER", "tester", "reset", "resetchannels", "on", ">secret", "+client", "+hello", "+ping").
			Args(strings.Fields(rules)...).Build()
		require.NoError(t, admin.Do(t.Context(), cmd).Error())
		require.NoError(t, admin.Do(t.Context(), admin.B().Flushall().Build()).Error())
		c := s.Client(t, func(o *rueidis.ClientOption) { o.Username, o.Password = "tester", "secret" })
		return rwCalls(t, c, "x", "rlock_writers:{x}")
	}
	for i, err := range run(keys + commands) {
		require.NoError(t, err, "call %d", i)
	}
	left, err := admin.Do(t.Context(), admin.B().Keys().Pattern("*").Build()).AsStrSlice()
	require.NoError(t, err)
	require.Empty(t, left)
	for _, key := range []string{" ~x", " ~{*}:*:rwlock_timeout:*"} {
		require.Error(t, run(strings.Replace(keys, key, "", 1) + commands)[0], key)
		reads, err := admin.Do(t.Context(), admin.B().Hexists().Key("x").Field(me).Build()).AsBool()
		require.NoError(t, err)
		require.False(t, reads, "nothing was written")
	}
	for i, err := range run(strings.Replace(keys, " ~rlock_writers:*", "", 1) + commands) {
		require.NoError(t, err, "call %d works without marks", i)
	}
}

// Without memory no caller gets a lock, and attempts leave nothing. Holds are still renewed and released.
func TestReadWriteWithoutMemory(t *testing.T) {
	t.Parallel()
	l := newLab(t, redistest.Start(t).Client(t))
	acquire := func(name string, side lua.Side, owner string, count int, within string) error {
		_, err := lua.Acquire(t.Context(), l.rdb, lua.AcquireArgs{
			Name: name, Side: side, Owner: owner, Lease: lease, Count: count, Within: within,
		})
		return err
	}
	release := func(side lua.Side, owner string, count int) {
		t.Helper()
		a := l.frees(owner)
		a.Side, a.Count = side, count
		require.Equal(t, freed, l.releases(a))
	}
	require.NoError(t, acquire(l.name, lua.Writer, me+":write", 1, ""))
	require.NoError(t, acquire(l.name, lua.Writer, me+":write", 2, ""))
	require.NoError(t, acquire(l.name, lua.Reader, other, 1, me+":write"))
	require.NoError(t, acquire(l.name, lua.Reader, other, 2, ""))
	l.must("CONFIG", "SET", "maxmemory", "1")
	require.ErrorContains(t, acquire("y", lua.Reader, me, 1, ""), "OOM")
	require.ErrorContains(t, acquire("y", lua.Writer, me+":write", 1, ""), "OOM")
	answers, err := lua.RenewReaders(t.Context(), l.rdb, long, []lua.Hold{{Name: l.name, Owner: other}})
	require.NoError(t, err)
	require.Equal(t, []lua.Renewal{lua.Renewed}, answers)
	release(lua.Writer, me+":write", 1)
	release(lua.Writer, me+":write", 0)
	release(lua.Reader, other, 1)
	release(lua.Reader, other, 0)
	left, err := l.do("KEYS", "*").AsStrSlice()
	require.NoError(t, err)
	require.Empty(t, left)
}

// PTTL is 0 in a key's last millisecond, which still belongs to the reader.
func TestReaderLivesToItsLastMillisecond(t *testing.T) {
	t.Parallel()
	l := newLab(t, redistest.Start(t).Client(t))
	holdKey := "{" + l.name + "}:" + me + ":rwlock_timeout:1"
	// The time is constant within a script.
	script := "local function acquire()\n" + lua.Text("write_acquire") + "end\n" +
		"local left = redis.call('pttl', ARGV[5])\nreturn {left, type(acquire()) == 'table' and 1 or 0}"
	for last := 0; last < 5; {
		_, err := lua.Acquire(t.Context(), l.rdb, lua.AcquireArgs{Name: l.name, Side: lua.Reader, Owner: me, Lease: 3 * time.Millisecond, Count: 1})
		require.NoError(t, err)
		for {
			answers, err := l.do("EVAL", script, "1", l.name, other+":write", "1000", "1", "", holdKey).AsIntSlice()
			require.NoError(t, err)
			if answers[0] < 0 {
				break
			}
			if answers[0] == 0 {
				last++
			}
			require.Equal(t, int64(1), answers[1], "a writer is refused beside a reader that has %d ms left", answers[0])
		}
		l.must("DEL", l.name)
	}
}
