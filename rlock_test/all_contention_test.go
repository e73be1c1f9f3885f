package rlock_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// crowd is a contention test: goroutines of several clients lock random subsets of the names.
type crowd struct {
	names   []string
	lock    func(client int, names []string) []rlock.Locker // the locks of client number client
	clients int
	enough  func() bool // reports whether there were enough faults to end the test; nil if there are none
}

// G1: many goroutines of several clients lock some of the names, in random order, or just one name. No two goroutines are inside
// the same lock, every goroutine gets in, and no key is left. Some callers cancel at a random moment.
func (c crowd) run(t *testing.T, goroutines int, d time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	inside := make([]atomic.Int32, len(c.names))
	var all, alone, gaveUp atomic.Int64
	end := time.Now().Add(d)
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(uint64(g), 1))
			for sections := 0; ctx.Err() == nil && (time.Now().Before(end) || sections < 2 || c.enough != nil && !c.enough()); {
				which := random.Perm(len(c.names))[:1+random.IntN(len(c.names))]
				var names []string
				for _, i := range which {
					names = append(names, c.names[i])
				}
				lockers := c.lock(g%c.clients, names)
				var m interface {
					Do(context.Context, func(context.Context) error) error
				} = rlock.All(lockers...)
				ctx, cancel := context.WithCancel(ctx)
				if random.IntN(4) == 0 {
					time.AfterFunc(time.Duration(random.IntN(3000))*time.Microsecond, cancel)
				}
				entered := false
				err := m.Do(ctx, func(ctx context.Context) error {
					entered = true
					for _, i := range which {
						assert.EqualValues(t, 1, inside[i].Add(1), "goroutines inside %s", c.names[i])
					}
					sleep(time.Duration(random.IntN(1000)) * time.Microsecond)
					for _, i := range which {
						inside[i].Add(-1)
					}
					return nil
				})
				switch {
				case !entered:
					assert.ErrorIs(t, err, rlock.ErrNotAcquired)
					assert.ErrorIs(t, err, context.Canceled)
					gaveUp.Add(1)
				case len(which) == 1:
					alone.Add(1)
				default:
					all.Add(1)
				}
				if entered {
					assert.NoError(t, err)
					sections++
				}
				cancel()
			}
		})
	}
	wg.Wait()
	t.Logf("%d sections with several locks, %d with one, %d callers gave up", all.Load(), alone.Load(), gaveUp.Load())
	require.NoError(t, ctx.Err(), "some goroutines did not get in")
	require.Positive(t, all.Load())
	require.Positive(t, alone.Load())
	require.Positive(t, gaveUp.Load())
}

// G1, G4, G5: exclusion, wake-ups and cleanup with two clients and 24 goroutines on one server.
func TestAllUnderContention(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		clients := []*rlock.Client{newClient(t, s.Client(t)), newClient(t, s.Client(t))}
		crowd{
			names: numbered("crowd", 5), clients: 2,
			lock: func(client int, names []string) []rlock.Locker { return mutexes(clients[client], names...) },
		}.run(t, 24, 20*time.Millisecond)
		fixture{rdb: s.Client(t)}.clear(t)
	})
}

// G1, G4 to G6: the same while the test keeps cutting the connections of both clients, one after the other, at random moments.
func TestAllUnderContentionAndCuts(t *testing.T) {
	redistest.OnlyVirtual(t, "on a slow machine the cuts may interrupt every retry of a call", func(t *testing.T) {
		s := redistest.Start(t)
		var clients []*rlock.Client
		var proxies []*redistest.Proxy
		for range 2 {
			p := redistest.StartProxy(t, s.Addr())
			p.Delay(100 * time.Microsecond)
			proxies, clients = append(proxies, p), append(clients, newClient(t, redistest.Dial(t, p.Addr())))
		}
		ctx, stop := context.WithCancel(context.Background())
		var cuts atomic.Int64
		stopped := async(func() error { // ends after the crowd
			for ctx.Err() == nil {
				sleep(5*time.Millisecond + rand.N(20*time.Millisecond))
				proxies[cuts.Add(1)%2].CutAll()
			}
			return nil
		})
		crowd{
			names: numbered("crowd", 4), clients: 2, enough: func() bool { return cuts.Load() > 10 },
			lock: func(client int, names []string) []rlock.Locker { return mutexes(clients[client], names...) },
		}.run(t, 12, 20*time.Millisecond)
		stop()
		require.NoError(t, <-stopped)
		fixture{rdb: s.Client(t)}.clear(t)
	})
}

// G1, G4, G5 on a cluster, where two of the names share a slot.
func TestAllUnderContentionOnACluster(t *testing.T) {
	redistest.Parallel(t)
	cl := redistest.StartCluster(t, 3, 0)
	clients := []*rlock.Client{newClient(t, cl.Client(t)), newClient(t, cl.Client(t))}
	crowd{
		names: []string{"a{1}", "b{1}", "c{2}", "d{3}", "e"}, clients: 2,
		lock: func(client int, names []string) []rlock.Locker { return mutexes(clients[client], names...) },
	}.run(t, 16, time.Second)
	for _, node := range cl.Nodes() {
		fixture{rdb: node.Client(t, redistest.Single)}.clear(t)
	}
}

// G1, G4, G5 with locks on two servers. Two processes lock them, each with its own Client for each server.
func TestAllUnderContentionOnTwoServers(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		servers := []*redistest.Server{redistest.Start(t), redistest.Start(t)}
		var clients [2][2]*rlock.Client
		for i := range clients {
			for k, s := range servers {
				clients[i][k] = newClient(t, s.Client(t))
			}
		}
		names := numbered("crowd", 5)
		crowd{names: names, clients: 2, lock: func(client int, some []string) (all []rlock.Locker) {
			for _, name := range some {
				all = append(all, clients[client][slices.Index(names, name)%2].Mutex(name))
			}
			return all
		}}.run(t, 16, 20*time.Millisecond)
		for _, s := range servers {
			fixture{rdb: s.Client(t)}.clear(t)
		}
	})
}

// All succeeds even if its locks are never free at the same moment. Goroutines of two processes queue for each of two locks, so
// each lock passes directly from holder to holder.
func TestAllOfLocksThatAreNeverFree(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		names := numbered("busy", 2)
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()
		var sections atomic.Int64
		for range 2 {
			c := newClient(t, s.Client(t))
			for _, name := range names {
				for range 3 {
					wg.Go(func() {
						for ctx.Err() == nil {
							_ = c.Mutex(name).Do(ctx, func(context.Context) error {
								sleep(2 * time.Millisecond)
								sections.Add(1)
								return nil
							})
						}
					})
				}
			}
		}
		redistest.Eventually(t, testTimeout, func() bool { return sections.Load() > 20 }, "both locks are in use")
		m := rlock.All(mutexes(newClient(t, s.Client(t)), names...)...)
		for range 3 {
			p := lockAsync(t, m)
			p.getAndUnlock(t, 15*time.Second)
		}
	})
}

// changesPlaces is a fake lock that is never free together with another lock: its Lock takes the other one through another Client.
// A climb is the phase in which All keeps the locks it has while it waits for the next. After some climbs the fake lets All in.
type changesPlaces struct {
	*fakeLocker

	other  rlock.Locker // the lock that Lock takes, through another Client
	climbs int
	waits  []time.Duration // the wait that each climb allowed for this lock
}

func (c *changesPlaces) Lock(ctx context.Context) (context.Context, rlock.UnlockFunc, error) {
	_, unlock, err := c.other.Lock(context.Background())
	return ctx, unlock, err
}

func (c *changesPlaces) TryLock(ctx context.Context, wait time.Duration) (context.Context, rlock.UnlockFunc, error) {
	if wait > 0 {
		c.waits = append(c.waits, wait)
		if len(c.waits) > c.climbs {
			return ctx, func() error { return nil }, nil
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
	return ctx, func() error { return rlock.ErrNotHeld }, rlock.ErrNotAcquired
}

// G2: a climb ends well before the locks it already holds can expire, so that the section starts with most of their lease left. No
// climb waits longer than half of the lease.
func TestAllClimbsWithinItsShortestLease(t *testing.T) {
	const lease = 300 * time.Millisecond
	for name, option := range map[string]rlock.Option{"lease": rlock.WithLease(lease), "longest hold": rlock.WithMaxHold(lease)} {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			b := newFixture(t)
			places := &changesPlaces{
				fakeLocker: &fakeLocker{name: b.name + ":b"}, other: newClient(t, b.rdb).Mutex(b.name + ":a"), climbs: 4, // 50, 100, 200 ms, 400 ms
			}
			_, unlock, err := rlock.All(b.Mutex(b.name+":a", option), places).Lock(context.Background())
			require.NoError(t, err)
			require.NoError(t, unlock())
			for _, wait := range places.waits {
				require.LessOrEqual(t, wait, lease/2)
			}
		})
	}
}

// If All loses a lock while it climbs, for example to a forced unlock, the caller sees no error: All starts over.
func TestAllLosesALockWhileItClimbs(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		name := b.name + ":a"
		places := &changesPlaces{fakeLocker: &fakeLocker{name: b.name + ":b"}, other: newClient(t, b.rdb).Mutex(name), climbs: 1}
		forced := forcedOpen{places, b.Mutex(name)}
		_, unlock, err := rlock.All(b.Mutex(name), forced).Lock(context.Background())
		require.NoError(t, err)
		require.NoError(t, unlock())
		require.Len(t, places.waits, 2)
	})
}

// forcedOpen force-unlocks the other lock during each climb, and locks it again so that All learns of the loss.
type forcedOpen struct {
	*changesPlaces

	held *rlock.Mutex
}

func (f forcedOpen) TryLock(ctx context.Context, wait time.Duration) (context.Context, rlock.UnlockFunc, error) {
	if wait > 0 && len(f.waits) < f.climbs {
		_, _ = f.held.ForceUnlock(context.WithoutCancel(ctx))
		if _, unlock, err := f.held.Lock(context.WithoutCancel(ctx)); err == nil {
			_ = unlock()
		}
		f.changesPlaces.waits = append(f.changesPlaces.waits, wait)
		<-ctx.Done()
		return ctx, func() error { return rlock.ErrNotHeld }, ctx.Err()
	}
	return f.changesPlaces.TryLock(ctx, wait)
}
