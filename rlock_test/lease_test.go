package rlock_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

const (
	// shortWatchdog is for holds that have to be seen renewed. A renewal that is due has two thirds of it left, and a
	// loaded machine may stop a process for the better part of a second.
	shortWatchdog = 3 * time.Second
	testTimeout   = time.Minute // no test waits that long
)

func (b fixture) pttl(t testing.TB, name string) time.Duration {
	t.Helper()
	n, err := b.do(t, "PTTL", name).AsInt64()
	require.NoError(t, err)
	return time.Duration(n) * time.Millisecond
}

// watch collects the key's remaining time for a while.
func (b fixture) watch(t testing.TB, name string, d time.Duration) (ttls []time.Duration) {
	t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); {
		ttls = append(ttls, b.pttl(t, name))
		sleep(time.Millisecond)
	}
	return ttls
}

func TestHoldOutlivesItsWatchdogTime(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t, rlock.Options{WatchdogTimeout: shortWatchdog})
		err := b.Mutex(b.name).Do(context.Background(), func(ctx context.Context) error {
			for _, ttl := range b.watch(t, b.name, shortWatchdog+shortWatchdog/2) {
				assert.Positive(t, ttl)
			}
			return ctx.Err()
		})
		require.NoError(t, err)
		require.False(t, b.exists(t, b.name))
	})
}

// The next test checks that the holder's ctx is cancelled in time.
func TestFixedLeaseIsNotRenewed(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		const fixed = 2 * time.Second
		b := newFixture(t, rlock.Options{WatchdogTimeout: fixed})
		began := time.Now()
		ctx, unlock, err := b.Mutex(b.name, rlock.WithLease(fixed)).Lock(context.Background())
		require.NoError(t, err)
		require.Greater(t, b.pttl(t, b.name), fixed/2)
		next := lockAsync(t, newClient(t, b.rdb).Mutex(b.name))
		last := fixed
		for _, ttl := range b.watch(t, b.name, fixed/2) { // a renewal would be due after a third
			require.LessOrEqual(t, ttl, last, "PTTL rose")
			last = ttl
		}

		select {
		case <-ctx.Done():
		case <-time.After(2 * fixed):
			require.FailNow(t, "the lease does not end")
		}
		require.ErrorIs(t, context.Cause(ctx), rlock.ErrLost)
		got := next.get(t, soon)
		require.NoError(t, got.err)
		require.GreaterOrEqual(t, got.at.Sub(began), fixed)

		err = unlock()
		require.ErrorIs(t, err, rlock.ErrLost)
		require.ErrorIs(t, err, rlock.ErrNotHeld)
		require.Equal(t, map[string]int64{rlock.Owner(got.ctx): 1}, b.fields(t, b.name), "the new hold is untouched")
		require.NoError(t, got.unlock())
	})
}

// G2: the holder's ctx is cancelled before another can be in, since it counts the lease from the moment its acquire was sent. On a slow
// network that is delay before Redis counts it, and the reply arrives another delay later.
func TestHolderIsToldBeforeTheLeaseEnds(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		const lease, delay = 10 * time.Second, 500 * time.Millisecond
		proxy := redistest.StartProxy(t, redistest.Shared(t))
		b := newFixture(t)
		far := newClient(t, redistest.Dial(t, proxy.Addr(), oneConn)) // none is made on the slow way
		loadScripts(t, far)
		proxy.Delay(delay)
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				name := fmt.Sprintf("%s:%d", b.name, i)
				ctx, unlock, err := far.Mutex(name, rlock.WithLease(lease)).Lock(context.Background())
				if !assert.NoError(t, err) {
					return
				}
				_, unlockNext, err := b.Mutex(name).Lock(context.Background())
				told := ctx.Err()
				assert.NoError(t, err)
				assert.Error(t, told, "two live owners")
				assert.ErrorIs(t, unlock(), rlock.ErrLost)
				assert.NoError(t, unlockNext())
			})
		}
		wg.Wait()
	})
}

// The lease belongs to the hold, not to the handle: {lease, none} x {first, re-entry}, on one handle
// or two.
func TestLeaseOfReentries(t *testing.T) {
	const watchdog, short, long = 20 * time.Second, 10 * time.Second, 60 * time.Second
	none := time.Duration(0)
	for _, tc := range []struct {
		outer, inner   time.Duration // leases; 0: none
		during, after  time.Duration // expiry in the inner section and after it
		renewedBetween bool          // the watchdog keeps the hold after the inner unlock
	}{
		{none, none, watchdog, watchdog, true},
		{none, short, watchdog, watchdog, true},
		{none, long, long, long, true},
		{short, none, watchdog, watchdog, false},
		{long, none, long, long, false},
		{short, short, short, short, false},
		{short, long, long, long, false},
		{long, short, long, long, false},
	} {
		redistest.RunVirtual(t, fmt.Sprintf("outer=%v/inner=%v", tc.outer, tc.inner), func(t *testing.T) {
			b := newFixture(t, rlock.Options{WatchdogTimeout: watchdog})
			handle := func(lease time.Duration) *rlock.Mutex {
				if lease == none {
					return b.Mutex(b.name)
				}
				return b.Mutex(b.name, rlock.WithLease(lease))
			}
			about := func(want time.Duration) {
				t.Helper()
				require.InDelta(t, want, b.pttl(t, b.name), float64(2*time.Second))
			}
			ctx, unlock, err := handle(tc.outer).Lock(context.Background())
			require.NoError(t, err)
			about(max(tc.outer, map[bool]time.Duration{true: watchdog}[tc.outer == none]))
			_, unlockInner, err := handle(tc.inner).Lock(ctx)
			require.NoError(t, err)
			about(tc.during)
			require.NoError(t, unlockInner())
			about(tc.after)
			require.NoError(t, unlock())
		})
	}
}

// A section without a lease is kept alive inside one that has a short one, and the renewals end
// with it.
func TestRenewedReentryInAFixedLease(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t, rlock.Options{WatchdogTimeout: shortWatchdog})
		ctx, unlock, err := b.Mutex(b.name, rlock.WithLease(shortWatchdog*2/3)).Lock(context.Background())
		require.NoError(t, err)
		inner, unlockInner, err := b.Mutex(b.name).Lock(ctx)
		require.NoError(t, err)
		for _, ttl := range b.watch(t, b.name, shortWatchdog+shortWatchdog/4) {
			require.Positive(t, ttl)
		}
		require.NoError(t, inner.Err())
		require.NoError(t, unlockInner())
		<-ctx.Done()
		require.ErrorIs(t, context.Cause(ctx), rlock.ErrLost)
		require.ErrorIs(t, unlock(), rlock.ErrLost)
	})
}

// G7: after an unlock nothing renews the key: not when the same owner holds it again with a lease
// of its own, and not when it belongs to somebody else. The unlocks are spread over the time in which the renewals,
// with their jitter, are due.
func TestNoGhostRenewal(t *testing.T) {
	redistest.OnlyVirtual(t, "it is about moments", func(t *testing.T) {
		const n, step = 40, 3 * time.Millisecond
		const lease = shortWatchdog * 3 / 4 // a renewal would prolong it
		b := newFixture(t, rlock.Options{WatchdogTimeout: shortWatchdog})
		name := func(i int) string { return fmt.Sprintf("%s:%d", b.name, i) }
		err := b.Mutex(b.name+":outer").Do(context.Background(), func(ctx context.Context) error {
			var at, locked [n]time.Time
			var held [n]context.Context
			var unlocks [n]rlock.UnlockFunc
			for i := range n {
				var err error
				_, unlocks[i], err = b.Mutex(name(i)).Lock(ctx)
				require.NoError(t, err)
				at[i] = time.Now().Add(shortWatchdog/3 - time.Duration(n-i)*step)
			}
			for i := range n {
				sleep(time.Until(at[i]))
				require.NoError(t, unlocks[i]())
				require.False(t, b.exists(t, name(i)))
				var err error
				held[i], unlocks[i], err = b.Mutex(name(i), rlock.WithLease(lease)).Lock(ctx)
				require.NoError(t, err)
				locked[i] = time.Now()
			}
			for end := time.Now().Add(100 * time.Millisecond); time.Now().Before(end); sleep(10 * time.Millisecond) {
				for i := range n {
					gone := time.Since(locked[i])
					require.LessOrEqual(t, b.pttl(t, name(i)), lease-gone, "renewed")
				}
			}
			for i := range n {
				require.NoError(t, held[i].Err())
				require.NoError(t, unlocks[i]())
			}
			return nil
		})
		require.NoError(t, err)
	})
}

// The watchdog must go with the hold even if the Lock was cancelled at any moment.
func TestWatchdogEndsWithCancelledAcquires(t *testing.T) {
	redistest.OnlyVirtual(t, "it ends calls at each moment of a round trip", func(t *testing.T) {
		c, proxy, past := behindProxy(t, anyWay, rlock.Options{WatchdogTimeout: shortWatchdog})
		const oneWay = time.Millisecond
		proxy.Delay(oneWay)
		for i := range 60 {
			ctx, cancel := context.WithTimeout(context.Background(), time.Duration(i)*oneWay/20)
			_, unlock, err := c.Mutex(past.name).Lock(ctx)
			if err == nil {
				require.NoError(t, unlock())
			}
			cancel()
		}
		redistest.Eventually(t, shortWatchdog, func() bool { return !past.exists(t, past.name) }, "the key is gone")
		for _, ttl := range past.watch(t, past.name, 300*time.Millisecond) {
			require.Negative(t, ttl)
		}
	})
}

// Two owners of one process hand the lock over at the moments of renewals: neither ends the
// other's renewals, and the last hold outlives its watchdog time.
func TestRenewalSurvivesHandOver(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t, rlock.Options{WatchdogTimeout: shortWatchdog})
		section := func(m *rlock.Mutex, d time.Duration) {
			assert.NoError(t, m.Do(context.Background(), func(ctx context.Context) error {
				timer := time.NewTimer(d)
				defer timer.Stop()
				select {
				case <-timer.C:
					return nil
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			}))
		}
		var wg sync.WaitGroup
		for i := range 20 {
			m := b.Mutex(fmt.Sprintf("%s:%d", b.name, i))
			due := shortWatchdog/3 - time.Duration(i)*5*time.Millisecond // at about that time
			wg.Go(func() {
				section(m, due)
				section(m, shortWatchdog+shortWatchdog/4)
			})
			wg.Go(func() { section(m, due) })
		}
		wg.Wait()
	})
}

func TestManyHoldsNoneLost(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		const n, watchdog = 1_000, 2 * shortWatchdog
		s := redistest.Start(t)
		b := fixture{rdb: s.Client(t), name: "many"}
		b.Client = newClient(t, b.rdb, rlock.Options{WatchdogTimeout: watchdog})
		ctxs := make([]context.Context, n)
		unlocks := make([]rlock.UnlockFunc, n)
		inParallel(n, func(i int) {
			var err error
			ctxs[i], unlocks[i], err = b.Mutex(fmt.Sprintf("%s:%d", b.name, i)).Lock(context.Background())
			assert.NoError(t, err)
		})
		before := redistest.Commands(t, b.rdb)
		sleep(watchdog + watchdog/3) // four renewals of each
		after := redistest.Commands(t, b.rdb)
		calls := after["evalsha"] - before["evalsha"]
		t.Logf("%d script calls renewed %d holds four times", calls, n)
		require.Less(t, calls, int64(4*n/30), "renewals are batched")
		lost := 0
		for _, ctx := range ctxs {
			if ctx.Err() != nil {
				lost++
			}
		}
		require.Zero(t, lost)
		inParallel(n, func(i int) { assert.NoError(t, unlocks[i]()) })
	})
}

// inParallel calls f with 0 to n-1 on 64 goroutines.
func inParallel(n int, f func(i int)) {
	var wg sync.WaitGroup
	next := make(chan int)
	for range 64 {
		wg.Go(func() {
			for i := range next {
				f(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
}
