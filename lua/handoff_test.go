package lua_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
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
	effects(t, "release", true, []effect{
		{name: "absent", at: absent, want: notHeld, ttl: noKey},
		{name: "expired, mine", at: expired(me), want: notHeld, ttl: noKey},
		{name: "expired, the next one's", at: expired(next), want: notHeld, ttl: noKey},

		{name: "mine, the expiry rises", at: holding(me, "1", short), want: handedOff, again: notHeld, raised: firstCall, fields: nexts("1"), ttl: lease},
		{name: "mine, the expiry falls", at: holding(me, "1", long), want: handedOff, again: notHeld, raised: firstCall, fields: nexts("1"), ttl: lease},
		{name: "mine without expiry", at: holding(me, "1", 0), want: handedOff, again: notHeld, raised: firstCall, fields: nexts("1"), ttl: lease},
		{name: "mine, an unlock was not counted", at: holding(me, "2", short), want: handedOff, again: notHeld, raised: firstCall, fields: nexts("1"), ttl: lease},
		{name: "mine, garbage", at: holding(me, "x", short), want: handedOff, again: notHeld, raised: firstCall, fields: nexts("1"), ttl: lease},
		{name: "mine, and the next one is there", at: both("5"), want: handedOff, again: notHeld, raised: firstCall, fields: nexts("1"), ttl: lease},
		{name: "mine, and the next one is garbage", at: both("x"), want: handedOff, again: notHeld, raised: firstCall, fields: nexts("1"), ttl: lease},

		{name: "the next one's", at: holding(next, "1", short), want: notHeld, fields: nexts("1"), ttl: short},
		{name: "the next one's, deeper", at: holding(next, "2", long), want: notHeld, fields: nexts("2"), ttl: long},
		{name: "another's", at: holding(other, "1", long), want: notHeld, fields: others("1"), ttl: long},
		{name: "another's without expiry", at: holding(other, "2", 0), want: notHeld, fields: others("2"), ttl: noExpiry},
		{name: "wrong type", at: text, err: "WRONGTYPE", fields: texts, ttl: noExpiry},
	}, func(l lab, _ effect, fence string) (any, error) {
		a := l.handOff(false)
		a.Fence = fence
		return lua.Release(l.t.Context(), l.rdb, a)
	})
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
	a := l.wants(next)
	a.Fence = l.fence
	l.hold(me, "1", short)
	for want := int64(1); want <= 3; want++ { // the counter starts with it
		require.Equal(t, lua.ReleaseReply{Status: lua.HandedOff, Token: want}, l.releases(l.handOff(true)))
		require.EqualValues(t, -1, l.number("PTTL", l.fence))
		require.Equal(t, lua.AcquireReply{Status: lua.Acquired, Token: want}, l.acquire(a), "as after a lost reply")
		require.Equal(t, lua.Held, l.acquire(l.wants(me)).Status)
		require.Equal(t, notHeld, l.releases(l.frees(me)))
		require.Equal(t, []lua.Renewal{lua.Gone, lua.Renewed}, l.renews(long, me, next))
		require.Equal(t, nexts("1"), l.fields())
		l.requireTTL(long)
		require.Equal(t, freed, l.releases(l.frees(next)))
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
			requireSaid(t, err, row.err)
			require.Zero(t, got)
			require.Equal(t, mine(1), l.fields())
			l.requireTTL(short)
			require.Equal(t, handedOff, l.releases(l.handOff(false)), "without a token it works")
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
		rules  string // "": there is no memory
		fields map[string]string
	}{
		"hexists":          {everything + "-hexists", mine(1)},
		"incr":             {everything + "-incr", mine(1)},
		"hset":             {everything + "-hset", mine(1)},
		"pexpire":          {everything + "-pexpire", mine(1)},
		"hdel":             {everything + "-hdel", left},
		"pexpire and hdel": {everything + "-pexpire -hdel", left},
		"the counter":      {"~TestHandOff* &* +@all", mine(1)},
		"memory":           {"", mine(1)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t)
			l := newLab(t, s.Client(t))
			l.hold(me, "1", short)
			limited := l.rdb
			if row.rules == "" {
				l.must("CONFIG", "SET", "maxmemory", "1")
			} else {
				limited = user(t, s, row.rules)
			}
			got, err := lua.Release(t.Context(), limited, l.handOff(true))
			requireSaid(t, err, "release script: ")
			require.Zero(t, got)
			require.Equal(t, row.fields, l.fields())
			require.Positive(t, l.ttl())
			ear := l.listen(false)
			got, err = lua.Release(t.Context(), limited, l.frees(me))
			if len(row.fields) > 1 {
				requireSaid(t, err)
				require.Equal(t, row.fields, l.fields())
				return
			}
			require.NoError(t, err)
			require.Equal(t, freed, got)
			require.Empty(t, l.fields())
			require.Equal(t, []string{"0"}, ear.said())
		})
	}
}
