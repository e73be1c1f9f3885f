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

// TestCostsOfAHierarchy checks the costs in docs/locks.md of a change to one part: the commands of a section, on a server and on a cluster,
// with a name for the whole and the parts in the same slot or in several. It also prints the duration of sections, beside those of a Mutex.
func TestCostsOfAHierarchy(t *testing.T) {
	redistest.Parallel(t)
	for _, deployment := range []string{"standalone", "cluster, one slot", "cluster, several slots"} {
		t.Run(deployment, func(t *testing.T) {
			redistest.Parallel(t)
			const sections, rounds = 100, 3
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
					require.NoError(t, do(context.Background(), l, nothing)) // the scripts are known then
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
				t.Logf("%s: %v a section", kind.name, took[k][rounds/2].Round(time.Microsecond))
			}

			// Goroutines of one process that change parts of their own share the whole.
			const workers = 8
			before := scriptsOf(t, rdb)
			var wg sync.WaitGroup
			for i := range workers {
				wg.Go(func() {
					l := w.change(i)
					for range sections {
						assert.NoError(t, do(context.Background(), l, nothing))
					}
				})
			}
			wg.Wait()
			shared := float64(scriptsOf(t, rdb)-before) / (workers * sections)
			t.Logf("%d goroutines with parts of their own: %.1f commands a section", workers, shared)
			require.Less(t, shared, 3.0)
		})
	}
}

// scriptsOf is how many scripts all nodes have run.
func scriptsOf(t *testing.T, rdb rueidis.Client) (n int64) {
	t.Helper()
	for _, node := range rdb.Nodes() {
		all := redistest.Commands(t, node)
		n += all["evalsha"] + all["eval"]
	}
	return n
}
