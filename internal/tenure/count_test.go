package tenure_test

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/engine"
	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/internal/tenure"
	"github.com/go-rlock/rlock/internal/testing/enginetest"
	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
)

// A tenure says of its levels what they say one by one, in whatever order they open and close.
func TestOpenLevelsAreCounted(t *testing.T) {
	t.Parallel()
	c := enginetest.Start(t, redistest.Dial(t, redistest.Shared(t)))
	c.Options.HandOff.For = time.Hour
	name := redistest.Name(t)
	locks := make([]*tenure.Lock, 4)
	for i, terms := range []tenure.Terms{{}, {Lease: 20 * time.Second}, {Watchdog: 31 * time.Second}, {Watchdog: 32 * time.Second}} {
		locks[i] = c.NewLock(name, kinds.Read, name, terms)
	}
	var open []*tenure.Level
	check := func() {
		t.Helper()
		depths, renewed := make(map[*tenure.Tenure]map[*tenure.Hold]int32), make(map[*tenure.Tenure]time.Duration)
		for _, l := range open {
			of := l.Hold.Tenure
			if depths[of] == nil {
				depths[of] = make(map[*tenure.Hold]int32)
			}
			depths[of][l.Hold]++
			renewed[of] = max(renewed[of], l.Lock.RenewedFor(c))
		}
		for of, depths := range depths {
			got := tenure.CountedOf(of)
			require.True(t, got.Levels)
			require.Equal(t, slices.Max(slices.Collect(maps.Values(depths))), got.Count)
			require.Equal(t, renewed[of], got.Renewed)
			require.True(t, depths[got.Last] > 0)
			require.Equal(t, depths, got.Depths)
		}
	}
	for step := range 3000 {
		grows := rand.IntN(30) < 10+min(len(open), 5)-len(open)/8 || step < 5
		if len(open) > 0 && !grows {
			i := rand.IntN(len(open))
			require.NoError(t, engine.Unlock(open[i]))
			open = slices.Delete(open, i, i+1)
			check()
			continue
		}
		m, ctx := locks[0], context.Background()
		if len(open) > 0 && rand.IntN(2) == 0 {
			m, ctx = locks[rand.IntN(len(locks))], context.WithoutCancel(open[rand.IntN(len(open))]) // an outer level may have ended
		}
		l, err := engine.Lock(m, tenure.CallerNow(ctx))
		require.NoError(t, err)
		open = append(open, l)
		check()
	}
	for _, l := range open {
		require.NoError(t, engine.Unlock(l))
	}
}
