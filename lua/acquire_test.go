package lua_test

import (
	"fmt"
	"maps"
	"math"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/internal/require"
	"github.com/go-rlock/rlock/lua"
)

func TestAcquireFromEveryState(t *testing.T) {
	t.Parallel()
	rdb := redistest.Dial(t, redistest.Shared(t))
	for _, row := range []struct {
		name   string
		at     state
		count  int
		status lua.Status
		err    string // instead of a status
		heldBy time.Duration
		fields map[string]string
		ttl    time.Duration
		raised bool // the call raises the fencing counter
	}{
		{name: "absent", at: absent, count: 1, status: lua.Acquired, fields: mine(1), ttl: lease, raised: true},
		{name: "absent, re-entry", at: absent, count: 2, status: lua.Lost, ttl: noKey},
		{name: "expired, mine", at: expired(me), count: 1, status: lua.Acquired, fields: mine(1), ttl: lease, raised: true},
		{name: "expired, mine, re-entry", at: expired(me), count: 3, status: lua.Lost, ttl: noKey},
		{name: "expired, another's", at: expired(other), count: 1, status: lua.Acquired, fields: mine(1), ttl: lease, raised: true},

		{name: "mine, repeat", at: holding(me, "1", short), count: 1, status: lua.Acquired, fields: mine(1), ttl: lease},
		{name: "mine, re-entry extends", at: holding(me, "1", short), count: 2, status: lua.Acquired, fields: mine(2), ttl: lease, raised: true},
		{name: "mine, re-entry does not shorten", at: holding(me, "1", long), count: 2, status: lua.Acquired, fields: mine(2), ttl: long, raised: true},
		{name: "mine, a level was not counted", at: holding(me, "1", long), count: 3, status: lua.Acquired, fields: mine(3), ttl: long, raised: true},
		{name: "mine twice, repeat of the first", at: holding(me, "2", long), count: 1, status: lua.Acquired, fields: mine(2), ttl: long},
		{name: "mine twice, repeat", at: holding(me, "2", long), count: 2, status: lua.Acquired, fields: mine(2), ttl: long, raised: true},
		{name: "mine twice, re-entry", at: holding(me, "2", short), count: 3, status: lua.Acquired, fields: mine(3), ttl: lease, raised: true},
		{name: "mine without expiry gets one", at: holding(me, "1", 0), count: 1, status: lua.Acquired, fields: mine(1), ttl: lease},
		{name: "mine without expiry, re-entry", at: holding(me, "1", 0), count: 2, status: lua.Acquired, fields: mine(2), ttl: lease, raised: true},
		{name: "given to me, for longer than I asked for", at: holding(me, "0", long), count: 1, status: lua.Acquired, fields: mine(1), ttl: lease, raised: true},

		{name: "another's", at: holding(other, "1", long), count: 1, status: lua.Held, heldBy: long, fields: others("1"), ttl: long},
		{name: "another's twice", at: holding(other, "2", short), count: 1, status: lua.Held, heldBy: short, fields: others("2"), ttl: short},
		{name: "another's, re-entry", at: holding(other, "1", long), count: 2, status: lua.Lost, fields: others("1"), ttl: long},
		{name: "another's without expiry", at: holding(other, "1", 0), count: 1, status: lua.Held, heldBy: noExpiry, fields: others("1"), ttl: noExpiry},
		{name: "another's, garbage", at: holding(other, "x", long), count: 1, status: lua.Held, heldBy: long, fields: others("x"), ttl: long},

		{name: "mine, garbage", at: holding(me, "x", short), count: 1, err: "nil", fields: map[string]string{me: "x"}, ttl: short},
		{name: "mine, a fraction", at: holding(me, "1.5", short), count: 2, err: "not an integer", fields: map[string]string{me: "1.5"}, ttl: short},
		{name: "wrong type", at: text, count: 1, err: "WRONGTYPE", ttl: noExpiry},
		{name: "wrong type, re-entry", at: text, count: 2, err: "WRONGTYPE", ttl: noExpiry},
	} {
		for _, fenced := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/fenced=%v", row.name, fenced), func(t *testing.T) {
				t.Parallel()
				l := newLab(t, rdb)
				row.at(l)
				l.must("SET", l.fence, "41")
				a := lua.AcquireArgs{Name: l.name, Owner: me, Lease: lease, Count: row.count}
				token := int64(41)
				if fenced {
					a.Fence = l.fence
					if row.raised {
						token++
					}
				}
				for i := range 3 { // the first call and two repeats
					if i > 0 && fenced && row.count > 1 && row.raised {
						token++ // a re-entry never gets a token that may belong to another hold
					}
					got, err := lua.Acquire(t.Context(), rdb, a)
					if row.err != "" {
						var said *rueidis.RedisError
						require.ErrorAs(t, err, &said)
						require.ErrorContains(t, err, row.err)
						require.ErrorContains(t, err, "acquire script: ")
						require.Zero(t, got)
					} else {
						require.NoError(t, err)
						require.Equal(t, row.status, got.Status)
						if row.status == lua.Held {
							require.Equal(t, other, got.Holder)
						} else {
							require.Empty(t, got.Holder)
						}
						if row.heldBy > 0 {
							require.Less(t, (row.heldBy - got.TTL).Abs(), slack)
						} else {
							require.Equal(t, row.heldBy, got.TTL)
						}
						if fenced && got.Status == lua.Acquired {
							require.Equal(t, token, got.Token)
						} else {
							require.Zero(t, got.Token)
						}
					}
					l.requireFields(row.fields, row.err)
					l.requireTTL(row.ttl)
					if row.err == "" {
						require.Equal(t, token, l.number("GET", l.fence))
					}
				}
			})
		}
	}
}

func mine(count int) map[string]string      { return map[string]string{me: fmt.Sprint(count)} }
func others(count string) map[string]string { return map[string]string{other: count} }

func TestAcquireIsNoSuccessByDefault(t *testing.T) {
	t.Parallel()
	require.NotEqual(t, lua.Acquired, lua.AcquireReply{}.Status)
	var zero lua.Renewal
	require.NotEqual(t, lua.Renewed, zero)
}

// TestAcquireNeverShortens takes many steps with ever shorter leases.
func TestAcquireNeverShortens(t *testing.T) {
	t.Parallel()
	l := newLab(t, redistest.Dial(t, redistest.Shared(t)))
	a := lua.AcquireArgs{Name: l.name, Owner: me, Lease: long}
	for a.Count = 1; a.Count <= 5; a.Count++ {
		got, err := lua.Acquire(t.Context(), l.rdb, a)
		require.NoError(t, err)
		require.Equal(t, lua.Acquired, got.Status)
		l.requireTTL(long)
		require.Equal(t, mine(a.Count), l.fields())
		a.Lease = a.Lease * 2 / 3
	}
}

func TestFencingCounterStartsAtOneAndOutlivesTheHold(t *testing.T) {
	t.Parallel()
	l := newLab(t, redistest.Dial(t, redistest.Shared(t)))
	for want := int64(1); want <= 3; want++ {
		got, err := lua.Acquire(t.Context(), l.rdb, lua.AcquireArgs{Name: l.name, Fence: l.fence, Owner: me, Lease: lease, Count: 1})
		require.NoError(t, err)
		require.Equal(t, lua.AcquireReply{Status: lua.Acquired, Token: want}, got)
		require.EqualValues(t, -1, l.number("PTTL", l.fence))
		released, err := lua.Release(t.Context(), l.rdb, lua.ReleaseArgs{Name: l.name, Owner: me, Publish: lua.Publish{Name: l.channel}})
		require.NoError(t, err)
		require.Equal(t, freed, released)
	}
}

// A hold whose counter was deleted has no token.
func TestFencingCounterGoneUnderAHold(t *testing.T) {
	t.Parallel()
	l := newLab(t, redistest.Dial(t, redistest.Shared(t)))
	l.hold(me, "1", lease)
	got, err := lua.Acquire(t.Context(), l.rdb, lua.AcquireArgs{Name: l.name, Fence: l.fence, Owner: me, Lease: lease, Count: 1})
	require.NoError(t, err)
	require.Equal(t, lua.AcquireReply{Status: lua.Acquired}, got)
	require.Zero(t, l.number("EXISTS", l.fence))
}

// A failed acquire leaves no hold behind, although Redis does not roll back scripts.
func TestAcquireThatCannotFenceLeavesNothing(t *testing.T) {
	t.Parallel()
	rdb := redistest.Dial(t, redistest.Shared(t))
	for name, spoil := range map[string]func(lab){
		"wrong type": func(l lab) { l.must("HSET", l.fence, "a", "b") },
		"garbage":    func(l lab) { l.must("SET", l.fence, "x") },
		"exhausted":  func(l lab) { l.must("SET", l.fence, fmt.Sprint(int64(math.MaxInt64))) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, count := range []int{1, 2} {
				l := newLab(t, rdb)
				spoil(l)
				if count > 1 {
					l.hold(me, "1", short)
				}
				before, ttl := maps.Clone(l.fields()), l.ttl()
				_, err := lua.Acquire(t.Context(), rdb, lua.AcquireArgs{Name: l.name, Fence: l.fence, Owner: me, Lease: lease, Count: count})
				var said *rueidis.RedisError
				require.ErrorAs(t, err, &said)
				require.Equal(t, before, l.fields())
				l.requireTTL(min(ttl, short))
			}
		})
	}
}

func TestAcquireToldOfAVeryLongHold(t *testing.T) {
	t.Parallel()
	l := newLab(t, redistest.Dial(t, redistest.Shared(t)))
	l.hold(other, "1", lease)
	// As nanoseconds this wraps round to less than a millisecond.
	l.must("PEXPIRE", l.name, "18446744073710")
	got, err := lua.Acquire(t.Context(), l.rdb, lua.AcquireArgs{Name: l.name, Owner: me, Lease: lease, Count: 1})
	require.NoError(t, err)
	require.Equal(t, lua.AcquireReply{Status: lua.Held, TTL: math.MaxInt64, Holder: other}, got)
}
