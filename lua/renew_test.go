package lua_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/internal/require"
	"github.com/go-rlock/rlock/lua"
)

func TestRenewFromEveryState(t *testing.T) {
	t.Parallel()
	rdb := redistest.Dial(t, redistest.Shared(t))
	for _, row := range []struct {
		name   string
		at     state
		want   lua.Renewal
		err    string
		fields map[string]string
		ttl    time.Duration
	}{
		{name: "absent", at: absent, want: lua.Gone, ttl: noKey},
		{name: "expired", at: expired(me), want: lua.Gone, ttl: noKey},
		{name: "mine", at: holding(me, "1", short), want: lua.Renewed, fields: mine(1), ttl: lease},
		{name: "mine twice", at: holding(me, "2", short), want: lua.Renewed, fields: mine(2), ttl: lease},
		{name: "mine, later already", at: holding(me, "1", long), want: lua.Renewed, fields: mine(1), ttl: long},
		{name: "mine without expiry", at: holding(me, "1", 0), want: lua.Renewed, fields: mine(1), ttl: lease},
		{name: "mine, garbage", at: holding(me, "x", short), want: lua.Renewed, fields: map[string]string{me: "x"}, ttl: lease},
		{name: "another's", at: holding(other, "1", short), want: lua.Gone, fields: others("1"), ttl: short},
		{name: "another's without expiry", at: holding(other, "1", 0), want: lua.Gone, fields: others("1"), ttl: noExpiry},
		{name: "wrong type", at: text, want: lua.Gone, err: "WRONGTYPE", ttl: noExpiry},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, rdb)
			row.at(l)
			for range 3 {
				got, err := lua.Renew(t.Context(), rdb, lease, []lua.Hold{{Name: l.name, Owner: me}})
				require.NoError(t, err)
				require.Equal(t, []lua.Renewal{row.want}, got)
				l.requireFields(row.fields, row.err)
				l.requireTTL(row.ttl)
			}
		})
	}
}

func TestRenewBatchOfHundred(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	var labs []lab
	var holds []lua.Hold
	for range 100 {
		l := newLab(t, rdb)
		l.hold(me, "1", short)
		labs, holds = append(labs, l), append(holds, lua.Hold{Name: l.name, Owner: me})
	}
	_, err := lua.Renew(t.Context(), rdb, time.Second, holds) // the server knows the script from here on
	require.NoError(t, err)
	before := redistest.Commands(t, rdb)
	got, err := lua.Renew(t.Context(), rdb, lease, holds)
	require.NoError(t, err)
	after := redistest.Commands(t, rdb)
	require.EqualValues(t, 1, after["evalsha"]-before["evalsha"])
	require.EqualValues(t, 0, after["eval"]-before["eval"])
	require.Len(t, got, 100)
	for i, l := range labs {
		require.Equal(t, lua.Renewed, got[i])
		l.requireTTL(lease)
	}
}

// The state of a key never affects the other keys, wherever it stands.
func TestRenewMixedBatch(t *testing.T) {
	t.Parallel()
	rdb := redistest.Dial(t, redistest.Shared(t))
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
		t.Run(fmt.Sprint(shift), func(t *testing.T) {
			t.Parallel()
			var labs []lab
			var holds []lua.Hold
			for i := range 15 {
				l := newLab(t, rdb)
				kinds[(i+shift)%len(kinds)].at(l)
				labs, holds = append(labs, l), append(holds, lua.Hold{Name: l.name, Owner: me})
			}
			got, err := lua.Renew(t.Context(), rdb, lease, holds)
			require.NoError(t, err)
			for i, l := range labs {
				kind := kinds[(i+shift)%len(kinds)]
				require.Equal(t, kind.want, got[i], i)
				l.requireTTL(kind.ttl)
			}
		})
	}
}

// Two owners of one name appear when a batch contains an outdated entry.
func TestRenewSameNameTwice(t *testing.T) {
	t.Parallel()
	l := newLab(t, redistest.Dial(t, redistest.Shared(t)))
	l.hold(me, "1", short)
	got, err := lua.Renew(t.Context(), l.rdb, lease, []lua.Hold{{Name: l.name, Owner: other}, {Name: l.name, Owner: me}})
	require.NoError(t, err)
	require.Equal(t, []lua.Renewal{lua.Gone, lua.Renewed}, got)
	l.requireTTL(lease)
}

func TestRenewNothing(t *testing.T) {
	t.Parallel()
	got, err := lua.Renew(t.Context(), redistest.Dial(t, redistest.Shared(t)), lease, nil)
	require.NoError(t, err)
	require.Empty(t, got)
}
