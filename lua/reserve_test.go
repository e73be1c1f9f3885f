package lua_test

import (
	"testing"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/internal/require"
	"github.com/go-rlock/rlock/lua"
)

// Only the lock's holder can reserve tokens.
func TestReserve(t *testing.T) {
	t.Parallel()
	rdb := redistest.Dial(t, redistest.Shared(t))
	for _, row := range []struct {
		name  string
		at    state
		owned bool
	}{
		{"absent", absent, false},
		{"expired", expired(me), false},
		{"mine", holding(me, "1", long), true},
		{"another's", holding(other, "1", long), false},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, rdb)
			row.at(l)
			set := func(value string) {
				require.NoError(t, rdb.Do(t.Context(), rdb.B().Set().Key(l.fence).Value(value).Build()).Error())
			}
			counter := func() int64 {
				n, err := rdb.Do(t.Context(), rdb.B().Get().Key(l.fence).Build()).AsInt64()
				require.NoError(t, err)
				return n
			}
			const want = 10
			set("7")
			for last := int64(7); last < 7+3*want; last += want {
				first, n, err := lua.Reserve(t.Context(), rdb, l.name, l.fence, me, want)
				require.NoError(t, err)
				if !row.owned {
					require.Equal(t, int64(0), n)
					require.Equal(t, int64(7), counter())
					return
				}
				require.Equal(t, last+1, first)
				require.Equal(t, int64(want), n)
				require.Equal(t, last+want, counter())
			}
			set("9007199254740985") // fewer are left
			first, n, err := lua.Reserve(t.Context(), rdb, l.name, l.fence, me, want)
			require.NoError(t, err)
			require.Equal(t, int64(9007199254740986), first)
			require.Equal(t, int64(1), n)
			set("-1")
			_, _, err = lua.Reserve(t.Context(), rdb, l.name, l.fence, me, want)
			require.ErrorContains(t, err, "reserve script: TOKEN")
		})
	}
}
