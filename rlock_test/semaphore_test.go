package rlock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

func semaphoreChannel(name string) string { return "redisson_sc:{" + name + "}" }

// permits sets the number of permits.
func permits(t testing.TB, s *rlock.Semaphore, n int64) {
	t.Helper()
	answer(s.TrySetPermits(context.Background(), n)).is(t, true)
}

func requireFree(t testing.TB, s *rlock.Semaphore, want int64) {
	t.Helper()
	answer(s.Available(context.Background())).is(t, want)
}

// eventuallyFree is requireFree for work in the background.
func eventuallyFree(t testing.TB, s *rlock.Semaphore, want int64) {
	t.Helper()
	redistest.Eventually(t, testTimeout, func() bool {
		n, err := s.Available(context.Background())
		return err == nil && n == want
	}, fmt.Sprint(want, " are free"))
}

// acquireAsync starts to wait, and returns when the given number of processes have nothing to do but wait.
func (b fixture) acquireAsync(t testing.TB, s *rlock.Semaphore, n int64, processes int) <-chan error {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel) // ends the goroutine if nothing else has
	got := async(func() error { return s.Acquire(ctx, n) })
	b.awaitLine(t, s.Name(), processes)
	return got
}

// awaitLine waits until the given number of processes are queued at a semaphore and wait only for a message.
func (b fixture) awaitLine(t testing.TB, name string, processes int) {
	t.Helper()
	redistest.Eventually(t, testTimeout, func() bool { return b.inLine(t, name) == processes && waiting(t) == processes }, "it waits")
}

// inLine returns the number of processes queued at a semaphore. Each of them has asked once more after it subscribed.
func (b fixture) inLine(t testing.TB, name string) int {
	t.Helper()
	n := answer(b.do(t, "ZCARD", "rlock_sem_queue:{"+name+"}").AsInt64()).ok(t)
	return int(n)
}

func requireStillWaits(t testing.TB, got <-chan error) {
	t.Helper()
	select {
	case err := <-got:
		require.FailNow(t, "Acquire has returned", "%v", err)
	default:
	}
}

func TestSemaphore(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		ctx := context.Background()
		s := b.Semaphore(b.name)
		require.Equal(t, b.name, s.Name())
		requireFree(t, s, 0)
		require.ErrorIs(t, s.TryAcquire(ctx, 1, 0), rlock.ErrNotAcquired)
		permits(t, s, 5)
		set, err := s.TrySetPermits(ctx, 9)
		require.NoError(t, err)
		require.False(t, set)
		require.Equal(t, "5", b.text(t, b.name), "a plain counter, as in Redisson")
		require.NoError(t, s.Acquire(ctx, 3))
		requireFree(t, s, 2)
		err = s.TryAcquire(ctx, 3, 0)
		var e *rlock.NotAcquiredError
		require.ErrorAs(t, err, &e)
		require.Equal(t, int64(2), e.Count)
		require.Contains(t, err.Error(), ": 2 free of 3 wanted")
		require.NoError(t, s.TryAcquire(ctx, 2, time.Second))
		requireFree(t, s, 0)
		require.NoError(t, s.Release(ctx, 4))
		requireFree(t, s, 4)
		require.NoError(t, s.AddPermits(ctx, -6))
		requireFree(t, s, -2)
		require.ErrorIs(t, s.TryAcquire(ctx, 1, 0), rlock.ErrNotAcquired)
		require.NoError(t, s.AddPermits(ctx, 10))
		answer(s.Drain(ctx)).is(t, 8)
		requireFree(t, s, 0)
		answer(s.ReleaseIfExists(ctx, 2)).is(t, true)
		require.NoError(t, b.do(t, "DEL", b.name).Error())
		answer(s.ReleaseIfExists(ctx, 2)).is(t, false)
		require.NoError(t, s.Release(ctx, 1))
		requireFree(t, s, 1)
	})
}

func TestSemaphoreMisuse(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		ctx := context.Background()
		s := b.Semaphore(b.name)
		for _, err := range []error{s.Acquire(ctx, -1), s.Release(ctx, -1), s.TryAcquire(ctx, rlock.MaxPermits+1, 0)} {
			require.ErrorContains(t, err, "want 0 to 2147483647")
		}
		_, err := b.Semaphore("").Drain(ctx)
		require.EqualError(t, err, `rlock: "": the name is empty`)
		require.Panics(t, func() { (*rlock.Semaphore)(nil).Name() })
		require.Panics(t, func() { _ = new(rlock.Semaphore).Acquire(ctx, 1) })
		for what, fill := range map[string][]string{"a hash": {"HSET", b.name, foreignOwner, "1"}, "a text": {"SET", b.name, "word"}} {
			require.NoError(t, b.do(t, "DEL", b.name).Error())
			require.NoError(t, b.do(t, fill...).Error())
			errs := []error{s.Acquire(ctx, 1), s.Release(ctx, 1)}
			_, err := s.Drain(ctx)
			errs = append(errs, err)
			_, err = s.Available(ctx)
			for _, err := range append(errs, err) {
				require.ErrorContains(t, err, "not a counter", what)
				require.ErrorContains(t, err, "; give it a name that no other data uses", what)
			}
		}
		done, cancel := context.WithCancel(ctx)
		cancel()
		err = s.Acquire(done, 1)
		require.ErrorIs(t, err, rlock.ErrNotAcquired)
		require.ErrorIs(t, err, context.Canceled)

		all := rlock.All(b.Mutex(b.name+":lock"), s.Locker(1))
		_, _, err = all.Lock(ctx)
		require.ErrorContains(t, err, "cannot be one of several locks: nobody owns them in Redis")
		_, _, err = rlock.Quorum(s.Locker(1), s.Locker(1), s.Locker(1)).Lock(ctx)
		require.Error(t, err)
	})
}

// Permits as a Locker: a section acquires them, and gives them back however it ends.
func TestSemaphoreSections(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		ctx := context.Background()
		s := b.Semaphore(b.name)
		permits(t, s, 3)
		n, err := rlock.DoValue(ctx, s.Locker(2), func(ctx context.Context) (int64, error) { return s.Available(ctx) })
		require.NoError(t, err)
		require.Equal(t, int64(1), n)
		requireFree(t, s, 3)
		require.Panics(t, func() { _ = s.Do(ctx, 3, func(context.Context) error { panic("oh") }) })
		requireFree(t, s, 3)
		section, unlock := enter(t, ctx, s.Locker(3))
		_, none, err := s.Locker(1).TryLock(section, 0)
		require.ErrorIs(t, err, rlock.ErrNotAcquired, "permits are not re-entered")
		require.ErrorIs(t, none(), rlock.ErrNotHeld)
		require.NoError(t, unlock())
		require.Error(t, section.Err())
		require.ErrorIs(t, unlock(), rlock.ErrNotHeld)
		requireFree(t, s, 3)
		_, unlock = enter(t, ctx, s.Locker(1))
		watch := newClient(t, b.rdb).Semaphore(b.name)
		b.Close()
		require.NoError(t, unlock(), "also after Close")
		requireFree(t, watch, 3)
		answer(s.ReleaseIfExists(ctx, 1)).is(t, true)
		requireFree(t, watch, 4)
	})
}

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
		runVirtual(t, how, func(t *testing.T, b fixture) {
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
	virtual(t, func(t *testing.T, b fixture) {
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

// A large request gets its turn beside small ones.
func TestSemaphoreDoesNotStarveLargeRequests(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
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

// A waiting process sends nothing, and 1,000 goroutines share one subscription.
func TestSemaphoreOfThousands(t *testing.T) {
	for kind, of := range permitLockers {
		t.Run(kind, func(t *testing.T) {
			redistest.OnlyVirtual(t, "that all wait can be seen only there", func(t *testing.T) {
				server := redistest.Start(t)
				b := fixture{rdb: server.Client(t), name: redistest.Name(t)}
				b.Client = newClient(t, server.Client(t))
				const n = 1000
				s, l := b.Semaphore(b.name), of(b.Client, b.name)
				permits(t, s, 0)
				commands := func() map[string]int64 { return redistest.Commands(t, b.rdb) }
				var waits sync.WaitGroup
				for range n {
					waits.Go(func() { assert.NoError(t, second(rlock.Acquire(context.Background(), l))) })
				}
				redistest.Settle(t)
				b.awaitLine(t, b.name, 1)
				if kind == "semaphore" {
					require.Equal(t, 32, b.wants(t), "the waiters of one call are queued")
				}
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
		})
	}
}

// If Redis loses the queue, because it evicts it or somebody deletes it, waiters hear of the next release.
func TestSemaphoreQueueIsLost(t *testing.T) {
	for name, of := range permitLockers {
		runVirtual(t, name, func(t *testing.T, b fixture) {
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
		runVirtual(t, name+", others come", func(t *testing.T, b fixture) {
			setPermits(t, b.PermitSemaphore(b.name), 1)
			_, unlock := enter(t, context.Background(), of(b.Client, b.name))
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
			require.Less(t, redistest.Ran(t, began, time.Now()), 10*time.Second, "it does not sleep for a minute")
			require.NoError(t, unlock())
			require.NoError(t, within(t, first, wakeTimeout))
			require.NoError(t, within(t, second, wakeTimeout))
		})
	}
}

// A stopped process, here one whose messages get lost, costs the others one grant lease, even if it wants more permits than there are.
func TestSemaphoreStoppedProcess(t *testing.T) {
	redistest.OnlyVirtual(t, "it needs exact times", func(t *testing.T) {
		c, proxy, b := behindProxy(t, anyWay)
		s := b.Semaphore(b.name)
		permits(t, s, 1)
		large := c.Semaphore(b.name)
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
