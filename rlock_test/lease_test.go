package rlock_test

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	sections "github.com/go-rlock/rlock/internal/tenure"
	"github.com/go-rlock/rlock/internal/testing/bubble"
	"github.com/go-rlock/rlock/internal/testing/redistest"
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
	n := answer(b.do(t, "PTTL", name).AsInt64()).ok(t)
	return time.Duration(n) * time.Millisecond
}

// requirePTTL requires that the lock's lease has just begun: exactly in the virtual world.
func (b fixture) requirePTTL(t testing.TB, want time.Duration) {
	t.Helper()
	if left := b.pttl(t, b.name); redistest.IsVirtual(t) {
		require.Equal(t, want, left)
	} else {
		require.LessOrEqual(t, left, want)
		require.Positive(t, left)
	}
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

// awaitRenewals waits until each of some locks is renewed.
func (b fixture) awaitRenewals(t testing.TB, names ...string) {
	t.Helper()
	shortest := make(map[string]time.Duration)
	for _, name := range names {
		shortest[name] = b.pttl(t, name)
	}
	redistest.Eventually(t, testTimeout, func() bool {
		maps.DeleteFunc(shortest, func(name string, before time.Duration) bool {
			left := b.pttl(t, name)
			shortest[name] = min(before, left)
			return left > before
		})
		return len(shortest) == 0
	}, "they are renewed")
}

func TestFixedLeaseIsNotRenewed(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		const fixed = 2 * time.Second
		b := newFixture(t, rlock.Options{WatchdogTimeout: fixed})
		began := time.Now()
		a := locked(t, b.Mutex(b.name, rlock.WithLease(fixed)))
		require.Greater(t, b.pttl(t, b.name), fixed/2)
		next := lockAsync(t, newClient(t, b.rdb).Mutex(b.name))
		last := fixed
		for _, ttl := range b.watch(t, b.name, fixed/2) { // a renewal would be due after a third
			require.LessOrEqual(t, ttl, last, "PTTL rose")
			last = ttl
		}
		redistest.Within(t, 2*fixed, a.ctx.Done(), "the lease ends")
		require.ErrorIs(t, context.Cause(a.ctx), rlock.ErrLost)
		got := next.gets(t, soon)
		require.GreaterOrEqual(t, got.at.Sub(began), fixed)

		err := a.unlock()
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
		a := locked(t, far.Mutex(b.name, rlock.WithLease(lease)))
		_, unlockNext, err := b.Mutex(b.name).Lock(context.Background())
		told := a.ctx.Err()
		require.NoError(t, err)
		require.Error(t, told, "two live owners")
		require.ErrorIs(t, a.unlock(), rlock.ErrLost)
		require.NoError(t, unlockNext())
	})
}

// The lease belongs to the hold, not to the handle: {lease, none} x {first, re-entry}, on one handle or two. No time passes.
func TestLeaseOfReentries(t *testing.T) {
	const watchdog, short, long = 20 * time.Second, 10 * time.Second, 60 * time.Second
	const none = time.Duration(0)
	for _, row := range []struct {
		outer, inner         time.Duration // leases
		before, during, last time.Duration // expiry before the inner section, in it, and after it
	}{
		{none, none, watchdog, watchdog, watchdog},
		{none, short, watchdog, watchdog, watchdog},
		{none, long, watchdog, long, long},
		{short, none, short, watchdog, watchdog},
		{long, none, long, long, long},
		{short, short, short, short, short},
		{short, long, short, long, long},
		{long, short, long, long, long},
	} {
		redistest.RunVirtual(t, fmt.Sprintf("outer=%v/inner=%v", row.outer, row.inner), func(t *testing.T) {
			b := newFixture(t, rlock.Options{WatchdogTimeout: watchdog})
			handle := func(lease time.Duration) *rlock.Mutex {
				if lease == none {
					return b.Mutex(b.name)
				}
				return b.Mutex(b.name, rlock.WithLease(lease))
			}
			lasts := func(want time.Duration) {
				t.Helper()
				require.InDelta(t, want, b.pttl(t, b.name), float64(2*time.Second))
			}
			outer := locked(t, handle(row.outer))
			lasts(row.before)
			inner := locked(t, under{outer.ctx, handle(row.inner)})
			lasts(row.during)
			require.NoError(t, inner.unlock())
			lasts(row.last)
			require.NoError(t, outer.unlock())
		})
	}
}

// A section without a lease is kept alive inside one that has a short one, and the renewals end
// with it.
func TestRenewedReentryInAFixedLease(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t, rlock.Options{WatchdogTimeout: shortWatchdog})
		outer := locked(t, b.Mutex(b.name, rlock.WithLease(shortWatchdog*2/3)))
		inner := locked(t, under{outer.ctx, b.Mutex(b.name)})
		for _, ttl := range b.watch(t, b.name, shortWatchdog+shortWatchdog/4) {
			require.Positive(t, ttl)
		}
		require.NoError(t, inner.ctx.Err())
		require.NoError(t, inner.unlock())
		awaitEnd(t, outer.ctx)
		require.ErrorIs(t, context.Cause(outer.ctx), rlock.ErrLost)
		require.ErrorIs(t, outer.unlock(), rlock.ErrLost)
	})
}

// G7: after an unlock nothing renews the key, though the next hold is taken at once, with a lease of its own. The unlocks are spread over the
// time in which the renewals, with their jitter, are due.
func TestNoGhostRenewal(t *testing.T) {
	redistest.OnlyVirtual(t, "it is about moments", func(t *testing.T) {
		const n, step, looks = 40, 3 * time.Millisecond, 100 * time.Millisecond
		const lease = shortWatchdog * 3 / 4 // a renewal would prolong it
		b := newFixture(t, rlock.Options{WatchdogTimeout: shortWatchdog})
		for i := range n {
			a := locked(t, b.Mutex(b.name))
			sleep(shortWatchdog/3 - time.Duration(i)*step)
			require.NoError(t, a.unlock())
			require.False(t, b.exists(t, b.name))
			next := locked(t, b.Mutex(b.name, rlock.WithLease(lease)))
			sleep(looks)
			require.LessOrEqual(t, b.pttl(t, b.name), lease-looks, "renewed")
			require.NoError(t, next.ctx.Err())
			require.NoError(t, next.unlock())
		}
	})
}

// Two owners of one process hand the lock over at the moments of renewals: neither ends the
// other's renewals, and the last hold outlives its watchdog time.
func TestRenewalSurvivesHandOver(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t, rlock.Options{WatchdogTimeout: shortWatchdog})
		for i := range 20 {
			m := b.Mutex(fmt.Sprint(b.name, i))
			a, next := locked(t, m), lockAsync(t, m)
			sleep(shortWatchdog/3 - time.Duration(i)*5*time.Millisecond) // at about that time
			require.NoError(t, a.unlock())
			a = next.gets(t, testTimeout)
			sleep(shortWatchdog + shortWatchdog/4)
			require.NoError(t, a.ctx.Err())
			require.NoError(t, a.unlock())
		}
	})
}

func TestManyHoldsNoneLost(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		const n, watchdog = 1_000, 2 * shortWatchdog
		s := redistest.Start(t)
		b := fixture{rdb: s.Client(t), name: "many"}
		b.Client = newClient(t, b.rdb, rlock.Options{WatchdogTimeout: watchdog})
		held := make([]lockResult, n)
		inParallel(n, func(i int) {
			held[i].ctx, held[i].unlock, held[i].err = b.Mutex(fmt.Sprintf("%s:%d", b.name, i)).Lock(context.Background())
			assert.NoError(t, held[i].err)
		})
		before := redistest.Commands(t, b.rdb)
		sleep(watchdog + watchdog/3) // four renewals of each
		after := redistest.Commands(t, b.rdb)
		require.Less(t, after["evalsha"]-before["evalsha"], int64(4*n/30), "renewals are batched")
		for _, a := range held {
			require.NoError(t, a.ctx.Err())
		}
		inParallel(n, func(i int) { assert.NoError(t, held[i].unlock()) })
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

// A lock handed from one process to another on a cluster has the watchdog time of the waiter's handle from the first renewal on. Package
// rlocktest tests the rest of WithWatchdog, in virtual time.
func TestHandOverBetweenWatchdogTimesOnACluster(t *testing.T) {
	cluster := redistest.SharedCluster(t)
	redistest.Parallel(t)
	rdb := cluster.Client(t)
	b := fixture{rdb: rdb, name: redistest.Name(t)}
	_, unlock := enter(t, context.Background(), newClient(t, rdb).Mutex(b.name))
	const d = 2 * rlock.DefaultWatchdogTimeout
	waiter := lockAsync(t, newClient(t, rdb).Mutex(b.name, rlock.WithWatchdog(d)))
	b.awaitPlace(t, b.name)
	require.NoError(t, unlock())
	got := waiter.gets(t, soon)
	redistest.Eventually(t, soon, func() bool { return b.pttl(t, b.name) > d*3/4 }, "renewed")
	require.LessOrEqual(t, b.pttl(t, b.name), d)
	require.NoError(t, got.ctx.Err())
	require.NoError(t, got.unlock())
	require.False(t, b.exists(t, b.name))
}

// TrustedUntil is the end of the shortest lease in ctx.
func TestTrustedUntil(t *testing.T) {
	redistest.OnlyVirtual(t, "exact times", func(t *testing.T) {
		b := newFixture(t)
		ctx, began := context.Background(), time.Now()
		_, ok := rlock.TrustedUntil(ctx)
		require.False(t, ok, "no hold")
		outer, unlock := enter(t, ctx, b.Mutex(b.name))
		until, ok := rlock.TrustedUntil(outer)
		require.True(t, ok)
		require.Equal(t, 30*time.Second, until.Sub(began))
		sleep(15 * time.Second)
		until, _ = rlock.TrustedUntil(outer)
		require.Greater(t, until.Sub(began), 39*time.Second, "renewed")
		renewed := until

		inner, unlockInner := enter(t, outer, b.Mutex(b.name+":2", rlock.WithLease(time.Second)))
		until, _ = rlock.TrustedUntil(inner)
		require.Equal(t, 16*time.Second, until.Sub(began), "the shortest")
		<-inner.Done()
		until, ok = rlock.TrustedUntil(inner)
		require.True(t, ok && until.IsZero(), "lost")
		require.ErrorIs(t, unlockInner(), rlock.ErrLost)
		until, _ = rlock.TrustedUntil(outer)
		require.Equal(t, renewed, until)
		require.NoError(t, unlock())
		_, ok = rlock.TrustedUntil(outer)
		require.False(t, ok, "unlocked")

		s := b.PermitSemaphore(b.name + ":3")
		require.NoError(t, s.SetPermits(ctx, 1))
		held, p, err := s.Acquire(ctx)
		require.NoError(t, err)
		until, ok = rlock.TrustedUntil(held)
		require.True(t, ok)
		require.Equal(t, 30*time.Second, time.Until(until))
		plain := b.Semaphore(b.name + ":4")
		answer(plain.TrySetPermits(ctx, 1)).ok(t)
		for outer, leased := range map[context.Context]bool{ctx: false, held: true} {
			require.NoError(t, plain.Do(outer, 1, func(ctx context.Context) error {
				end, ok := rlock.TrustedUntil(ctx)
				require.Equal(t, leased, ok, "its permits have no lease")
				require.Equal(t, leased, end.Equal(until))
				return nil
			}))
		}
		require.NoError(t, p.Release())
	})
}

// staleLock is a lock whose lease ends while nothing has cancelled its ctx: what a process sees that was paused and has just resumed.
type staleLock struct {
	rlock.Locker
	sections.Section // for the methods that nobody calls

	until time.Time
}

func (s *staleLock) Lock(ctx context.Context) (context.Context, rlock.UnlockFunc, error) {
	return context.WithValue(ctx, sections.SectionKey{}, sections.Section(s)), func() error { return nil }, nil
}

func (s *staleLock) Name() string                    { return "stale" }
func (s *staleLock) Around() sections.Section        { return nil }
func (s *staleLock) IsOpen() bool                    { return true }
func (s *staleLock) TrustedUntil() (time.Time, bool) { return s.until, true }

// A process that resumes after the end of its lease does not say that it leads, even before its ctx ends.
func TestLeadershipAfterAPause(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var l rlock.Leadership
		lock := &staleLock{until: time.Now().Add(time.Second)}
		err := rlock.Lead(t.Context(), lock, func(ctx context.Context) error {
			require.True(t, l.State().Leading)
			sleep(time.Second)
			require.NoError(t, ctx.Err())
			require.False(t, l.State().Leading)
			return nil
		}, rlock.ReportTo(&l))
		require.NoError(t, err)
	})
}
