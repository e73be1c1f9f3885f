package rlock_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
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
		_, _, err := l.TryLock(context.Background(), 0)
		require.ErrorIs(t, err, rlock.ErrNotAcquired, l.Name())
	}
}

// A change to a part excludes other changes to that part and to any whole around it, in all processes, and nothing else.
func TestHierarchy(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
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
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		here, there := hierarchy{b.Client, b.name}, hierarchy{newClient(t, b.rdb), b.name}
		one := here.held(t, here.change(1))
		part := lockAsync(t, there.change(1)) // holds nothing while it waits
		b.awaitSubscribers(t, b.name+":shelf:1", 1)
		writer := lockAsync(t, there.whole().Write())
		redistest.Eventually(t, testTimeout, func() bool { return b.exists(t, "rlock_writers:{"+b.name+"}") }, "the writer waits")
		sleep(rlock.DefaultHandOffFor) // until then later readers of the process may join its hold
		here.refused(t, here.change(2))
		one()
		got := writer.get(t, testTimeout)
		require.NoError(t, got.err)
		here.refused(t, here.change(1), here.change(2))
		require.NoError(t, got.unlock())
		part.getAndUnlock(t, testTimeout)
		rwNothing(t, b.rdb, b.name)
	})
}

// G1: the same under contention in several processes, with moves between two shelves in any order. No two sections overlap where
// only one may run.
func TestHierarchyUnderContention(t *testing.T) {
	redistest.Parallel(t)
	const aisles, shelves = 2, 4 // shelves in all
	run := func(t *testing.T, trees []hierarchy, rdb rueidis.Client) {
		t.Helper()
		var whole rwExclusion
		whole.t = t
		var inAisle, inShelf [shelves]atomic.Int32
		alone := func(at *atomic.Int32, what string) func() {
			assert.Equal(t, int32(1), at.Add(1), what)
			return func() { at.Add(-1) }
		}
		var wg sync.WaitGroup
		for i := range 8 {
			w := trees[i%len(trees)]
			wg.Go(func() {
				r := rand.New(rand.NewPCG(1, uint64(i)))
				for turn := range 20 {
					from, to, what := r.IntN(shelves), r.IntN(shelves), (i+turn)%4
					var l rlock.Locker
					switch what {
					case 0:
						l = w.whole().Write()
					case 1:
						l = w.changeAisle(from % aisles)
					case 2:
						l = w.changeIn(from%aisles, from)
					default: // a move
						l = rlock.All(w.shelf(from), w.aisle(from%aisles).Read(), w.shelf(to), w.aisle(to%aisles).Read(), w.whole().Read())
					}
					ctx, unlock, err := l.Lock(context.Background())
					if !assert.NoError(t, err) {
						return
					}
					var done []func()
					if what == 0 {
						done = append(done, whole.write(0))
					} else {
						done = append(done, whole.read())
					}
					switch what {
					case 1:
						done = append(done, alone(&inAisle[from%aisles], "goroutines that hold the aisle"))
						for i := range inShelf {
							assert.True(t, i%aisles != from%aisles || inShelf[i].Load() == 0, "no shelf of the locked aisle is in use")
						}
					case 2, 3:
						assert.Zero(t, inAisle[from%aisles].Load(), "goroutines that hold the aisle of the shelf")
						done = append(done, alone(&inShelf[from], "goroutines that hold the shelf"))
						if what == 3 && to != from {
							assert.Zero(t, inAisle[to%aisles].Load(), "goroutines that hold the aisle of the shelf")
							done = append(done, alone(&inShelf[to], "goroutines that hold the shelf"))
						}
					}
					sleep(time.Duration(r.IntN(1000)) * time.Microsecond)
					assert.NoError(t, ctx.Err())
					for _, leave := range slices.Backward(done) {
						leave()
					}
					assert.NoError(t, unlock())
				}
			})
		}
		wg.Wait()
		rwNothing(t, rdb, trees[0].root)
	}
	redistest.RunVirtual(t, "standalone", func(t *testing.T) {
		s := redistest.Start(t)
		run(t, []hierarchy{{newClient(t, s.Client(t)), "warehouse"}, {newClient(t, s.Client(t)), "warehouse"}}, s.Client(t))
	})
	t.Run("cluster", func(t *testing.T) {
		c := redistest.StartCluster(t, 3, 0)
		for slots, root := range map[string]string{"one slot": "{warehouse}", "several slots": "warehouse"} {
			t.Run(slots, func(t *testing.T) {
				run(t, []hierarchy{{newClient(t, c.Client(t)), root}, {newClient(t, c.Client(t)), root}}, c.Client(t))
			})
		}
	})
}
