package rlock_test

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// G5, G6: the connection is cut before the reply to Lock, and again before the reply to unlock. The repeated calls count only once,
// and no key is left.
func TestAllRepliesLost(t *testing.T) {
	inBothWays(t, func(t *testing.T, way func(*rueidis.ClientOption)) {
		c, proxy, b := behindProxy(t, way)
		names := numbered(b.name, 3)
		m := rlock.All(mutexes(c, names...)...)
		lockAndUnlock(t, m) // loads the scripts
		proxy.OnReply(redistest.Nth(1, "EVALSHA", redistest.Cut))
		hold := locked(t, m)
		for _, name := range names {
			require.Equal(t, []int64{1}, slices.Collect(maps.Values(b.fields(t, name))))
		}
		proxy.OnReply(redistest.Nth(1, "EVALSHA", redistest.Cut))
		require.NoError(t, hold.unlock())
		require.Zero(t, b.size(t))
	})
}

// G5: a caller cancels while its call for several locks is under way, and Redis answers later. All that it granted is given back by one call,
// also if that is refused at first.
func TestAllIsCancelledWhileItAsks(t *testing.T) {
	for name, then := range map[string]func(p *redistest.Proxy){
		"given back": func(*redistest.Proxy) {},
		"swept": func(p *redistest.Proxy) {
			p.OnRequest(redistest.Nth(1, "EVALSHA", redistest.Fail("OOM command not allowed")))
		},
	} {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			h := newLeavingCallers(t, anyWay)
			names := append(numbered(h.name, 2), h.name)
			m := rlock.All(mutexes(h.Client, names...)...)
			lockAndUnlock(t, m) // loads the scripts
			p := h.asks(t, m)
			sleep(200 * time.Millisecond) // longer than Redis takes to answer
			left := time.Now()
			p.cancel()
			got := p.get(t, testTimeout)
			requireTook(t, 0, left, got.at)
			require.ErrorIs(t, got.err, rlock.ErrNotAcquired)
			require.ErrorIs(t, got.err, rlock.ErrUnreachable)
			require.ErrorIs(t, got.err, context.Canceled)
			then(h.proxy)
			h.proxy.Release()
			redistest.Eventually(t, rlock.DefaultWatchdogTimeout/2, func() bool {
				return !slices.ContainsFunc(names, func(name string) bool { return h.exists(t, name) })
			}, "the locks are released before their lease ends")
			h.clear(t)
		})
	}
}

// G5: while Redis is down, calls fail with ErrUnreachable within the time that they take for a single lock. The error is not
// ErrNotAcquired unless the caller asked for a bounded wait. Once Redis is back, the locks work again.
func TestAllWhenRedisIsDown(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		c := newClient(t, s.Client(t))
		m := rlock.All(mutexes(c, numbered("down", 50)...)...)
		hold := locked(t, m)
		s.Stop()
		began := time.Now()
		require.ErrorIs(t, hold.unlock(), rlock.ErrUnreachable)
		_, _, err := m.TryLock(context.Background(), 0)
		require.ErrorIs(t, err, rlock.ErrUnreachable)
		require.ErrorIs(t, err, rlock.ErrNotAcquired)
		_, _, err = m.Lock(context.Background())
		require.ErrorIs(t, err, rlock.ErrUnreachable)
		require.NotErrorIs(t, err, rlock.ErrNotAcquired)
		requireTookAtMost(t, 3*3*time.Second, began, time.Now())
		s.Restart()
		lockAndUnlock(t, m)
	})
}

// While a cluster slot moves, some keys are on the old node and others on the new one, so no script can touch them together. All
// then takes and releases the locks one by one.
func TestAllWhileASlotMoves(t *testing.T) {
	redistest.Parallel(t)
	cl := redistest.StartCluster(t, 3, 0)
	b := fixture{Client: newClient(t, cl.Client(t)), rdb: cl.Client(t)}
	names := []string{"a{x}", "b{x}", "c{x}"}
	m := rlock.All(mutexes(b.Client, names...)...)
	hold := locked(t, m)
	slot := cl.Slot(t, names[0])
	from, to := cl.BeginMove(t, slot, names[1])
	require.NoError(t, hold.unlock())
	began := time.Now()
	lockAndUnlock(t, m)
	require.Less(t, redistest.Ran(t, began, time.Now()), soon)
	cl.MigrateSlot(t, slot, from, to) // completes the move
	lockAndUnlock(t, m)
	for _, name := range names {
		require.False(t, b.exists(t, name))
	}
}

// With Options.Replicas each lock needs its confirmation by a replica, with a command of its own. Without a replica, All fails with
// ErrNotReplicated and leaves no key.
func TestAllWithReplicas(t *testing.T) {
	redistest.Parallel(t) // without WAIT in memory
	s := redistest.Start(t)
	c := newClient(t, s.Client(t), rlock.Options{Replicas: 1, ReplicaTimeout: 50 * time.Millisecond})
	err := rlock.All(mutexes(c, "a", "b")...).Do(context.Background(), func(context.Context) error { panic("not replicated") })
	require.ErrorIs(t, err, rlock.ErrNotReplicated)
	require.Zero(t, fixture{rdb: s.Client(t)}.size(t))
}

// WithMinHold keeps a lock taken after its section ends. It does not apply to a lock that All gives back because it has to wait for
// another one.
func TestAllGivesBackWithoutMinHold(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		other := newClient(t, b.rdb)
		names := numbered(b.name, 2)
		m := rlock.All(b.Mutex(names[0], rlock.WithMinHold(time.Hour)), b.Mutex(names[1]))
		first := locked(t, other.Mutex(names[0]))
		p := lockAsync(t, m)
		b.awaitSubscribers(t, names[0], 1)
		second := locked(t, other.Mutex(names[1]))
		require.NoError(t, first.unlock())
		b.awaitSubscribers(t, names[1], 1) // so it has taken the first lock and given it back
		lockAndUnlock(t, tryFor{other.Mutex(names[0]), 0})
		unlocked := time.Now()
		require.NoError(t, second.unlock())
		got := p.gets(t, testTimeout)
		requireTook(t, 0, unlocked, got.at)
		require.NoError(t, got.unlock())
		require.Greater(t, b.pttl(t, names[0]), time.Minute)
		require.False(t, b.exists(t, names[1]))
		b.do(t, "DEL", names[0])
	})
}

// G9: an All over two Clients holds the lock of the first Client and waits for a slow reply to the second. When the first Client is
// closed, its lock is released before Close returns, since its Redis may be unreachable after that.
func TestAllHasALockOfTheClientThatIsClosed(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		slow, proxy, b := behindProxy(t, anyWay)
		proxy.OnReply(redistest.Nth(1, "EVALSHA", redistest.Hold))
		names := numbered(b.name, 2)
		locks := async(func() error {
			_, _, err := rlock.All(b.Mutex(names[0]), slow.Mutex(names[1])).Lock(context.Background())
			return err
		})
		redistest.Eventually(t, testTimeout, func() bool { return proxy.Held() == 1 }, "the call for the second lock is under way")
		require.True(t, b.exists(t, names[0]))
		b.Close()
		require.False(t, b.exists(t, names[0]))
		closed := time.Now()
		require.ErrorIs(t, within(t, locks, testTimeout), rlock.ErrClosed)
		requireTook(t, 0, closed, time.Now())
		proxy.Release()
		slow.Close()
		require.False(t, b.exists(t, names[1]))
	})
}

// A round trip to Redis may take longer than a second. Free locks are still taken with one round trip each.
func TestAllOverASlowNetwork(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		c, proxy, b := behindProxy(t, anyWay)
		fair := rlock.All(c.FairMutex(b.name+":1"), c.FairMutex(b.name+":2"))
		lockAndUnlock(t, fair) // loads the scripts
		const trip = 1200 * time.Millisecond
		proxy.Delay(trip / 2)
		began := time.Now()
		hold := locked(t, fair)
		requireTook(t, 2*trip, began, hold.at)
		proxy.Delay(0)
		require.NoError(t, hold.unlock())
	})
}

// The time runs out while a refused Lock gives back what it has: the error says how long it waited in all.
func TestAllRefusedSaysHowLongItWaited(t *testing.T) {
	for taken := range 2 { // one of them is asked last
		redistest.RunVirtual(t, strconv.Itoa(taken), func(t *testing.T) {
			const trip, wait = 30 * time.Millisecond, 80 * time.Millisecond
			var lockers []rlock.Locker
			for i := range 2 {
				c, proxy, past := behindProxy(t, anyWay)
				lockers = append(lockers, c.Mutex("x"))
				proxy.Delay(trip / 2)
				if i == taken {
					got := locked(t, past.Mutex("x"))
					t.Cleanup(func() { require.NoError(t, got.unlock()) })
				}
			}
			require.GreaterOrEqual(t, refusalOf(t, rlock.All(lockers...), wait).Waited, wait)
		})
	}
}

// Handles of one lock that let each other in, such as its writer and its reader: one slow reply to the second call does not make
// Lock treat the lock as held by someone else.
func TestAllOfBothSidesMeetsASlowReply(t *testing.T) {
	for name, all := range map[string]func(rw *rlock.RWMutex) *rlock.MultiMutex{
		"write and read":       func(rw *rlock.RWMutex) *rlock.MultiMutex { return rlock.All(rw.Read(), rw.Write()) },
		"upgradeable and read": func(rw *rlock.RWMutex) *rlock.MultiMutex { return rlock.All(rw.Read(), rw.Upgradeable()) },
		"one in the other": func(rw *rlock.RWMutex) *rlock.MultiMutex {
			return rlock.All(rw.Read(), rlock.All(rw.Write()), rlock.All(rw.Read(), rw.Write()))
		},
	} {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			c, proxy, b := behindProxy(t, anyWay)
			m := all(c.RWMutex(b.name))
			lockAndUnlock(t, m) // loads the scripts
			proxy.OnReply(redistest.Nth(strings.Count(name, "upgradeable")+2, "EVALSHA", redistest.Hold))
			locks := lockAsync(t, m)
			redistest.Eventually(t, testTimeout, func() bool { return proxy.Held() == 1 }, "the call for the second lock is under way")
			sleep(1100 * time.Millisecond)
			proxy.Release()
			locks.getAndUnlock(t, 5*time.Second)
			require.False(t, b.exists(t, b.name))
		})
	}
}

// G1, G4, G5 with locks on two servers, for each of which a process has a Client: 16 goroutines of two processes lock some of the names in
// random order, or just one. Some of their callers cancel at a random moment. No two are inside the same lock, every goroutine gets in, and
// no key is left. The simulator does the same on one server.
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
		inside := make([]atomic.Int32, len(names))
		var sections, gaveUp [6]atomic.Int64 // by the number of locks
		end := time.Now().Add(20 * time.Millisecond)
		var wg sync.WaitGroup
		for g := range 16 {
			wg.Go(func() {
				random := rand.New(rand.NewPCG(uint64(g), 1))
				for entered := 0; time.Now().Before(end) || entered < 2; {
					which := random.Perm(len(names))[:1+random.IntN(len(names))]
					var some []rlock.Locker
					for _, i := range which {
						some = append(some, clients[g%2][i%2].Mutex(names[i]))
					}
					ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
					if random.IntN(4) == 0 {
						time.AfterFunc(time.Duration(random.IntN(3000))*time.Microsecond, cancel)
					}
					err := rlock.All(some...).Do(ctx, func(context.Context) error {
						for _, i := range which {
							assert.EqualValues(t, 1, inside[i].Add(1), "goroutines inside %s", names[i])
						}
						sleep(time.Duration(random.IntN(1000)) * time.Microsecond)
						for _, i := range which {
							inside[i].Add(-1)
						}
						entered++
						sections[len(which)].Add(1)
						return nil
					})
					cancel()
					if err != nil {
						assert.ErrorIs(t, err, rlock.ErrNotAcquired)
						assert.ErrorIs(t, err, context.Canceled)
						gaveUp[len(which)].Add(1)
					}
				}
			})
		}
		wg.Wait()
		for n := range names {
			require.Positive(t, sections[n+1].Load(), n)
		}
		require.Positive(t, gaveUp[3].Load())
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
			lockAndUnlock(t, m)
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
		runVirtual(t, name, func(t *testing.T, b fixture) {
			places := &changesPlaces{
				fakeLocker: &fakeLocker{name: b.name + ":b"}, other: newClient(t, b.rdb).Mutex(b.name + ":a"), climbs: 4, // 50, 100, 200 ms, 400 ms
			}
			lockAndUnlock(t, rlock.All(b.Mutex(b.name+":a", option), places))
			for _, wait := range places.waits {
				require.LessOrEqual(t, wait, lease/2)
			}
		})
	}
}

// If All loses a lock while it climbs, for example to a forced unlock, the caller sees no error: All starts over.
func TestAllLosesALockWhileItClimbs(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		name := b.name + ":a"
		places := &changesPlaces{fakeLocker: &fakeLocker{name: b.name + ":b"}, other: newClient(t, b.rdb).Mutex(name), climbs: 1}
		forced := forcedOpen{places, t, b.Mutex(name)}
		lockAndUnlock(t, rlock.All(b.Mutex(name), forced))
		require.Len(t, places.waits, 2)
	})
}

// forcedOpen force-unlocks the other lock during each climb, and locks it again so that All learns of the loss.
type forcedOpen struct {
	*changesPlaces

	t    *testing.T
	held *rlock.Mutex
}

func (f forcedOpen) TryLock(ctx context.Context, wait time.Duration) (context.Context, rlock.UnlockFunc, error) {
	if wait > 0 && len(f.waits) < f.climbs {
		_, _ = f.held.ForceUnlock(context.WithoutCancel(ctx))
		if _, unlock, err := f.held.Lock(context.WithoutCancel(ctx)); err == nil {
			_ = unlock()
		}
		f.changesPlaces.waits = append(f.changesPlaces.waits, wait)
		redistest.Within(f.t, testTimeout, ctx.Done(), "lost")
		return ctx, func() error { return rlock.ErrNotHeld }, ctx.Err()
	}
	return f.changesPlaces.TryLock(ctx, wait)
}
