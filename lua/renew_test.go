package lua_test

import (
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
	"github.com/go-rlock/rlock/lua"
)

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
