package rlock_test

import (
	"context"
	"errors"
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

// When permits come back, by whatever means and in whichever process, exactly the waiters with enough permits wake.
func TestSemaphoreWakes(t *testing.T) {
	for how, open := range map[string]func(t *testing.T, b fixture, s *rlock.Semaphore){
		"release": func(t *testing.T, _ fixture, s *rlock.Semaphore) {
			require.NoError(t, s.Release(context.Background(), 2))
			require.NoError(t, s.Release(context.Background(), 2))
		},
		"add": func(t *testing.T, _ fixture, s *rlock.Semaphore) {
			require.NoError(t, s.AddPermits(context.Background(), 4))
		},
		"Redisson": func(t *testing.T, b fixture, _ *rlock.Semaphore) {
			require.NoError(t, b.do(t, "INCRBY", b.name, "4").Error())
			require.NoError(t, b.do(t, "PUBLISH", semaphoreChannel(b.name), "4").Error())
		},
	} {
		redistest.RunVirtual(t, how, func(t *testing.T) {
			b := newFixture(t)
			s := b.Semaphore(b.name)
			permits(t, s, 1)
			require.NoError(t, s.Acquire(context.Background(), 1))
			here := b.acquireAsync(t, s, 2, 1)
			other := newClient(t, b.rdb).Semaphore(b.name)
			there := b.acquireAsync(t, other, 2, 2)
			open(t, b, s)
			require.NoError(t, within(t, here, wakeTimeout))
			require.NoError(t, within(t, there, wakeTimeout))
			requireFree(t, s, 0)
		})
	}
}

// A counter keeps an expiry that somebody set, and has no permits when it has expired.
func TestSemaphoreExpires(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		s := b.Semaphore(b.name)
		permits(t, s, 2)
		require.NoError(t, b.do(t, "PEXPIRE", b.name, "1500").Error())
		require.NoError(t, s.Acquire(context.Background(), 2))
		require.NoError(t, s.Release(context.Background(), 1))
		require.NoError(t, s.AddPermits(context.Background(), 1))
		require.NoError(t, s.Acquire(context.Background(), 1))
		redistest.Eventually(t, testTimeout, func() bool { return !b.exists(t, b.name) }, "it expires")
		require.ErrorIs(t, s.TryAcquire(context.Background(), 1, 0), rlock.ErrNotAcquired)
		got := b.acquireAsync(t, s, 1, 1)
		require.NoError(t, s.Release(context.Background(), 1))
		require.NoError(t, within(t, got, wakeTimeout))
	})
}

// A lost message, or a counter changed by hand, is noticed when the connection is renewed.
func TestSemaphoreLosesAMessage(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		proxy := redistest.StartProxy(t, redistest.Shared(t))
		proxy.OnReply(redistest.Each("MESSAGE", redistest.Drop))
		s := b.Semaphore(b.name)
		permits(t, s, 0)
		got := b.acquireAsync(t, newClient(t, redistest.Dial(t, proxy.Addr())).Semaphore(b.name), 1, 1)
		require.NoError(t, s.Release(context.Background(), 1))
		sleep(100 * time.Millisecond)
		requireStillWaits(t, got)
		proxy.CutAll()
		require.NoError(t, within(t, got, wakeTimeout))
	})
}

// A large request gets its turn beside small ones.
func TestSemaphoreDoesNotStarveLargeRequests(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		s := b.Semaphore(b.name)
		permits(t, s, 4)
		stop := make(chan struct{})
		var small sync.WaitGroup
		for i := range 8 {
			of := s
			if i%2 == 0 {
				of = newClient(t, b.rdb).Semaphore(b.name)
			}
			small.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					assert.NoError(t, of.Acquire(context.Background(), 1))
					sleep(time.Millisecond)
					assert.NoError(t, of.Release(context.Background(), 1))
				}
			})
		}
		for _, large := range []*rlock.Semaphore{s, newClient(t, b.rdb).Semaphore(b.name)} {
			for range 5 {
				ctx, cancel := context.WithTimeout(context.Background(), testTimeout/2)
				require.NoError(t, large.Acquire(ctx, 4))
				requireFree(t, s, 0)
				require.NoError(t, large.Release(ctx, 4))
				cancel()
			}
		}
		close(stop)
		small.Wait()
		eventuallyFree(t, s, 4)
	})
}

// Many processes and goroutines use the permits, and some give up at any moment. There are never more workers than
// permits, and in the end all permits are back.
func TestSemaphoreUnderContention(t *testing.T) {
	for _, plain := range []bool{false, true} {
		redistest.RunVirtual(t, map[bool]string{false: "with a queue", true: "without hand-overs"}[plain], func(t *testing.T) {
			b := newFixture(t)
			const clients, each, n = 3, 5, 4
			permits(t, b.Semaphore(b.name), n)
			var inside atomic.Int64
			var got, gaveUp atomic.Int64
			var all sync.WaitGroup
			for range clients {
				var o rlock.Options
				if plain {
					o.HandOff.Most = -1
				}
				s := newClient(t, b.rdb, o).Semaphore(b.name)
				for range each {
					all.Go(func() {
						for range 10 {
							want := 1 + rand.Int64N(3)
							ctx, cancel := context.WithTimeout(context.Background(), rand.N(60*time.Millisecond))
							err := s.Acquire(ctx, want)
							cancel()
							if err != nil {
								assert.ErrorIs(t, err, rlock.ErrNotAcquired)
								gaveUp.Add(1)
								continue
							}
							assert.LessOrEqual(t, inside.Add(want), int64(n))
							got.Add(1)
							if rand.N(4) == 0 {
								sleep(rand.N(2 * time.Millisecond))
							}
							inside.Add(-want)
							assert.NoError(t, s.Release(context.Background(), want))
						}
					})
				}
			}
			all.Wait()
			t.Logf("%d had permits, %d gave up", got.Load(), gaveUp.Load())
			require.Positive(t, got.Load())
			eventuallyFree(t, b.Semaphore(b.name), n)
			redistest.Eventually(t, testTimeout, func() bool { return b.inLine(t, b.name) == 0 }, "nobody is in line")
		})
	}
}

// A waiting process sends nothing, and 1,000 goroutines share one subscription.
func TestSemaphoreOfThousands(t *testing.T) {
	redistest.OnlyVirtual(t, "that all wait can be seen only there", func(t *testing.T) {
		server := redistest.Start(t)
		b := fixture{rdb: server.Client(t), name: redistest.Name(t)}
		b.Client = newClient(t, server.Client(t))
		const n = 1000
		s := b.Semaphore(b.name)
		permits(t, s, 0)
		commands := func() map[string]int64 { return redistest.Commands(t, b.rdb) }
		var waits sync.WaitGroup
		for range n {
			waits.Go(func() { assert.NoError(t, s.Acquire(context.Background(), 1)) })
		}
		redistest.Settle(t)
		require.Equal(t, 32, b.wants(t), "the waiters of one call are queued")
		before := commands()
		sleep(10 * time.Second)
		after := commands()
		require.Equal(t, before["evalsha"], after["evalsha"], "waiters send nothing")
		require.Equal(t, int64(1), after["subscribe"])
		t.Logf("1,000 waiters: %d EVALSHA", after["evalsha"])
		require.NoError(t, s.Release(context.Background(), n))
		waits.Wait()
		t.Logf("1,000 wake-ups: %d EVALSHA", commands()["evalsha"]-after["evalsha"])
		requireFree(t, s, 0)
	})
}

// If Redis loses the queue, because it evicts it or somebody deletes it, waiters hear of the next release.
func TestSemaphoreQueueIsLost(t *testing.T) {
	for name, of := range map[string]func(c *rlock.Client, name string) rlock.Locker{
		"semaphore": func(c *rlock.Client, name string) rlock.Locker { return c.Semaphore(name).Locker(1) },
		"permits":   func(c *rlock.Client, name string) rlock.Locker { return c.PermitSemaphore(name).Locker(1) },
	} {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			b := newFixture(t)
			setPermits(t, b.PermitSemaphore(b.name), 1)
			_, unlock := enter(t, context.Background(), of(b.Client, b.name))
			other := of(newClient(t, b.rdb), b.name)
			waits := async(func() error {
				_, unlock, err := other.Lock(context.Background())
				return errors.Join(err, unlock())
			})
			b.awaitLine(t, b.name, 1)
			require.NoError(t, b.do(t, "DEL", "rlock_sem_queue:{"+b.name+"}").Error())
			require.NoError(t, unlock())
			require.NoError(t, within(t, waits, wakeTimeout))
		})
		redistest.RunVirtual(t, name+", others come", func(t *testing.T) {
			b := newFixture(t)
			setPermits(t, b.PermitSemaphore(b.name), 1)
			_, unlock, err := of(b.Client, b.name).Lock(context.Background())
			require.NoError(t, err)
			wait := func() <-chan error {
				other := of(newClient(t, b.rdb), b.name)
				return async(func() error {
					_, unlock, err := other.Lock(context.Background())
					return errors.Join(err, unlock())
				})
			}
			first := wait()
			b.awaitLine(t, b.name, 1)
			require.NoError(t, b.do(t, "DEL", "rlock_sem_queue:{"+b.name+"}").Error())
			began := time.Now()
			second := wait()
			b.awaitLine(t, b.name, 2) // the first is back
			require.Less(t, time.Since(began), 10*time.Second, "it does not sleep for a minute")
			require.NoError(t, unlock())
			require.NoError(t, within(t, first, wakeTimeout))
			require.NoError(t, within(t, second, wakeTimeout))
		})
	}
}

// A stopped process, here one whose messages get lost, costs the others one grant lease, even if it wants more permits than there are.
func TestSemaphoreStoppedProcess(t *testing.T) {
	redistest.OnlyVirtual(t, "it needs exact times", func(t *testing.T) {
		b := newFixture(t)
		s := b.Semaphore(b.name)
		permits(t, s, 1)
		proxy := redistest.StartProxy(t, redistest.Shared(t))
		large := newClient(t, redistest.Dial(t, proxy.Addr())).Semaphore(b.name)
		stopped := async(func() error { return large.Acquire(context.Background(), 2) })
		b.awaitLine(t, b.name, 1)
		proxy.BlackHole(true)
		for range 5 {
			began := time.Now()
			require.NoError(t, newClient(t, b.rdb).Semaphore(b.name).Acquire(context.Background(), 1))
			requireTookAtMost(t, 2100*time.Millisecond, began, time.Now())
			require.NoError(t, s.Release(context.Background(), 1))
		}
		proxy.BlackHole(false)
		require.NoError(t, s.Release(context.Background(), 1))
		require.NoError(t, within(t, stopped, testTimeout), "it comes again")
	})
}
