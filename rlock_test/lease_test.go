package rlock_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

const (
	shortWatchdog = 600 * time.Millisecond
	atMost        = time.Minute // no test waits that long
)

func (b bench) pttl(t testing.TB, name string) time.Duration {
	t.Helper()
	n, err := b.do(t, "PTTL", name).AsInt64()
	require.NoError(t, err)
	return time.Duration(n) * time.Millisecond
}

// watch collects the key's remaining time for a while.
func (b bench) watch(t testing.TB, name string, d time.Duration) (ttls []time.Duration) {
	t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); {
		ttls = append(ttls, b.pttl(t, name))
	}
	return ttls
}

func TestHoldOutlivesItsWatchdogTime(t *testing.T) {
	b := newBench(t, rlock.Options{WatchdogTimeout: shortWatchdog})
	err := b.Mutex(b.name).Do(context.Background(), func(ctx context.Context) error {
		for _, ttl := range b.watch(t, b.name, 3*shortWatchdog) {
			assert.Greater(t, ttl, shortWatchdog/4)
		}
		return ctx.Err()
	})
	require.NoError(t, err)
	require.False(t, b.exists(t, b.name))
}

// That the holder is told in time is the next test's.
func TestFixedLeaseIsNotRenewed(t *testing.T) {
	const fixed = 2 * time.Second
	b := newBench(t, rlock.Options{WatchdogTimeout: fixed})
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
	got := next.get(t, time.Second)
	require.NoError(t, got.err)
	require.GreaterOrEqual(t, got.at.Sub(began), fixed)

	err = unlock()
	require.ErrorIs(t, err, rlock.ErrLost)
	require.ErrorIs(t, err, rlock.ErrNotHeld)
	require.Equal(t, map[string]int64{rlock.Owner(got.ctx): 1}, b.fields(t, b.name), "the new hold is untouched")
	require.NoError(t, got.unlock())
}

// G2: the old holder is told before the new one can be in, since what it trusts in began when its acquire was
// sent. On a slow way that is earlier than in Redis, by delay, and the reply is later than that, by delay.
func TestHolderIsToldBeforeTheLeaseEnds(t *testing.T) {
	const lease, delay = 2 * time.Second, 200 * time.Millisecond
	proxy := redistest.StartProxy(t, redistest.Shared(t))
	b := newBench(t)
	oneConnection := func(o *rueidis.ClientOption) { o.PipelineMultiplex = -1 } // none is made on the slow way
	far := newClient(t, redistest.Dial(t, proxy.Addr(), oneConnection))
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
		t.Run(fmt.Sprintf("outer=%v/inner=%v", tc.outer, tc.inner), func(t *testing.T) {
			b := newBench(t, rlock.Options{WatchdogTimeout: watchdog})
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
	b := newBench(t, rlock.Options{WatchdogTimeout: shortWatchdog})
	ctx, unlock, err := b.Mutex(b.name, rlock.WithLease(300*time.Millisecond)).Lock(context.Background())
	require.NoError(t, err)
	inner, unlockInner, err := b.Mutex(b.name).Lock(ctx)
	require.NoError(t, err)
	for _, ttl := range b.watch(t, b.name, 2*shortWatchdog) {
		require.Positive(t, ttl)
	}
	require.NoError(t, inner.Err())
	require.NoError(t, unlockInner())
	<-ctx.Done()
	require.ErrorIs(t, context.Cause(ctx), rlock.ErrLost)
	require.ErrorIs(t, unlock(), rlock.ErrLost)
}

// G7: after an unlock nothing renews the key: not when the same owner holds it again with a lease
// of its own, and not when it belongs to somebody else.
func TestNoGhostRenewal(t *testing.T) {
	const watchdog = 900 * time.Millisecond
	b := newBench(t, rlock.Options{WatchdogTimeout: watchdog})
	err := b.Mutex(b.name+":outer").Do(context.Background(), func(ctx context.Context) error {
		for i := range 12 {
			_, unlock, err := b.Mutex(b.name).Lock(ctx)
			require.NoError(t, err)
			pass(watchdog/3 - time.Duration(3*i)*time.Millisecond) // the renewal is due at about that time
			require.NoError(t, unlock())
			require.False(t, b.exists(t, b.name))
			held, unlock, err := b.Mutex(b.name, rlock.WithLease(watchdog/2)).Lock(ctx)
			require.NoError(t, err)
			last := watchdog / 2
			for _, ttl := range b.watch(t, b.name, 30*time.Millisecond) {
				require.LessOrEqual(t, ttl, last, "PTTL rose")
				last = ttl
			}
			require.NoError(t, held.Err())
			require.NoError(t, unlock())
		}
		return nil
	})
	require.NoError(t, err)
}

// The watchdog must go with the hold even if the Lock was cancelled at any moment.
func TestWatchdogEndsWithCancelledAcquires(t *testing.T) {
	b := newBench(t, rlock.Options{WatchdogTimeout: 100 * time.Millisecond})
	for i := range 300 {
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(i)*3*time.Microsecond)
		_, unlock, err := b.Mutex(b.name).Lock(ctx)
		if err == nil {
			require.NoError(t, unlock())
		}
		cancel()
	}
	redistest.Eventually(t, 5*time.Second, func() bool { return !b.exists(t, b.name) }, "the key is gone")
	for _, ttl := range b.watch(t, b.name, 300*time.Millisecond) {
		require.Negative(t, ttl)
	}
}

// Two owners of one process hand the lock over at the moments of renewals: neither ends the
// other's renewals.
func TestRenewalSurvivesHandOver(t *testing.T) {
	b := newBench(t, rlock.Options{WatchdogTimeout: 150 * time.Millisecond})
	m := b.Mutex(b.name)
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for range 6 {
				err := m.Do(context.Background(), func(ctx context.Context) error {
					timer := time.NewTimer(250 * time.Millisecond) // longer than the watchdog time
					defer timer.Stop()
					select {
					case <-timer.C:
						return nil
					case <-ctx.Done():
						return context.Cause(ctx)
					}
				})
				assert.NoError(t, err)
			}
		})
	}
	wg.Wait()
}

func TestManyHoldsNoneLost(t *testing.T) {
	b := newBench(t, rlock.Options{WatchdogTimeout: 3 * time.Second})
	const n = 10_000
	ctxs := make([]context.Context, n)
	unlocks := make([]rlock.UnlockFunc, n)
	inParallel(n, func(i int) {
		var err error
		ctxs[i], unlocks[i], err = b.Mutex(fmt.Sprintf("%s:%d", b.name, i)).Lock(context.Background())
		assert.NoError(t, err)
	})
	before := redistest.Commands(t, b.rdb)
	pass(2 * 3 * time.Second) // two watchdog times of renewals
	after := redistest.Commands(t, b.rdb)
	calls := after["evalsha"] - before["evalsha"]
	t.Logf("%d script calls renewed %d holds for two watchdog times", calls, n)
	require.Less(t, calls, int64(2*n/10), "renewals are batched")
	lost := 0
	for _, ctx := range ctxs {
		if ctx.Err() != nil {
			lost++
		}
	}
	require.Zero(t, lost)
	inParallel(n, func(i int) { assert.NoError(t, unlocks[i]()) })
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
