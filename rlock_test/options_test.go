package rlock_test

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// G2: a hold with WithMaxHold is renewed until its bound and lost then, whatever lease its levels ask for. Others get in once its
// unlock is called.
func TestMaxHold(t *testing.T) {
	const watchdog, most = 600 * time.Millisecond, 2 * time.Second
	for name, options := range map[string][]rlock.Option{
		"renewed":     {rlock.WithMaxHold(most)},
		"fixed lease": {rlock.WithMaxHold(most), rlock.WithLease(testTimeout)},
	} {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			b := newFixture(t, rlock.Options{WatchdogTimeout: watchdog})
			m, plain := b.Mutex(b.name, options...), b.Mutex(b.name)
			ctx, unlock, err := m.Lock(context.Background())
			acquired := time.Now()
			require.NoError(t, err)
			_, unlockInner, err := plain.Lock(ctx) // this handle has no bound
			require.NoError(t, err)
			inner, unlockShort := enter(t, ctx, b.Mutex(b.name, rlock.WithMaxHold(time.Millisecond)))
			waiter := lockAsync(t, newClient(t, b.rdb).Mutex(b.name))

			<-ctx.Done()
			requireTook(t, most, acquired, time.Now())
			require.Error(t, inner.Err())
			var loss *rlock.LostError
			require.ErrorAs(t, context.Cause(ctx), &loss)
			require.Equal(t, rlock.LostMaxHold, loss.Reason)
			require.EqualError(t, loss, `rlock: "`+b.name+`": lost: the longest hold was reached, 2s`)
			requireLockFails(t, ctx, m, rlock.ErrLost)
			require.ErrorIs(t, unlockShort(), rlock.ErrLost)
			require.ErrorIs(t, unlockInner(), rlock.ErrLost)
			require.ErrorIs(t, unlock(), rlock.ErrLost)
			waiter.getAndUnlock(t, soon)
		})
	}
}

// A section that hangs past its bound keeps others out for at most a third of the watchdog time longer. A bound shorter than the
// watchdog time is the lease in Redis, so others get in when it ends.
func TestMaxHoldOfASectionThatHangs(t *testing.T) {
	for _, row := range []struct{ most, watchdog, late time.Duration }{
		{time.Second, rlock.DefaultWatchdogTimeout, 0},
		{7 * time.Second, 2 * shortWatchdog, 2 * shortWatchdog / 3},
	} {
		redistest.RunVirtual(t, row.most.String(), func(t *testing.T) {
			b := newFixture(t, rlock.Options{WatchdogTimeout: row.watchdog})
			ctx, unlock := enter(t, context.Background(), b.Mutex(b.name, rlock.WithMaxHold(row.most)))
			next := lockAsync(t, newClient(t, b.rdb).Mutex(b.name))
			<-ctx.Done()
			got := next.gets(t, row.late+2*soon)
			require.ErrorIs(t, unlock(), rlock.ErrLost)
			require.NoError(t, got.ctx.Err())
			require.NoError(t, got.unlock())
		})
	}
}

// With WithMaxHold, an unlock in time is like any other. The bound of a handed-over hold counts from the hand-over.
func TestMaxHoldUnlockedInTime(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		const most = time.Second
		b := newFixture(t)
		other := newClient(t, b.rdb)
		m := b.Mutex(b.name, rlock.WithMaxHold(most))
		require.NoError(t, m.Do(context.Background(), func(context.Context) error { return nil }))
		for _, from := range []*rlock.Client{b.Client, other} {
			_, unlock := enter(t, context.Background(), from.Mutex(b.name))
			waiter := lockAsync(t, m)
			b.awaitSubscribers(t, b.name, 1)
			redistest.Eventually(t, testTimeout, func() bool { return waiting(t) == 1 }, "the caller waits")
			require.NoError(t, unlock())
			got := waiter.gets(t, soon)
			awaitEnd(t, got.ctx)
			require.LessOrEqual(t, b.pttl(t, b.name), 2*time.Second, "the grant is not renewed")
			requireTook(t, most, got.at, time.Now())
			require.ErrorIs(t, context.Cause(got.ctx), rlock.ErrLost)
			require.ErrorIs(t, got.unlock(), rlock.ErrLost)
			redistest.Eventually(t, soon, func() bool { return !b.exists(t, b.name) }, "the lock is released after the loss")
		}
	})
}

// G1, G2: WithGrace keeps the lock in Redis for longer than the hold is trusted: at acquire, re-entry, renewal, hand-off and grant.
func TestGrace(t *testing.T) {
	const grace = 10 * time.Second
	for name, options := range map[string][]rlock.Option{
		"renewed":     {rlock.WithGrace(grace)},
		"fixed lease": {rlock.WithGrace(grace), rlock.WithLease(shortWatchdog)},
	} {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			b := newFixture(t, rlock.Options{WatchdogTimeout: shortWatchdog})
			m := b.Mutex(b.name, options...)
			within := func(when string) {
				t.Helper()
				ttl := b.pttl(t, b.name)
				require.Greater(t, ttl, grace+shortWatchdog/2, when)
				require.LessOrEqual(t, ttl, grace+shortWatchdog, when)
			}
			ctx, unlock := enter(t, context.Background(), m)
			within("acquired")
			b.do(t, "PEXPIRE", b.name, "1000")
			_, unlockInner := enter(t, ctx, b.Mutex(b.name))
			owner := rlock.Owner(ctx)
			b.awaitFields(t, b.name, map[string]int64{owner: 2})
			within("re-entered through another handle")
			b.do(t, "PEXPIRE", b.name, "1000")
			require.NoError(t, unlockInner())
			b.awaitFields(t, b.name, map[string]int64{owner: 1})
			within("unlocked in part")
			if name == "renewed" {
				b.do(t, "PEXPIRE", b.name, "2500")
				redistest.Eventually(t, shortWatchdog/2, func() bool { return b.pttl(t, b.name) > grace }, "the lease is renewed")
				within("renewed")
			}

			here := lockAsync(t, m)
			b.awaitSubscribers(t, b.name, 1)
			redistest.Eventually(t, testTimeout, func() bool { return waiting(t) == 1 }, "the caller waits")
			require.NoError(t, unlock())
			got := here.gets(t, soon)
			within("handed off")
			there := lockAsync(t, newClient(t, b.rdb, rlock.Options{WatchdogTimeout: shortWatchdog}).Mutex(b.name, options...))
			b.awaitPlace(t, b.name)
			require.NoError(t, got.unlock())
			got = there.gets(t, soon)
			within("granted by another process")
			require.NoError(t, got.unlock())
			require.False(t, b.exists(t, b.name), "an unlock frees the lock without a grace")
		})
	}
}

// G2: a loss cancels ctx when the hold cannot be trusted any more; others get in only after the grace.
func TestGraceAfterALoss(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		const grace = time.Second
		c, proxy, past := behindProxy(t, anyWay, rlock.Options{WatchdogTimeout: shortWatchdog})
		ctx, unlock := enter(t, context.Background(), c.Mutex(past.name, rlock.WithGrace(grace)))
		next := lockAsync(t, past.Mutex(past.name))
		proxy.BlackHole(true)
		<-ctx.Done()
		var lost *rlock.LostError
		require.ErrorAs(t, context.Cause(ctx), &lost)
		next.stillWaits(t)
		got := next.gets(t, testTimeout)
		require.Greater(t, got.at.Sub(lost.Since), grace-grace/10)
		require.Less(t, got.at.Sub(lost.Since), grace+soon)
		require.ErrorIs(t, unlock(), rlock.ErrLost)
		proxy.BlackHole(false)
		require.NoError(t, got.unlock())
	})
}

// awaitPlace waits until a process is in the lock's queue.
func (b fixture) awaitPlace(t testing.TB, name string) {
	t.Helper()
	redistest.Eventually(t, testTimeout, func() bool { return b.exists(t, "rlock_queue:{"+name+"}") }, "a process is in the queue")
}

// The longest durations work, alone and together.
func TestHugeOptions(t *testing.T) {
	b := newFixture(t)
	const most = time.Duration(math.MaxInt64)
	all := []rlock.Option{rlock.WithLease(most), rlock.WithMaxHold(most), rlock.WithGrace(most), rlock.WithMinHold(most)}
	for i := range all {
		for _, options := range [][]rlock.Option{all[i : i+1], all[:i+1]} {
			m := b.Mutex(b.name, options...)
			ctx, unlock := enter(t, context.Background(), m)
			require.NoError(t, ctx.Err())
			require.NoError(t, unlock())
			ttl := answer(m.TTL(context.Background())).ok(t)
			if i == len(all)-1 {
				require.Greater(t, ttl, 290*365*24*time.Hour)
				answer(m.ForceUnlock(context.Background())).ok(t)
			} else {
				require.Zero(t, ttl)
			}
		}
	}
}
