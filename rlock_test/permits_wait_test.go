package rlock_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// A release wakes each waiter whose permits are free, here and in another process, even through handles with other leases.
func TestPermitsWake(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		s := b.PermitSemaphore(b.name)
		setPermits(t, s, 2)
		held := acquire(t, s, 2)
		first, a := b.permitAsync(t, b.PermitSemaphore(b.name, rlock.WithLease(time.Hour)), 1)
		second, z := b.permitAsync(t, newClient(t, b.rdb).PermitSemaphore(b.name), 2)
		require.NoError(t, held.permit.Release())
		require.NoError(t, within(t, first, wakeTimeout))
		require.NoError(t, within(t, second, wakeTimeout))
		left := answer(s.LeaseTime(context.Background(), a.permit.ID())).ok(t)
		require.Greater(t, left, 59*time.Minute)
		left = answer(s.LeaseTime(context.Background(), z.permit.ID())).ok(t)
		require.LessOrEqual(t, left, rlock.DefaultWatchdogTimeout)
		require.NotEqual(t, a.permit.Slot(), z.permit.Slot())
		require.NoError(t, a.permit.Release())
		require.NoError(t, z.permit.Release())
		noCalls(t)
		requirePermits(t, s, 2, 0)
	})
}

// A permit comes with the message that wakes its waiter. If that has waited for long, it asks for its whole lease first. A process that is cut off
// keeps the permit of its message from others for the grant lease.
func TestPermitsByMessage(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		s := b.PermitSemaphore(b.name)
		setPermits(t, s, 1)
		held := acquire(t, s, 1)
		there := newClient(t, b.rdb).PermitSemaphore(b.name)
		for _, wait := range []struct {
			by    *rlock.PermitSemaphore
			long  time.Duration
			calls int64
		}{{there, 0, 1}, {s, 5 * time.Second, 2}} {
			got, next := b.permitAsync(t, wait.by, 1)
			sleep(wait.long)
			before := redistest.Commands(t, b.rdb)["evalsha"]
			require.NoError(t, held.permit.Release())
			require.NoError(t, within(t, got, wakeTimeout))
			require.Equal(t, wait.calls, redistest.Commands(t, b.rdb)["evalsha"]-before)
			require.Zero(t, next.permit.Slot())
			left := answer(s.LeaseTime(context.Background(), next.permit.ID())).ok(t)
			require.Equal(t, wait.calls > 1, left > 2*time.Second, "%v", left)
			sleep(time.Second) // a third of the grant lease is over
			left = answer(s.LeaseTime(context.Background(), next.permit.ID())).ok(t)
			require.Greater(t, left, 2*time.Second)
			requirePermits(t, s, 0, 1)
			held = *next
		}

		proxy := redistest.StartProxy(t, redistest.Shared(t))
		_, cut := b.permitAsync(t, newClient(t, redistest.Dial(t, proxy.Addr())).PermitSemaphore(b.name), 1)
		got, _ := b.permitAsync(t, there, 2)
		proxy.BlackHole(true)
		began := time.Now()
		require.NoError(t, held.permit.Release())
		require.NoError(t, within(t, got, testTimeout))
		require.GreaterOrEqual(t, time.Since(began), 2*time.Second)
		require.LessOrEqual(t, time.Since(began), 3*time.Second)
		require.Nil(t, cut.permit)
		proxy.BlackHole(false)
	})
}

// No permit is granted by a message while somebody listens out of line, such as Redisson: if the process that gets it is gone, nobody tells those
// when its time is over.
func TestPermitsByMessageBesideOutsiders(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		setPermits(t, b.PermitSemaphore(b.name), 1)
		held := acquire(t, b.PermitSemaphore(b.name, rlock.WithLease(time.Hour)), 1)
		proxy := redistest.StartProxy(t, redistest.Shared(t))
		b.permitAsync(t, newClient(t, redistest.Dial(t, proxy.Addr())).PermitSemaphore(b.name), 1)
		before := b.subscribers(t, semaphoreChannel(b.name))
		outside := newClient(t, b.rdb, rlock.Options{HandOff: rlock.HandOff{Most: -1}})
		got := async(func() error {
			_, _, err := outside.PermitSemaphore(b.name).Acquire(context.Background())
			return err
		})
		redistest.Eventually(t, testTimeout, func() bool { return b.subscribers(t, semaphoreChannel(b.name)) > before }, "it listens")
		redistest.Eventually(t, testTimeout, func() bool { return outside.Stats().Waiting == 1 }, "it waits")
		proxy.BlackHole(true)
		require.NoError(t, held.permit.Release())
		require.NoError(t, within(t, got, wakeTimeout))
		proxy.BlackHole(false)
	})
}

// A permit that came with a message is traced as one that was handed over, as a lock is.
func TestPermitByMessageIsTraced(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		setPermits(t, b.PermitSemaphore(b.name), 1)
		held := acquire(t, b.PermitSemaphore(b.name), 1)
		var told traceLines
		got, _ := b.permitAsync(t, newClient(t, b.rdb, told.traced()).PermitSemaphore(b.name), 1)
		require.NoError(t, held.permit.Release())
		require.NoError(t, within(t, got, wakeTimeout))
		require.ElementsMatch(t, []string{"permits waits", "permits grant"}, told.take())
	})
}

// G2: the longest hold of a permit that came with a message counts from then on, not from the waiter's last call.
func TestMaxHoldOfAPermitByMessage(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		const most = 10 * shortWatchdog
		s := b.PermitSemaphore(b.name)
		setPermits(t, s, 1)
		held := acquire(t, s, 1)
		waits := newClient(t, b.rdb, rlock.Options{WatchdogTimeout: most}).PermitSemaphore(b.name, rlock.WithMaxHold(most))
		got, next := b.permitAsync(t, waits, 1)
		sleep(time.Second / 2) // much later, the first renewal is due at once
		before := redistest.Commands(t, b.rdb)["evalsha"]
		require.NoError(t, held.permit.Release())
		require.NoError(t, within(t, got, wakeTimeout))
		began := time.Now()
		require.EqualValues(t, 1, redistest.Commands(t, b.rdb)["evalsha"]-before)
		require.Equal(t, rlock.LostMaxHold, requireLost(t, *next, testTimeout).Reason)
		requireTook(t, most, began, time.Now())
	})
}

// A waiter for more permits than exist delays no other. Waiters of one process may together want more permits than one call may have
// ids for.
func TestPermitsBeyondAll(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		s := b.PermitSemaphore(b.name)
		setPermits(t, s, 1)
		ctx, cancel := context.WithCancel(context.Background())
		var large []<-chan error
		for range 5 {
			large = append(large, async(func() error { _, _, err := s.AcquireN(ctx, 100); return err }))
		}
		b.awaitLine(t, s.Name(), 1)
		for range 3 {
			small := async(func() error {
				return s.Do(context.Background(), func(context.Context, *rlock.Permit) error { return nil })
			})
			require.NoError(t, within(t, small, wakeTimeout))
		}
		cancel()
		for _, got := range large {
			require.ErrorIs(t, within(t, got, wakeTimeout), rlock.ErrNotAcquired)
		}
		require.NoError(t, s.SetPermits(context.Background(), 1100))
		for range 11 {
			large = append(large, async(func() error { _, _, err := s.AcquireN(context.Background(), 100); return err }))
		}
		for _, got := range large[5:] {
			require.NoError(t, within(t, got, wakeTimeout))
		}
		requirePermits(t, s, 0, 1100)
	})
}

func TestPermitsOnACluster(t *testing.T) {
	cluster := redistest.SharedCluster(t)
	redistest.Parallel(t)
	for _, plain := range []bool{false, true} {
		t.Run(fmt.Sprintf("plain=%t", plain), func(t *testing.T) {
			o := rlock.Options{PlainPubSub: plain, WatchdogTimeout: 15 * time.Second}
			here, there := newClient(t, cluster.Client(t), o), newClient(t, cluster.Client(t), o)
			prefix := redistest.Name(t)
			const names = 10
			name := func(i int) string {
				if i%2 == 0 {
					return fmt.Sprintf("%s:%d", prefix, i)
				}
				return fmt.Sprintf("{%s:%d}x", prefix, i)
			}
			var held []permitSection
			var waits []<-chan error
			for i := range names {
				setPermits(t, here.PermitSemaphore(name(i)), 1)
				held = append(held, acquire(t, here.PermitSemaphore(name(i)), 1))
				waits = append(waits, async(func() error {
					_, _, err := there.PermitSemaphore(name(i)).Acquire(context.Background())
					return err
				}))
			}
			redistest.Eventually(t, testTimeout, func() bool { return waiting(t) == names }, "the callers wait")
			if !plain { // by which renewals differ in nothing
				shortest := make([]time.Duration, names)
				for i := range shortest {
					shortest[i] = time.Hour
				}
				redistest.Eventually(t, testTimeout, func() bool {
					renewed := true
					for i, h := range held {
						left := answer(here.PermitSemaphore(name(i)).LeaseTime(context.Background(), h.permit.ID())).ok(t)
						shortest[i] = min(shortest[i], left)
						renewed = renewed && left > shortest[i]
					}
					return renewed
				}, "the permits are renewed")
			}
			for i, h := range held {
				require.NoError(t, h.ctx.Err())
				if i%2 == 0 {
					require.NoError(t, h.permit.Release())
				} else {
					require.NoError(t, there.PermitSemaphore(name(i)).Release(context.Background(), h.permit.ID()))
				}
				require.NoError(t, within(t, waits[i], wakeTimeout))
			}
			const unknown = "00000000000000000000000000000001"
			ctx, odd := context.Background(), here.PermitSemaphore("a{b")
			_, _, err := odd.Acquire(ctx)
			errs := []error{err, odd.SetPermits(ctx, 1), odd.Release(ctx, unknown), odd.UpdateLease(ctx, unknown, time.Second)}
			_, err = odd.LeaseTime(ctx, unknown)
			errs = append(errs, err)
			_, err = odd.Available(ctx)
			for _, err := range append(errs, err) {
				require.ErrorContains(t, err, "would be in another slot")
			}
		})
	}
}

// While Redis is down, each call to it fails with ErrUnreachable. Once Redis is back, released permits are free, and no call has
// taken any.
func TestPermitsOutage(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		c, proxy, b := behindProxy(t, anyWay)
		watch := b.PermitSemaphore(b.name)
		setPermits(t, watch, 2)
		s := c.PermitSemaphore(b.name)
		held := acquire(t, s, 2)
		waits, _ := b.permitAsync(t, s, 1)
		proxy.Refuse(true)
		proxy.CutAll()
		require.ErrorIs(t, within(t, async(held.permit.Release), testTimeout), rlock.ErrUnreachable)
		require.ErrorIs(t, held.permit.Release(), rlock.ErrNotHeld)
		require.ErrorIs(t, within(t, waits, testTimeout), rlock.ErrUnreachable)
		_, _, err := s.TryAcquire(context.Background(), 0)
		require.ErrorIs(t, err, rlock.ErrUnreachable)
		require.ErrorIs(t, s.Release(context.Background(), held.permit.ID()), rlock.ErrUnreachable)
		answer(s.Available(context.Background())).fails(t, rlock.ErrUnreachable)
		proxy.Refuse(false)
		eventuallyPermits(t, watch, 2, 0)
		noCalls(t) // Redis has run the call before its answer arrives; until then this process refuses permits
		require.NoError(t, acquire(t, s, 2).permit.Release())
	})
}

// Close ends sections and waits. Permits stay taken until their release, or the end of their lease.
func TestPermitsClose(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t, rlock.Options{WatchdogTimeout: 3 * time.Second})
		watch := newClient(t, b.rdb).PermitSemaphore(b.name)
		s := b.PermitSemaphore(b.name)
		setPermits(t, s, 2)
		held, left := acquire(t, s, 1), acquire(t, s, 1)
		waits, _ := b.permitAsync(t, s, 1)
		b.Close()
		require.ErrorIs(t, within(t, waits, wakeTimeout), rlock.ErrClosed)
		require.ErrorIs(t, context.Cause(held.ctx), rlock.ErrClosed)
		require.NotErrorIs(t, context.Cause(held.ctx), rlock.ErrLost)
		requirePermits(t, watch, 0, 2)
		_, _, err := s.Acquire(context.Background())
		require.ErrorIs(t, err, rlock.ErrClosed)
		require.NoError(t, held.permit.Release())
		require.ErrorIs(t, held.permit.Release(), rlock.ErrNotHeld)
		requirePermits(t, watch, 1, 1)
		require.Equal(t, uint64(0), b.Stats().Lost)
		sleep(3 * time.Second) // the lease of the other permit
		eventuallyPermits(t, watch, 2, 0)
		require.ErrorIs(t, left.permit.Release(), rlock.ErrLost)
		require.Zero(t, b.Stats().Holds)
	})
}

// A release during Close frees its permit and returns no error.
func TestPermitReleasesBesideClose(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		watch := b.PermitSemaphore(b.name)
		const n = 50
		setPermits(t, watch, n)
		for range 3 {
			c := newClient(t, b.rdb)
			var releases []<-chan error
			for range n {
				releases = append(releases, async(acquire(t, c.PermitSemaphore(b.name), 1).permit.Release))
			}
			c.Close()
			for _, got := range releases {
				require.NoError(t, within(t, got, wakeTimeout))
			}
			requirePermits(t, watch, n, 0)
		}
	})
}
