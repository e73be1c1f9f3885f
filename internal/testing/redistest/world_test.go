package redistest_test

import (
	"testing"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
)

// A test that runs in both worlds, and settles, fails in the virtual one, too.
func TestSettleIsOnlyVirtual(t *testing.T) {
	for world, enter := range map[string]func(testing.TB){"real": func(testing.TB) {}, "both": redistest.InBothWorlds} {
		t.Run(world, func(t *testing.T) {
			f := &fatal{TB: t}
			enter(f)
			require.PanicsWithValue(t, f, func() { redistest.Settle(f) })
			require.Contains(t, f.msg, "call OnlyVirtual")
		})
	}
}
