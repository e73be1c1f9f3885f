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
	const want = 10
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
			reserves := func(counter, first, n int64) {
				t.Helper()
				gotFirst, got, err := lua.Reserve(t.Context(), l.rdb, l.name, l.fence, me, want)
				require.NoError(t, err)
				require.Equal(t, n, got)
				require.Equal(t, counter, l.number("GET", l.fence))
				if n > 0 {
					require.Equal(t, first, gotFirst)
				}
			}
			l.must("SET", l.fence, "7")
			if !row.owned {
				reserves(7, 0, 0)
				return
			}
			for last := int64(7); last < 7+3*want; last += want {
				reserves(last+want, last+1, want)
			}
			l.must("SET", l.fence, "9007199254740985") // fewer are left
			reserves(9007199254740986, 9007199254740986, 1)
			l.must("SET", l.fence, "-1")
			_, _, err := lua.Reserve(t.Context(), l.rdb, l.name, l.fence, me, want)
			requireSaid(t, err, "reserve script: TOKEN")
		})
	}
}
