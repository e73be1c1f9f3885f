package lua_test

import (
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
	"github.com/go-rlock/rlock/lua"
)

// A user that may not use the key of the marks gets the lock all the same, and leaves no mark.
func TestMarksForbidden(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	l := newLab(t, s.Client(t))
	limited := l
	limited.rdb = user(t, s, "~"+l.name+" ~{*}:*:rwlock_timeout:* &* +@all")
	asks := func(side lua.Side, owner string) lua.AcquireReply {
		a := l.writes(owner, 1)
		a.Side, a.Fence = side, ""
		return limited.acquire(a)
	}
	require.Equal(t, lua.Acquired, asks(lua.Reader, me).Status)
	refused := asks(lua.Writer, writerField)
	require.Equal(t, lua.Held, refused.Status)
	require.False(t, refused.Joined)
	require.Equal(t, lua.Freed, limited.releases(l.ended(lua.Reader, me)).Status)
	require.Equal(t, lua.Acquired, asks(lua.Writer, writerField).Status)
	require.Equal(t, lua.Freed, limited.releases(l.ended(lua.Writer, writerField)).Status)
	require.Equal(t, lua.Acquired, asks(lua.Writer, otherWriter).Status)
	forced, err := lua.ForceSide(t.Context(), limited.rdb, l.name, lua.Writer, lua.Publish{Name: l.channel})
	require.NoError(t, err)
	require.True(t, forced)
	require.Zero(t, l.number("EXISTS", l.name, l.queue))
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

const (
	writerField = me + ":write"
	otherWriter = other + ":write"
)

// writes asks for the write side with a token, and leaves a mark if refused.
func (l lab) writes(owner string, count int) lua.AcquireArgs {
	return lua.AcquireArgs{
		Name: l.name, Side: lua.Writer, Fence: l.fence, Queue: l.queue, Owner: owner, Lease: lease, Count: count, Listens: true,
		Publish: lua.Publish{Name: l.channel},
	}
}

// ended releases a side.
func (l lab) ended(side lua.Side, owner string) lua.ReleaseArgs {
	a := lua.ReleaseArgs{Name: l.name, Side: side, Fence: l.fence, Owner: owner, Publish: lua.Publish{Name: l.channel}}
	a.Key = l.queue
	return a
}

// Each hold of the write side raises the counter once, with marks and without them. A repeat, a refusal, a reader and
// a release do not.
func TestTokenOfAWriter(t *testing.T) {
	t.Parallel()
	rdb := redistest.Dial(t, redistest.Shared(t))
	for _, marks := range []bool{false, true} {
		l := newLab(t, rdb)
		l.must("SET", l.fence, "41")
		writes := func(owner string, count int) lua.AcquireReply {
			a := l.writes(owner, count)
			if !marks {
				a.Queue = ""
			}
			return l.acquire(a)
		}
		reads := func(owner, within string) lua.AcquireReply {
			return l.acquire(lua.AcquireArgs{Name: l.name, Side: lua.Reader, Owner: owner, Lease: lease, Count: 1, Within: within})
		}
		releases := func(side lua.Side, owner string) {
			t.Helper()
			a := l.ended(side, owner)
			if !marks {
				a.Key = ""
			}
			require.Equal(t, freed, l.releases(a))
		}
		counter := func() int64 { return l.number("GET", l.fence) }
		for range 3 {
			require.Equal(t, lua.AcquireReply{Status: lua.Acquired, Token: 42}, writes(writerField, 1), "and repeats")
		}
		require.Equal(t, lua.Acquired, reads(me+"1", writerField).Status)
		refused := writes(otherWriter, 1)
		require.Equal(t, lua.Held, refused.Status)
		require.Equal(t, marks, refused.Joined)
		require.Equal(t, int64(42), counter())
		releases(lua.Reader, me+"1")
		releases(lua.Writer, writerField)
		require.Equal(t, int64(42), counter(), "a release leaves the counter")
		require.Equal(t, int64(0), l.number("EXISTS", l.queue), "and takes the marks")
		require.Equal(t, int64(43), writes(otherWriter, 1).Token)
		releases(lua.Writer, otherWriter)
		require.Equal(t, lua.Acquired, reads(me, "").Status)
		require.Equal(t, int64(43), counter(), "readers do not change it")

		upgrade := l.writes(me+"2:write", 1)
		upgrade.Within = me
		for range 2 {
			require.Equal(t, lua.AcquireReply{Status: lua.Acquired, Token: 44}, l.acquire(upgrade))
		}
		releases(lua.Writer, me+"2:write")
		releases(lua.Reader, me)
		require.Equal(t, int64(0), l.number("EXISTS", l.name))
	}
}

// A writer's hold without a token gets one at a re-entry. A repeat raises the counter again, because the count may have been there before.
func TestTokenByAWritersReentry(t *testing.T) {
	t.Parallel()
	l := newLab(t, redistest.Dial(t, redistest.Shared(t)))
	without := l.writes(writerField, 1)
	without.Fence = ""
	require.Equal(t, lua.AcquireReply{Status: lua.Acquired}, l.acquire(without))
	require.Equal(t, int64(0), l.number("EXISTS", l.fence))
	require.Equal(t, int64(1), l.acquire(l.writes(writerField, 2)).Token)
	require.Equal(t, int64(2), l.acquire(l.writes(writerField, 2)).Token)
	without.Count = 3
	require.Equal(t, lua.AcquireReply{Status: lua.Acquired}, l.acquire(without))
	require.Equal(t, map[string]string{"mode": "write", writerField: "3"}, l.fields())
	gone := l.writes(otherWriter, 2)
	require.Equal(t, lua.Lost, l.acquire(gone).Status)
	require.Equal(t, int64(2), l.number("GET", l.fence))
}

// A counter that gives no token leaves the lock unchanged: free, or with its readers. Dead readers make no difference.
func TestWriterWithoutAToken(t *testing.T) {
	t.Parallel()
	rdb := redistest.Dial(t, redistest.Shared(t))
	for counter, says := range map[string]string{"9007199254740991": "TOKEN", "-1": "TOKEN", "hash": "WRONGTYPE"} {
		l := newLab(t, rdb)
		if counter == "hash" {
			l.must("HSET", l.fence, "a", "1")
		} else {
			l.must("SET", l.fence, counter)
		}
		fails := func(a lua.AcquireArgs) {
			t.Helper()
			_, err := lua.Acquire(t.Context(), rdb, a)
			require.ErrorContains(t, err, says)
			require.ErrorContains(t, err, "acquire script: ")
		}
		fails(l.writes(writerField, 1))
		require.Equal(t, int64(0), l.number("EXISTS", l.name))
		l.must("HSET", l.name, "mode", "read", other, "1") // without a hold key
		fails(l.writes(writerField, 1))
		require.Equal(t, int64(0), l.number("EXISTS", l.name), "not a mode alone, which is no lock")

		require.Equal(t, lua.Acquired, l.acquire(lua.AcquireArgs{Name: l.name, Side: lua.Reader, Owner: me, Lease: lease, Count: 1}).Status)
		upgrade := l.writes(me+"2:write", 1)
		upgrade.Within = me
		fails(upgrade)
		require.Equal(t, map[string]string{"mode": "read", me: "1"}, l.fields())
	}
}

// The adopter of a writer's ticket gets its own token, once.
func TestAdoptOfAWritersToken(t *testing.T) {
	t.Parallel()
	l := newLab(t, redistest.Dial(t, redistest.Shared(t)))
	require.Equal(t, int64(1), l.acquire(l.writes(writerField, 1)).Token)
	require.Equal(t, freed, l.releases(l.export(lua.Writer)))
	a := l.adopt(lua.Writer)
	a.Fence = l.fence
	for range 2 {
		require.Equal(t, int64(2), l.acquire(a).Token)
	}
}
