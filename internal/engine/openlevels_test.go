package engine

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/internal/require"
)

// counted is what a tenure says of its levels.
type counted struct {
	levels  bool
	count   int32
	renewed time.Duration
	last    *Hold
	depths  map[*Hold]int32
}

func countedOf(t *Tenure) (c counted) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c.levels, c.count = t.open()
	c.renewed, c.last, c.depths = t.renewed(), t.hold, make(map[*Hold]int32)
	for h := range t.holds {
		c.depths[h] = h.count
	}
	return c
}

// What a tenure says of its levels is what they say one by one, in whatever order they open and close.
func TestOpenLevelsAreCounted(t *testing.T) {
	t.Parallel()
	c := startEngine(t, redistest.Dial(t, redistest.Shared(t)), silent{})
	c.Options.HandOff.For = time.Hour
	name := redistest.Name(t)
	specs := make([]*Lock, 4)
	for i := range specs {
		specs[i] = c.NewLock(name, kinds.Read, name, Terms{})
	}
	specs[1].Lease, specs[2].Watchdog, specs[3].Watchdog = 20*time.Second, 31*time.Second, 32*time.Second
	var open []*Level
	check := func() {
		t.Helper()
		depths, renewed := make(map[*Tenure]map[*Hold]int32), make(map[*Tenure]time.Duration)
		for _, l := range open {
			of := l.hold.tenure
			if depths[of] == nil {
				depths[of] = make(map[*Hold]int32)
			}
			depths[of][l.hold]++
			renewed[of] = max(renewed[of], l.lock.RenewedFor(c))
		}
		for of, depths := range depths {
			got := countedOf(of)
			require.True(t, got.levels)
			require.Equal(t, slices.Max(slices.Collect(maps.Values(depths))), got.count)
			require.Equal(t, renewed[of], got.renewed)
			require.True(t, depths[got.last] > 0)
			require.Equal(t, depths, got.depths)
		}
	}
	for step := range 3000 {
		grows := rand.IntN(30) < 10+min(len(open), 5)-len(open)/8 || step < 5
		if len(open) > 0 && !grows {
			i := rand.IntN(len(open))
			require.NoError(t, open[i].Unlock())
			open = slices.Delete(open, i, i+1)
			check()
			continue
		}
		m, ctx := specs[0], context.Background()
		if len(open) > 0 && rand.IntN(2) == 0 {
			m, ctx = specs[rand.IntN(len(specs))], context.WithoutCancel(open[rand.IntN(len(open))]) // an outer level may have ended
		}
		l, err := m.Lock(CallerNow(ctx))
		require.NoError(t, err)
		open = append(open, l)
		check()
	}
	for _, l := range open {
		require.NoError(t, l.Unlock())
	}
}
