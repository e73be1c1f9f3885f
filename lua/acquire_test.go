package lua_test

import (
	"fmt"
	"maps"
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
			if got.TTL <= ttl && got.TTL > ttl-slack {
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

// A hold whose counter was deleted has no token.
func TestFencingCounterGoneUnderAHold(t *testing.T) {
	t.Parallel()
	l := newLab(t, redistest.Dial(t, redistest.Shared(t)))
	l.hold(me, "1", lease)
	a := l.wants(me)
	a.Fence = l.fence
	require.Equal(t, lua.AcquireReply{Status: lua.Acquired}, l.acquire(a))
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
				a := l.wants(me)
				a.Fence, a.Count = l.fence, count
				_, err := lua.Acquire(t.Context(), rdb, a)
				requireSaid(t, err)
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
