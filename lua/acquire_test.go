package lua_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
	"github.com/go-rlock/rlock/lua"
)

func TestAcquireFromEveryState(t *testing.T) {
	t.Parallel()
	acquired := lua.AcquireReply{Status: lua.Acquired}
	heldFor := func(ttl time.Duration) lua.AcquireReply {
		return lua.AcquireReply{Status: lua.Held, TTL: ttl, Holder: other}
	}
	effects(t, "acquire", true, []effect{
		{name: "absent", at: absent, count: 1, want: acquired, fields: mine(1), ttl: lease, raised: firstCall},
		{name: "absent, re-entry", at: absent, count: 2, want: lua.AcquireReply{Status: lua.Lost}, ttl: noKey},
		{name: "expired, mine", at: expired(me), count: 1, want: acquired, fields: mine(1), ttl: lease, raised: firstCall},
		{name: "expired, mine, re-entry", at: expired(me), count: 3, want: lua.AcquireReply{Status: lua.Lost}, ttl: noKey},
		{name: "expired, another's", at: expired(other), count: 1, want: acquired, fields: mine(1), ttl: lease, raised: firstCall},

		{name: "mine, repeat", at: holding(me, "1", short), count: 1, want: acquired, fields: mine(1), ttl: lease},
		{name: "mine, re-entry extends", at: holding(me, "1", short), count: 2, want: acquired, fields: mine(2), ttl: lease, raised: eachCall},
		{name: "mine, re-entry does not shorten", at: holding(me, "1", long), count: 2, want: acquired, fields: mine(2), ttl: long, raised: eachCall},
		{name: "mine, a level was not counted", at: holding(me, "1", long), count: 3, want: acquired, fields: mine(3), ttl: long, raised: eachCall},
		{name: "mine twice, repeat of the first", at: holding(me, "2", long), count: 1, want: acquired, fields: mine(2), ttl: long},
		{name: "mine twice, repeat", at: holding(me, "2", long), count: 2, want: acquired, fields: mine(2), ttl: long, raised: eachCall},
		{name: "mine twice, re-entry", at: holding(me, "2", short), count: 3, want: acquired, fields: mine(3), ttl: lease, raised: eachCall},
		{name: "mine without expiry gets one", at: holding(me, "1", 0), count: 1, want: acquired, fields: mine(1), ttl: lease},
		{name: "mine without expiry, re-entry", at: holding(me, "1", 0), count: 2, want: acquired, fields: mine(2), ttl: lease, raised: eachCall},
		{name: "given to me, for longer than I asked for", at: holding(me, "0", long), count: 1, want: acquired, fields: mine(1), ttl: lease, raised: firstCall},

		{name: "another's", at: holding(other, "1", long), count: 1, want: heldFor(long), fields: others("1"), ttl: long},
		{name: "another's twice", at: holding(other, "2", short), count: 1, want: heldFor(short), fields: others("2"), ttl: short},
		{name: "another's, re-entry", at: holding(other, "1", long), count: 2, want: lua.AcquireReply{Status: lua.Lost}, fields: others("1"), ttl: long},
		{name: "another's without expiry", at: holding(other, "1", 0), count: 1, want: heldFor(noExpiry), fields: others("1"), ttl: noExpiry},
		{name: "another's, garbage", at: holding(other, "x", long), count: 1, want: heldFor(long), fields: others("x"), ttl: long},

		{name: "mine, garbage", at: holding(me, "x", short), count: 1, err: "nil", fields: map[string]string{me: "x"}, ttl: short},
		{name: "mine, a fraction", at: holding(me, "1.5", short), count: 2, err: "not an integer", fields: map[string]string{me: "1.5"}, ttl: short},
		{name: "wrong type", at: text, count: 1, err: "WRONGTYPE", fields: texts, ttl: noExpiry},
		{name: "wrong type, re-entry", at: text, count: 2, err: "WRONGTYPE", fields: texts, ttl: noExpiry},
	}, func(l lab, e effect, fence string) (any, error) {
		a := l.wants(me)
		a.Fence, a.Count = fence, e.count
		got, err := lua.Acquire(l.t.Context(), l.rdb, a)
		for _, ttl := range []time.Duration{short, long} { // rounded up
			if l.remains(got.TTL, ttl) {
				got.TTL = ttl
			}
		}
		return got, err
	})
}

func mine(count int) map[string]string      { return map[string]string{me: fmt.Sprint(count)} }
func others(count string) map[string]string { return map[string]string{other: count} }

func TestAcquireIsNoSuccessByDefault(t *testing.T) {
	t.Parallel()
	require.NotEqual(t, lua.Acquired, lua.AcquireReply{}.Status)
	var zero lua.Renewal
	require.NotEqual(t, lua.Renewed, zero)
}

func TestAcquireToldOfAVeryLongHold(t *testing.T) {
	t.Parallel()
	l := newLab(t, redistest.Dial(t, redistest.Shared(t)))
	l.hold(other, "1", lease)
	// As nanoseconds this wraps round to less than a millisecond.
	l.must("PEXPIRE", l.name, "18446744073710")
	require.Equal(t, lua.AcquireReply{Status: lua.Held, TTL: math.MaxInt64, Holder: other}, l.acquire(l.wants(me)))
}

// Only the lock's holder gets one more token.
func TestNextToken(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		at    state
		owned bool
	}{
		"absent": {absent, false}, "expired": {expired(me), false}, "mine": {holding(me, "1", long), true}, "another's": {holding(other, "1", long), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, redistest.Dial(t, redistest.Shared(t)))
			row.at(l)
			next := func(want, counter int64) {
				t.Helper()
				token, err := lua.NextToken(t.Context(), l.rdb, l.name, l.fence, me)
				require.NoError(t, err)
				require.Equal(t, want, token)
				require.Equal(t, counter, l.number("GET", l.fence))
			}
			l.must("SET", l.fence, "7")
			if !row.owned {
				next(0, 7)
				return
			}
			next(8, 8)
			next(9, 9)
			for _, wrong := range []string{"-1", "9007199254740991"} {
				l.must("SET", l.fence, wrong)
				_, err := lua.NextToken(t.Context(), l.rdb, l.name, l.fence, me)
				requireSaid(t, err, "next_token script: TOKEN")
			}
		})
	}
}

func TestRenewFromEveryState(t *testing.T) {
	t.Parallel()
	renewal := func(one lua.Renewal) []lua.Renewal { return []lua.Renewal{one} }
	effects(t, "renew", false, []effect{
		{name: "absent", at: absent, want: renewal(lua.Gone), ttl: noKey},
		{name: "expired", at: expired(me), want: renewal(lua.Gone), ttl: noKey},
		{name: "mine", at: holding(me, "1", short), want: renewal(lua.Renewed), fields: mine(1), ttl: lease},
		{name: "mine twice", at: holding(me, "2", short), want: renewal(lua.Renewed), fields: mine(2), ttl: lease},
		{name: "mine, later already", at: holding(me, "1", long), want: renewal(lua.Renewed), fields: mine(1), ttl: long},
		{name: "mine without expiry", at: holding(me, "1", 0), want: renewal(lua.Renewed), fields: mine(1), ttl: lease},
		{name: "mine, garbage", at: holding(me, "x", short), want: renewal(lua.Renewed), fields: map[string]string{me: "x"}, ttl: lease},
		{name: "another's", at: holding(other, "1", short), want: renewal(lua.Gone), fields: others("1"), ttl: short},
		{name: "another's without expiry", at: holding(other, "1", 0), want: renewal(lua.Gone), fields: others("1"), ttl: noExpiry},
		{name: "wrong type", at: text, want: renewal(lua.Gone), fields: texts, ttl: noExpiry},
	}, func(l lab, _ effect, _ string) (any, error) {
		return lua.Renew(l.t.Context(), l.rdb, lease, []lua.Hold{{Name: l.name, Owner: me}})
	})
}

// A batch is one call, and the state of a key never affects the other keys, wherever it stands.
func TestRenewBatch(t *testing.T) {
	t.Parallel()
	const short, lease, long = 5 * time.Minute, 15 * time.Minute, 45 * time.Minute // none ends while a hundred keys are made
	rdb := redistest.Start(t).Client(t)
	got, err := lua.Renew(t.Context(), rdb, lease, nil)
	require.NoError(t, err)
	require.Empty(t, got)
	kinds := []struct {
		at   state
		want lua.Renewal
		ttl  time.Duration
	}{
		{text, lua.Gone, noExpiry},
		{holding(me, "1", short), lua.Renewed, lease},
		{holding(other, "1", short), lua.Gone, short},
		{absent, lua.Gone, noKey},
		{holding(me, "2", long), lua.Renewed, long},
	}
	for shift := range kinds {
		var labs []lab
		var holds []lua.Hold
		for i := range 100 {
			l := newLab(t, rdb)
			kinds[(i+shift)%len(kinds)].at(l)
			labs, holds = append(labs, l), append(holds, lua.Hold{Name: l.name, Owner: me})
		}
		before := redistest.Commands(t, rdb)["evalsha"]
		got, err := lua.Renew(t.Context(), rdb, lease, holds)
		require.NoError(t, err)
		require.EqualValues(t, 1, redistest.Commands(t, rdb)["evalsha"]-before)
		require.Len(t, got, len(holds))
		for i, l := range labs {
			kind := kinds[(i+shift)%len(kinds)]
			require.Equal(t, kind.want, got[i], i)
			l.requireTTL(kind.ttl)
		}
	}
}

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
