package rlock_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// hierarchy has the locks of the example in docs/locks.md: a warehouse with aisles and shelves.
type hierarchy struct {
	client *rlock.Client
	root   string
}

func (w hierarchy) whole() *rlock.RWMutex { return w.client.RWMutex(w.root) }
func (w hierarchy) aisle(i int) *rlock.RWMutex {
	return w.client.RWMutex(fmt.Sprintf("%s:aisle:%d", w.root, i))
}
func (w hierarchy) shelf(i int) *rlock.Mutex {
	return w.client.Mutex(fmt.Sprintf("%s:shelf:%d", w.root, i))
}
func (w hierarchy) change(shelf int) rlock.Locker { return rlock.All(w.whole().Read(), w.shelf(shelf)) }

// changeIn locks a shelf for a change, with its aisle in between; changeAisle locks an aisle with all its shelves.
func (w hierarchy) changeIn(aisle, shelf int) rlock.Locker {
	return rlock.All(w.whole().Read(), w.aisle(aisle).Read(), w.shelf(shelf))
}

func (w hierarchy) changeAisle(aisle int) rlock.Locker {
	return rlock.All(w.aisle(aisle).Write(), w.whole().Read())
}

func (w hierarchy) held(t testing.TB, l rlock.Locker) func() {
	t.Helper()
	_, unlock, err := l.TryLock(context.Background(), 0)
	require.NoError(t, err)
	return func() { require.NoError(t, unlock()) }
}

func (w hierarchy) refused(t testing.TB, all ...rlock.Locker) {
	t.Helper()
	for _, l := range all {
		refusalOf(t, l, 0)
	}
}

// A change to a part excludes other changes to that part and to any whole around it, in all processes, and nothing else.
func TestHierarchy(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		here, there := hierarchy{b.Client, b.name}, hierarchy{newClient(t, b.rdb), b.name}

		one, two := here.held(t, here.change(1)), there.held(t, there.change(2))
		here.refused(t, here.whole().Write(), here.change(2))
		there.refused(t, there.whole().Write(), there.change(1))
		one()
		there.refused(t, there.whole().Write())
		two()
		all := here.held(t, here.whole().Write())
		there.refused(t, there.change(1), there.changeAisle(1))
		all()

		one, two = here.held(t, here.changeIn(1, 11)), there.held(t, there.changeIn(2, 21))
		there.refused(t, there.changeAisle(1), there.whole().Write())
		one()
		one = there.held(t, there.changeAisle(1))
		here.refused(t, here.changeIn(1, 12), here.changeAisle(1), here.whole().Write())
		three := here.held(t, here.changeIn(2, 22))
		three()
		two()
		one()
		rwNothing(t, b.rdb, b.name)
	})
}

// A writer of the whole gets in before later changes to parts. A caller that waits for a part keeps nobody else out.
func TestHierarchyDoesNotStarveTheWhole(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		here, there := hierarchy{b.Client, b.name}, hierarchy{newClient(t, b.rdb), b.name}
		one := here.held(t, here.change(1))
		part := lockAsync(t, there.change(1)) // holds nothing while it waits
		b.awaitSubscribers(t, b.name+":shelf:1", 1)
		writer := lockAsync(t, there.whole().Write())
		redistest.Eventually(t, testTimeout, func() bool { return b.exists(t, "rlock_writers:{"+b.name+"}") }, "the writer waits")
		sleep(rlock.DefaultHandOffFor) // until then later readers of the process may join its hold
		here.refused(t, here.change(2))
		one()
		got := writer.gets(t, testTimeout)
		here.refused(t, here.change(1), here.change(2))
		require.NoError(t, got.unlock())
		part.getAndUnlock(t, testTimeout)
		rwNothing(t, b.rdb, b.name)
	})
}

// G1: the same under contention in several processes, with moves between two shelves in any order. No two sections overlap where
// only one may run.
func TestHierarchyUnderContention(t *testing.T) {
	redistest.RunVirtual(t, "standalone", func(t *testing.T) {
		s := redistest.Start(t)
		contendInAHierarchy(t, []hierarchy{{newClient(t, s.Client(t)), "warehouse"}, {newClient(t, s.Client(t)), "warehouse"}}, s.Client(t))
	})
}

// The same on a cluster.
func TestHierarchyUnderContentionOnACluster(t *testing.T) {
	c := redistest.SharedCluster(t)
	redistest.Parallel(t)
	for slots, root := range map[string]string{"one slot": "{%s}", "several slots": "%s"} {
		t.Run(slots, func(t *testing.T) {
			root := fmt.Sprintf(root, redistest.Name(t))
			contendInAHierarchy(t, []hierarchy{{newClient(t, c.Client(t)), root}, {newClient(t, c.Client(t)), root}}, c.Client(t))
		})
	}
}

// contendInAHierarchy is the work of both.
func contendInAHierarchy(t *testing.T, trees []hierarchy, rdb rueidis.Client) {
	t.Helper()
	const aisles, shelves = 2, 4 // shelves in all
	whole := &rwExclusion{t: t}
	var aisle, shelf [shelves]*rwExclusion
	for i := range shelves {
		aisle[i], shelf[i] = &rwExclusion{t: t}, &rwExclusion{t: t}
	}
	var wg sync.WaitGroup
	for i := range 8 {
		w := trees[i%len(trees)]
		wg.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(i)))
			for turn := range 20 {
				from, to := r.IntN(shelves), r.IntN(shelves)
				fromAisle, toAisle := from%aisles, to%aisles
				var l rlock.Locker
				var writes, reads []*rwExclusion
				switch (i + turn) % 4 {
				case 0:
					l, writes = w.whole().Write(), append(writes, whole)
				case 1:
					l, writes, reads = w.changeAisle(fromAisle), append(writes, aisle[fromAisle]), append(reads, whole)
				case 2:
					l, writes, reads = w.changeIn(fromAisle, from), append(writes, shelf[from]), append(reads, whole, aisle[fromAisle])
				default: // a move
					l = rlock.All(w.shelf(from), w.aisle(fromAisle).Read(), w.shelf(to), w.aisle(toAisle).Read(), w.whole().Read())
					writes, reads = append(writes, shelf[from]), append(reads, whole, aisle[fromAisle], aisle[toAisle])
					if to != from {
						writes = append(writes, shelf[to])
					}
				}
				ctx, unlock, err := l.Lock(context.Background())
				if !assert.NoError(t, err) {
					return
				}
				var done []func()
				for _, at := range writes {
					done = append(done, at.write(0))
				}
				for _, at := range reads {
					done = append(done, at.read())
				}
				sleep(time.Duration(r.IntN(1000)) * time.Microsecond)
				assert.NoError(t, ctx.Err())
				for _, leave := range done {
					leave()
				}
				assert.NoError(t, unlock())
			}
		})
	}
	wg.Wait()
	rwNothing(t, rdb, trees[0].root)
}

// A change to one part costs what docs/locks.md says: on a server, and on a cluster with the keys in one slot or in several. It prints the
// time of a section next to that of a Mutex.
func TestCostsOfAHierarchy(t *testing.T) {
	redistest.Parallel(t)
	one, cluster := redistest.Start(t).Client(t), redistest.StartCluster(t, 3, 0).Client(t)
	for name, row := range map[string]struct {
		rdb  rueidis.Client
		root string
	}{
		"standalone": {one, "warehouse"}, "cluster, one slot": {cluster, "{warehouse}"}, "cluster, several slots": {cluster, "warehouse"},
	} {
		t.Run(name, func(t *testing.T) { // one after the other: all scripts are counted
			const sections = 90
			rdb := row.rdb
			w := hierarchy{newClient(t, rdb), row.root}
			for _, row := range []struct {
				l       rlock.Locker
				scripts float64
			}{{w.shelf(1), 2}, {w.change(1), 4}, {w.changeIn(1, 1), 6}} {
				for range 10 {
					lockAndUnlock(t, row.l) // loads the scripts
				}
				before, began := scriptsOf(t, rdb), time.Now()
				for range sections {
					require.NoError(t, do(context.Background(), row.l, nothing))
				}
				t.Logf("%s: %v per section", row.l.Name(), (time.Since(began) / sections).Round(time.Microsecond))
				require.InDelta(t, row.scripts, float64(scriptsOf(t, rdb)-before)/sections, 0.2, row.l.Name())
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
func scriptsOf(t *testing.T, rdb rueidis.Client) int64 {
	t.Helper()
	all := redistest.Commands(t, rdb)
	return all["evalsha"] + all["eval"]
}
