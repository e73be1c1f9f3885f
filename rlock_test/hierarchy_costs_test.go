package rlock_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// TestCostsOfAHierarchy compares the commands of a change to one part with docs/locks.md: on a server, and on a cluster with the
// keys in one slot or in several. It prints the time of a section next to that of a Mutex.
func TestCostsOfAHierarchy(t *testing.T) {
	for _, deployment := range []string{"standalone", "cluster, one slot", "cluster, several slots"} {
		t.Run(deployment, func(t *testing.T) {
			redistest.Parallel(t)
			const sections, rounds = 30, 3
			var rdb rueidis.Client
			root := "{warehouse}"
			if deployment == "standalone" {
				rdb = redistest.Start(t).Client(t)
			} else {
				rdb = redistest.StartCluster(t, 3, 0).Client(t)
			}
			if deployment == "cluster, several slots" {
				root = "warehouse"
			}
			w := hierarchy{newClient(t, rdb), root}
			kinds := []struct {
				name    string
				of      func(i int) rlock.Locker
				scripts float64
			}{
				{"Mutex", func(i int) rlock.Locker { return w.shelf(i) }, 2},
				{"a whole and a part", w.change, 4},
				{"two levels and a part", func(i int) rlock.Locker { return w.changeIn(i, i) }, 6},
			}
			took := make([][]time.Duration, len(kinds))
			for round := range rounds {
				for k, kind := range kinds {
					l := kind.of(1)
					require.NoError(t, do(context.Background(), l, nothing)) // loads the scripts
					before := scriptsOf(t, rdb)
					began := time.Now()
					for range sections {
						require.NoError(t, do(context.Background(), l, nothing))
					}
					took[k] = append(took[k], time.Since(began)/sections)
					if scripts := float64(scriptsOf(t, rdb)-before) / sections; round > 0 {
						require.InDelta(t, kind.scripts, scripts, 0.2, kind.name)
					}
				}
			}
			for k, kind := range kinds {
				slices.Sort(took[k])
				t.Logf("%s: %v per section", kind.name, took[k][rounds/2].Round(time.Microsecond))
			}
		})
	}
}

// Goroutines of one process that change different parts share the read lock of the whole, for as long as HandOff.For lets them.
func TestPartsShareTheWhole(t *testing.T) {
	redistest.OnlyVirtual(t, "how much they share depends on how many come within 10 ms", func(t *testing.T) {
		const workers, sections = 8, 30
		rdb := redistest.Start(t).Client(t)
		w := hierarchy{newClient(t, rdb), "warehouse"}
		require.NoError(t, do(context.Background(), w.change(0), nothing)) // loads the scripts
		before := scriptsOf(t, rdb)
		var all sync.WaitGroup
		for i := range workers {
			all.Go(func() {
				l := w.change(i)
				for range sections {
					assert.NoError(t, do(context.Background(), l, nothing))
				}
			})
		}
		all.Wait()
		shared := float64(scriptsOf(t, rdb)-before) / (workers * sections)
		t.Logf("%.2f commands per section", shared)
		require.Less(t, shared, 3.0, "each alone needs 4")
	})
}

// scriptsOf returns the number of scripts that all nodes have run.
func scriptsOf(t *testing.T, rdb rueidis.Client) (n int64) {
	t.Helper()
	for _, node := range rdb.Nodes() {
		all := redistest.Commands(t, node)
		n += all["evalsha"] + all["eval"]
	}
	return n
}
