package lua_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/internal/require"
	"github.com/go-rlock/rlock/lua"
)

// next is the owner that receives the hand-off.
const next = "11111111-2222-3333-4444-555555555555:9"

func (l lab) handOff(fenced bool) lua.ReleaseArgs {
	a := lua.ReleaseArgs{Name: l.name, Owner: me, Next: next, Stay: true, Lease: lease, Publish: lua.Publish{Name: l.channel}}
	if fenced {
		a.Fence = l.fence
	}
	return a
}

// handBack undoes a hand-off.
func (l lab) handBack() lua.ReleaseArgs {
	a := l.handOff(false)
	a.Owner, a.Next = a.Next, a.Owner
	return a
}

func nexts(count string) map[string]string { return map[string]string{next: count} }

func TestHandOffFromEveryState(t *testing.T) {
	t.Parallel()
	rdb := redistest.Dial(t, redistest.Shared(t))
	for _, row := range []struct {
		name   string
		at     state
		status lua.Released
		err    string // instead of a status
		fields map[string]string
		ttl    time.Duration
	}{
		{name: "absent", at: absent, status: lua.NotHeld, ttl: noKey},
		{name: "expired, mine", at: expired(me), status: lua.NotHeld, ttl: noKey},
		{name: "expired, the next one's", at: expired(next), status: lua.NotHeld, ttl: noKey},

		{name: "mine, the expiry rises", at: holding(me, "1", short), status: lua.HandedOff, fields: nexts("1"), ttl: lease},
		{name: "mine, the expiry falls", at: holding(me, "1", long), status: lua.HandedOff, fields: nexts("1"), ttl: lease},
		{name: "mine without expiry", at: holding(me, "1", 0), status: lua.HandedOff, fields: nexts("1"), ttl: lease},
		{name: "mine, an unlock was not counted", at: holding(me, "2", short), status: lua.HandedOff, fields: nexts("1"), ttl: lease},
		{name: "mine, garbage", at: holding(me, "x", short), status: lua.HandedOff, fields: nexts("1"), ttl: lease},
		{name: "mine, and the next one is there", at: both("5"), status: lua.HandedOff, fields: nexts("1"), ttl: lease},
		{name: "mine, and the next one is garbage", at: both("x"), status: lua.HandedOff, fields: nexts("1"), ttl: lease},

		{name: "the next one's", at: holding(next, "1", short), status: lua.NotHeld, fields: nexts("1"), ttl: short},
		{name: "the next one's, deeper", at: holding(next, "2", long), status: lua.NotHeld, fields: nexts("2"), ttl: long},
		{name: "another's", at: holding(other, "1", long), status: lua.NotHeld, fields: others("1"), ttl: long},
		{name: "another's without expiry", at: holding(other, "2", 0), status: lua.NotHeld, fields: others("2"), ttl: noExpiry},
		{name: "wrong type", at: text, err: "WRONGTYPE", ttl: noExpiry},
	} {
		for _, fenced := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/fenced=%v", row.name, fenced), func(t *testing.T) {
				t.Parallel()
				l := newLab(t, rdb)
				row.at(l)
				l.must("SET", l.fence, "41")
				ear := l.listen(false)
				token, status := int64(41), row.status
				for range 3 { // the first call, then two repeats after the lock has gone
					got, err := lua.Release(t.Context(), rdb, l.handOff(fenced))
					want := lua.ReleaseReply{Status: status}
					if fenced && status == lua.HandedOff {
						token++
						want.Token = token
					}
					if row.err != "" {
						var said *rueidis.RedisError
						require.ErrorAs(t, err, &said)
						require.ErrorContains(t, err, row.err)
						require.ErrorContains(t, err, "release script: ")
					} else {
						require.NoError(t, err)
						status = lua.NotHeld
					}
					require.Equal(t, want, got)
					l.requireFields(row.fields, row.err)
					l.requireTTL(row.ttl)
					require.Equal(t, token, l.number("GET", l.fence))
				}
				require.Empty(t, ear.said(), "no message")
			})
		}
	}
}

// both is a state with two holds, mine and the next owner's. No call leaves it, but another client could write it.
func both(count string) state {
	return func(l lab) {
		l.t.Helper()
		l.hold(me, "1", short)
		l.must("HSET", l.name, next, count)
	}
}

// The next owner's calls find the same state as after an acquire.
func TestHandOffIsLikeAnAcquire(t *testing.T) {
	t.Parallel()
	l := newLab(t, redistest.Dial(t, redistest.Shared(t)))
	p := lua.Publish{Name: l.channel}
	a := lua.AcquireArgs{Name: l.name, Fence: l.fence, Owner: next, Lease: lease, Count: 1}
	l.hold(me, "1", short)
	for want := int64(1); want <= 3; want++ { // the counter starts with it
		got, err := lua.Release(t.Context(), l.rdb, l.handOff(true))
		require.NoError(t, err)
		require.Equal(t, lua.ReleaseReply{Status: lua.HandedOff, Token: want}, got)
		require.EqualValues(t, -1, l.number("PTTL", l.fence))
		asked, err := lua.Acquire(t.Context(), l.rdb, a)
		require.NoError(t, err)
		require.Equal(t, lua.AcquireReply{Status: lua.Acquired, Token: want}, asked, "as after a lost reply")

		a.Owner = me
		asked, err = lua.Acquire(t.Context(), l.rdb, a)
		require.NoError(t, err)
		require.Equal(t, lua.Held, asked.Status)
		a.Owner = next
		got, err = lua.Release(t.Context(), l.rdb, lua.ReleaseArgs{Name: l.name, Owner: me, Publish: p})
		require.NoError(t, err)
		require.Equal(t, notHeld, got)
		renewed, err := lua.Renew(t.Context(), l.rdb, long, []lua.Hold{{Name: l.name, Owner: me}, {Name: l.name, Owner: next}})
		require.NoError(t, err)
		require.Equal(t, []lua.Renewal{lua.Gone, lua.Renewed}, renewed)
		require.Equal(t, nexts("1"), l.fields())
		l.requireTTL(long)

		got, err = lua.Release(t.Context(), l.rdb, lua.ReleaseArgs{Name: l.name, Owner: next, Publish: p})
		require.NoError(t, err)
		require.Equal(t, freed, got)
		l.hold(me, "1", short)
	}
}

// A failed hand-off changes nothing, although Redis does not roll back scripts.
func TestHandOffThatCannotFenceChangesNothing(t *testing.T) {
	t.Parallel()
	rdb := redistest.Dial(t, redistest.Shared(t))
	for name, row := range map[string]struct {
		spoil func(lab)
		err   string
	}{
		"wrong type": {func(l lab) { l.must("HSET", l.fence, "a", "b") }, "WRONGTYPE"},
		"garbage":    {func(l lab) { l.must("SET", l.fence, "x") }, "not an integer"},
		"exhausted":  {func(l lab) { l.must("SET", l.fence, fmt.Sprint(int64(math.MaxInt64))) }, "TOKEN"},
		"not exact":  {func(l lab) { l.must("SET", l.fence, fmt.Sprint(int64(1<<53-1))) }, "TOKEN"},
		"negative":   {func(l lab) { l.must("SET", l.fence, "-1") }, "TOKEN"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, rdb)
			row.spoil(l)
			l.hold(me, "1", short)
			got, err := lua.Release(t.Context(), rdb, l.handOff(true))
			var said *rueidis.RedisError
			require.ErrorAs(t, err, &said)
			require.ErrorContains(t, err, row.err)
			require.Zero(t, got)
			require.Equal(t, mine(1), l.fields())
			l.requireTTL(short)

			got, err = lua.Release(t.Context(), rdb, l.handOff(false))
			require.NoError(t, err, "without a token it works")
			require.Equal(t, lua.ReleaseReply{Status: lua.HandedOff}, got)
		})
	}
}

// Setting the expiry is the last step that can fail, and its failure is undone. Redis accepts every Duration.
func TestHandOffWithALeaseThatRedisRefuses(t *testing.T) {
	t.Parallel()
	rdb := redistest.Dial(t, redistest.Shared(t))
	for _, lease := range []string{"", "x", "1.5", "9223372036854775807"} {
		l := newLab(t, rdb)
		l.hold(me, "1", short)
		cmd := rdb.B().Eval().Script(lua.Text("release")).Numkeys(2).Key(l.name, l.fence).Arg(me, "0", lease, "publish", l.channel, next, "1").Build()
		_, said := rueidis.IsRedisErr(rdb.Do(t.Context(), cmd).Error())
		require.True(t, said, "%q", lease)
		require.Equal(t, mine(1), l.fields(), "%q", lease)
		l.requireTTL(short)
	}
}

// A hand-off that is forbidden, or refused for lack of memory, leaves a lock that a normal unlock can release. Without the right to HDEL
// neither works; then the next owner may find a hold.
func TestHandOffRefused(t *testing.T) {
	t.Parallel()
	const everything = "~* &* +@all "
	left := map[string]string{me: "1", next: "1"}
	for name, row := range map[string]struct {
		rules  string
		fields map[string]string
	}{
		"hexists":          {everything + "-hexists", mine(1)},
		"incr":             {everything + "-incr", mine(1)},
		"hset":             {everything + "-hset", mine(1)},
		"pexpire":          {everything + "-pexpire", mine(1)},
		"hdel":             {everything + "-hdel", left},
		"pexpire and hdel": {everything + "-pexpire -hdel", left},
		"the counter":      {"~TestHandOff* &* +@all", mine(1)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t)
			l := newLab(t, s.Client(t))
			l.hold(me, "1", short)
			limited := user(t, s, row.rules)
			got, err := lua.Release(t.Context(), limited, l.handOff(true))
			var said *rueidis.RedisError
			require.ErrorAs(t, err, &said)
			require.ErrorContains(t, err, "release script: ")
			require.Zero(t, got)
			require.Equal(t, row.fields, l.fields())
			require.Positive(t, l.ttl())
			if len(row.fields) > 1 {
				_, err := lua.Release(t.Context(), limited, lua.ReleaseArgs{Name: l.name, Owner: me})
				require.ErrorAs(t, err, &said)
				require.Equal(t, row.fields, l.fields())
				return
			}
			ear := l.listen(false)
			l.release(limited)
			require.Equal(t, []string{"0"}, ear.said())
		})
	}
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		s := redistest.Start(t)
		l := newLab(t, s.Client(t))
		l.hold(me, "1", short)
		require.NoError(t, l.rdb.Do(t.Context(), l.rdb.B().ConfigSet().ParameterValue().ParameterValue("maxmemory", "1").Build()).Error())
		_, err := lua.Release(t.Context(), l.rdb, l.handOff(true))
		require.ErrorContains(t, err, "OOM")
		require.Equal(t, mine(1), l.fields())
		l.requireTTL(short)
		l.release(l.rdb)
	})
}

// release ends my hold by c and expects nothing to remain.
func (l lab) release(c rueidis.Client) {
	l.t.Helper()
	got, err := lua.Release(l.t.Context(), c, lua.ReleaseArgs{Name: l.name, Owner: me, Publish: lua.Publish{Name: l.channel}})
	require.NoError(l.t, err)
	require.Equal(l.t, freed, got)
	require.Empty(l.t, l.fields())
}
