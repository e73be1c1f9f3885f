package rlock_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// A renewed permit is kept for many times its lease. With a fixed lease or WithMaxHold it is lost at the end, which cancels ctx.
// Lost permits become free.
func TestPermitLeases(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		const watchdog = 1500 * time.Millisecond
		b := newFixture(t, rlock.Options{WatchdogTimeout: watchdog})
		s := b.PermitSemaphore(b.name)
		setPermits(t, s, 4)
		kept := acquire(t, s, 2)
		lost := acquire(t, b.PermitSemaphore(b.name, rlock.WithLease(watchdog)), 1)
		bounded := acquire(t, b.PermitSemaphore(b.name, rlock.WithMaxHold(watchdog)), 1)
		got, next := b.permitAsync(t, s, 1)
		require.Equal(t, rlock.LostExpired, requireLost(t, lost, wakeTimeout).Reason)
		loss := requireLost(t, bounded, wakeTimeout)
		require.Equal(t, rlock.LostMaxHold, loss.Reason)
		require.Equal(t, bounded.permit.ID(), loss.Owner)
		require.NoError(t, within(t, got, wakeTimeout), "the expiry of a permit wakes the waiter")
		require.Contains(t, []int{2, 3}, next.permit.Slot())
		require.ErrorIs(t, lost.permit.Release(), rlock.ErrLost)
		require.ErrorIs(t, bounded.permit.Release(), rlock.ErrNotHeld)
		sleep(2 * watchdog)
		require.NoError(t, kept.ctx.Err())
		require.NoError(t, next.permit.Release())
		require.NoError(t, kept.permit.Release())
		eventuallyPermits(t, s, 4, 0)
		require.Equal(t, uint64(2), b.Stats().Lost)
	})
}

// With a grace, Redis keeps the permit for longer than it is trusted.
func TestPermitGrace(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		s := b.PermitSemaphore(b.name, rlock.WithLease(time.Second), rlock.WithGrace(time.Minute))
		setPermits(t, s, 1)
		held := acquire(t, s, 1)
		requireLost(t, held, wakeTimeout)
		left := answer(s.LeaseTime(context.Background(), held.permit.ID())).ok(t)
		require.Greater(t, left, 30*time.Second)
		require.ErrorIs(t, held.permit.Release(), rlock.ErrLost)
		eventuallyPermits(t, s, 1, 0)
	})
}

// G2: the renewals of a process no longer arrive. Its ctx is cancelled before another process gets the permit, which is within the
// watchdog time. A later release returns ErrLost.
func TestPermitOfACutOffProcess(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		const watchdog = 3 * time.Second
		c, proxy, past := behindProxy(t, anyWay, rlock.Options{WatchdogTimeout: watchdog})
		s, there := c.PermitSemaphore(past.name), past.PermitSemaphore(past.name)
		setPermits(t, there, 1)
		held := acquire(t, s, 1)
		got, next := past.permitAsync(t, there, 1)
		began := time.Now()
		proxy.BlackHole(true)
		require.NoError(t, within(t, got, testTimeout))
		requireLostBy(t, held.ctx, time.Now())
		require.Less(t, redistest.Ran(t, began, time.Now()), watchdog+2*time.Second)
		require.ErrorIs(t, held.permit.Release(), rlock.ErrLost)
		require.NoError(t, next.ctx.Err())
		require.Zero(t, next.permit.Slot(), "the slot is free again")
		proxy.BlackHole(false)
		proxy.CutAll()
		noCalls(t)
		requirePermits(t, there, 0, 1)
		require.NoError(t, next.permit.Release())
	})
}

// The next renewal detects permits missing in Redis and cancels ctx, even if only one of several is gone.
func TestPermitsAreForgotten(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t, rlock.Options{WatchdogTimeout: 3 * time.Second})
		s := b.PermitSemaphore(b.name)
		setPermits(t, s, 3)
		held, other := acquire(t, s, 2), acquire(t, s, 1)
		there := newClient(t, b.rdb).PermitSemaphore(b.name)
		require.NoError(t, there.Release(context.Background(), held.permit.IDs()[1]))
		require.ErrorIs(t, there.Release(context.Background(), held.permit.IDs()[1]), rlock.ErrNotHeld)
		loss := requireLost(t, held, 3*time.Second)
		require.Equal(t, rlock.LostGone, loss.Reason)
		require.Equal(t, held.permit.IDs()[1], loss.Owner)
		require.ErrorIs(t, held.permit.Release(), rlock.ErrLost)
		eventuallyPermits(t, s, 2, 1)
		require.NoError(t, other.ctx.Err())
		require.NoError(t, b.do(t, "DEL", permitKey(b.name)).Error())
		require.ErrorIs(t, other.permit.Release(), rlock.ErrLost, "the release detects the loss")
		require.ErrorIs(t, context.Cause(other.ctx), rlock.ErrLost, "the loss cancels ctx")
		require.Equal(t, uint64(2), b.Stats().Lost)
	})
}

// If Redis has lost the number of free permits alone, TrySetPermits counts those that are held.
func TestPermitNumberIsForgotten(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		s := b.PermitSemaphore(b.name)
		setPermits(t, s, 3)
		held := acquire(t, s, 2)
		require.NoError(t, b.do(t, "DEL", b.name).Error())
		answer(s.TrySetPermits(context.Background(), 3)).is(t, true)
		requirePermits(t, s, 1, 2)
		require.NoError(t, held.permit.Release())
		requirePermits(t, s, 3, 0)
	})
}

// A permit that this process gives back by its id when its lease is over was lost because it expired, whoever notices first.
func TestPermitsThatHaveExpired(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		const lease = 2 * time.Second
		b := newFixture(t)
		s := b.PermitSemaphore(b.name, rlock.WithLease(lease))
		setPermits(t, s, 60)
		var held []permitSection
		var ends []time.Time
		var calls sync.WaitGroup
		for range 60 {
			p := acquire(t, s, 1)
			over := time.Now().Add(lease)
			held, ends = append(held, p), append(ends, over)
			calls.Go(func() {
				sleep(time.Until(over)) // and then beside the renewer
				_ = s.Release(context.Background(), p.permit.ID())
			})
		}
		calls.Wait()
		for i, p := range held {
			loss := requireLost(t, p, wakeTimeout)
			require.Equal(t, rlock.LostExpired, loss.Reason, "%d", i)
			require.False(t, loss.Since.After(ends[i]), "%v after its end", loss.Since.Sub(ends[i]))
		}
	})
}

// Permits are released and their leases changed by id, from the process that holds them and from another.
func TestPermitsFromElsewhere(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		ctx := context.Background()
		b := newFixture(t)
		s, there := b.PermitSemaphore(b.name), newClient(t, b.rdb).PermitSemaphore(b.name)
		setPermits(t, s, 9)
		lease := func(p permitSection) time.Duration {
			left := answer(there.LeaseTime(ctx, p.permit.ID())).ok(t)
			return left
		}
		own := acquire(t, s, 1)
		got := async(func() error { return s.Release(ctx, own.permit.ID()) })
		require.NoError(t, within(t, got, wakeTimeout))
		require.Equal(t, rlock.LostGone, requireLost(t, own, wakeTimeout).Reason)
		require.ErrorIs(t, own.permit.Release(), rlock.ErrLost)

		shorter := acquire(t, s, 1)
		require.NoError(t, s.UpdateLease(ctx, shorter.permit.ID(), 300*time.Millisecond))
		require.LessOrEqual(t, lease(shorter), 300*time.Millisecond)
		require.Equal(t, rlock.LostExpired, requireLost(t, shorter, wakeTimeout).Reason)
		require.ErrorIs(t, shorter.permit.Release(), rlock.ErrLost)

		longer := acquire(t, b.PermitSemaphore(b.name, rlock.WithLease(time.Second)), 1)
		require.NoError(t, s.UpdateLease(ctx, longer.permit.ID(), time.Minute))
		require.Greater(t, lease(longer), 50*time.Second)
		endless := acquire(t, b.PermitSemaphore(b.name, rlock.WithLease(time.Second)), 1)
		require.NoError(t, s.UpdateLease(ctx, endless.permit.ID(), rlock.NoExpiry))
		require.Equal(t, rlock.NoExpiry, lease(endless))

		far := acquire(t, b.PermitSemaphore(b.name, rlock.WithLease(time.Minute)), 1)
		require.NoError(t, there.UpdateLease(ctx, far.permit.ID(), time.Hour))
		require.Greater(t, lease(far), 50*time.Minute)
		sleep(1500 * time.Millisecond)
		for _, p := range []permitSection{longer, endless, far} {
			require.NoError(t, p.ctx.Err())
			require.NoError(t, p.permit.Release())
		}
		eventuallyPermits(t, s, 9, 0)

		gone := acquire(t, s, 1)
		require.NoError(t, b.do(t, "DEL", permitKey(b.name)).Error())
		require.ErrorIs(t, s.UpdateLease(ctx, gone.permit.ID(), time.Minute), rlock.ErrNotHeld)
		requireLost(t, gone, wakeTimeout)
		require.ErrorIs(t, gone.permit.Release(), rlock.ErrLost)
	})
}

// A shortened lease wakes waiters when it ends.
func TestPermitWaitersHearOfAShorterLease(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		s, there := b.PermitSemaphore(b.name), newClient(t, b.rdb).PermitSemaphore(b.name)
		setPermits(t, s, 1)
		held := acquire(t, s, 1)
		got, next := b.permitAsync(t, there, 1)
		require.NoError(t, s.UpdateLease(context.Background(), held.permit.ID(), time.Second))
		require.NoError(t, within(t, got, wakeTimeout))
		requireLostBy(t, held.ctx, time.Now())
		require.ErrorIs(t, held.permit.Release(), rlock.ErrLost)
		require.NoError(t, next.permit.Release())
	})
}

// So it does if the waiter, or who shortens the lease, is not in line.
func TestPermitOutsidersHearOfAShorterLease(t *testing.T) {
	for name, most := range map[string][2]int{"waits": {-1, 0}, "shortens": {0, -1}} {
		runVirtual(t, name, func(t *testing.T, b fixture) {
			setPermits(t, b.PermitSemaphore(b.name), 1)
			held := acquire(t, b.PermitSemaphore(b.name, rlock.WithLease(time.Hour)), 1)
			waits := newClient(t, b.rdb, rlock.Options{HandOff: rlock.HandOff{Most: most[0]}})
			got := async(func() error {
				_, _, err := waits.PermitSemaphore(b.name).Acquire(context.Background())
				return err
			})
			redistest.Eventually(t, testTimeout, func() bool { return waits.Stats().Waiting == 1 }, "it waits")
			other := newClient(t, b.rdb, rlock.Options{HandOff: rlock.HandOff{Most: most[1]}}).PermitSemaphore(b.name)
			require.NoError(t, other.UpdateLease(context.Background(), held.permit.ID(), time.Second))
			require.NoError(t, within(t, got, wakeTimeout))
		})
	}
}

// G2: a lease counts from the first request for the permit, even if the reply to that was lost. Here a grace keeps the permit in
// Redis for longer, so that its remaining time shows when the lease began.
func TestPermitLeaseCountsFromTheFirstCall(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		c, proxy, b := behindProxy(t, quickTimeout)
		watch := b.PermitSemaphore(b.name)
		setPermits(t, watch, 1)
		const grace = time.Minute
		s := c.PermitSemaphore(b.name, rlock.WithLease(5*time.Second), rlock.WithGrace(grace))
		proxy.OnReply(nthScript(1, redistest.Drop))
		began := time.Now()
		held := acquire(t, s, 1)
		late := time.Since(began)
		requireLost(t, held, wakeTimeout)
		left := answer(watch.LeaseTime(context.Background(), held.permit.ID())).ok(t)
		t.Logf("answered after %v; at the end of the trusted time, Redis keeps it for another %v", late, left)
		require.InDelta(t, grace.Seconds(), left.Seconds(), min(late.Seconds()/2, 0.5))
		require.ErrorIs(t, held.permit.Release(), rlock.ErrLost)
		eventuallyPermits(t, watch, 1, 0)

		noCalls(t) // otherwise the reply to that release would be lost
		proxy.OnReply(nthScript(1, redistest.Drop))
		_, p, err := c.PermitSemaphore(b.name, rlock.WithLease(50*time.Millisecond), rlock.WithGrace(grace)).Acquire(context.Background())
		require.ErrorIs(t, err, rlock.ErrLost)
		require.ErrorContains(t, err, "Redis took longer than the lease to answer")
		require.ErrorIs(t, p.Release(), rlock.ErrNotHeld)
		eventuallyPermits(t, watch, 1, 0)
		require.Zero(t, c.Stats().Holds)
	})
}

// Permits of 10,000 dead holders become free again, for calls of any kind.
func TestPermitsOfTheDead(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		s := b.PermitSemaphore(b.name)
		const dead = 10_000
		die := func() {
			args := []string{"ZADD", permitKey(b.name)}
			for i := range dead {
				args = append(args, "1000", fmt.Sprintf("%016d", i))
			}
			require.NoError(t, b.do(t, args...).Error())
		}
		require.NoError(t, b.do(t, "SET", b.name, "0").Error())
		die()
		requirePermits(t, s, dead, 0)
		held := acquire(t, s, 100)
		requirePermits(t, s, dead-100, 100)
		require.NoError(t, held.permit.Release())
		requirePermits(t, s, dead, 0)

		require.NoError(t, b.do(t, "DEL", b.name, permitKey(b.name), slotKey(b.name)).Error())
		require.NoError(t, b.do(t, "SET", b.name, strconv.Itoa(1-dead)).Error())
		die()
		for _, wait := range []time.Duration{0, time.Minute} {
			_, p, err := s.TryAcquire(context.Background(), wait)
			require.NoError(t, err, "the last permit to expire is the first free one")
			require.NoError(t, p.Release())
			require.NoError(t, b.do(t, "SET", b.name, strconv.Itoa(1-dead)).Error())
			die()
		}
	})
}

// The renewals of 1,000 permits of one process take 10 calls per period.
func TestPermitsAreRenewedInBatches(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		const n, watchdog, rounds = 300, 3 * time.Second, 4
		server := redistest.Start(t)
		b := fixture{rdb: server.Client(t), name: redistest.Name(t)}
		b.Client = newClient(t, server.Client(t), rlock.Options{WatchdogTimeout: watchdog})
		s := [2]*rlock.PermitSemaphore{b.PermitSemaphore(b.name), b.PermitSemaphore(b.name + ":other")}
		held := make([]permitSection, n)
		for i := range s {
			setPermits(t, s[i], n)
		}
		inParallel(n, func(i int) {
			ctx, p, err := s[i%2].Acquire(context.Background())
			assert.NoError(t, err)
			held[i] = permitSection{ctx, p}
		})
		sleep(watchdog / 2)
		calls := func() int64 { return redistest.Commands(t, b.rdb)["evalsha"] }
		before, began := calls(), time.Now()
		redistest.Eventually(t, testTimeout, func() bool { return calls()-before >= rounds*n/100 }, "they are renewed")
		took := time.Since(began)
		t.Logf("%d calls in %v", rounds*n/100, took)
		const period = watchdog / 3 * 19 / 20
		require.GreaterOrEqual(t, took, (rounds-1)*period, "the first round may begin at once")
		for _, h := range held {
			require.NoError(t, h.ctx.Err())
		}
		inParallel(n, func(i int) { assert.NoError(t, held[i].permit.Release()) })
		noCalls(t)
		for i := range s {
			requirePermits(t, s[i], n, 0)
		}
	})
}

// slowAnswer delays the answer to a command with the argument says, until it receives from come.
type slowAnswer struct {
	rueidis.Client
	says    string
	arrived chan<- struct{}
	come    <-chan struct{}
}

func (c slowAnswer) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	slow := slices.Contains(cmd.Commands(), c.says)
	r := c.Client.Do(ctx, cmd)
	if slow {
		close(c.arrived)
		<-c.come
	}
	return r
}

// G2: of two concurrent calls to UpdateLease, either may reach Redis last. So the holder trusts the shorter lease.
func TestPermitUpdatesOverlap(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		arrived, come := make(chan struct{}), make(chan struct{})
		s := newClient(t, slowAnswer{b.rdb, "3600000", arrived, come}).PermitSemaphore(b.name)
		setPermits(t, s, 1)
		held := acquire(t, s, 1)
		require.NoError(t, s.UpdateLease(context.Background(), held.permit.ID(), time.Minute)) // loads the script
		longer := async(func() error { return s.UpdateLease(context.Background(), held.permit.ID(), time.Hour) })
		<-arrived
		require.NoError(t, s.UpdateLease(context.Background(), held.permit.ID(), time.Second))
		close(come)
		require.NoError(t, within(t, longer, testTimeout))
		require.Equal(t, rlock.LostExpired, requireLost(t, held, testTimeout).Reason)
		require.ErrorIs(t, held.permit.Release(), rlock.ErrLost)
	})
}

// After an UpdateLease that Redis refused, or that was not sent, the permit is renewed as before. G2: one that another call has shortened
// meanwhile stays so.
func TestPermitUpdateThatIsNotMade(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b, ctx := newFixture(t), context.Background()
		proxy, arrived, come := redistest.StartProxy(t, redistest.Shared(t)), make(chan struct{}), make(chan struct{})
		s := newClient(t, slowAnswer{redistest.Dial(t, proxy.Addr()), "5000", arrived, come}).PermitSemaphore(b.name)
		setPermits(t, s, 1)
		held := acquire(t, s, 1)
		lasts := answer(s.LeaseTime(ctx, held.permit.ID())).ok(t)
		require.ErrorIs(t, b.PermitSemaphore(b.name+"'").UpdateLease(ctx, held.permit.ID(), lasts), rlock.ErrNotHeld) // loads the script
		refused := func(d time.Duration) {
			proxy.OnRequest(nthScript(1, redistest.Fail("OOM command not allowed when used memory > 'maxmemory'.")))
			err := s.UpdateLease(ctx, held.permit.ID(), d)
			require.ErrorContains(t, err, "OOM")
			require.NotErrorIs(t, err, rlock.ErrPending)
		}
		refused(time.Second)
		sleep(2 * lasts)
		require.NoError(t, held.ctx.Err())
		require.Greater(t, answer(s.LeaseTime(ctx, held.permit.ID())).ok(t), lasts/2, "it is renewed")

		shorter := async(func() error { return s.UpdateLease(ctx, held.permit.ID(), 5*time.Second) })
		<-arrived
		began := time.Now()
		refused(time.Hour)
		close(come)
		require.NoError(t, within(t, shorter, testTimeout))
		lost := requireLost(t, held, testTimeout)
		require.Equal(t, rlock.LostExpired, lost.Reason)
		require.LessOrEqual(t, lost.Since.Sub(began), 5*time.Second)
		require.ErrorIs(t, held.permit.Release(), rlock.ErrLost)
	})
}
