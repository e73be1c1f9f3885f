package rlock_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

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
		redistest.RunVirtual(t, name, func(t *testing.T) {
			b := newFixture(t)
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
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		name := b.name + ":a"
		places := &changesPlaces{fakeLocker: &fakeLocker{name: b.name + ":b"}, other: newClient(t, b.rdb).Mutex(name), climbs: 1}
		forced := forcedOpen{places, b.Mutex(name)}
		lockAndUnlock(t, rlock.All(b.Mutex(name), forced))
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
