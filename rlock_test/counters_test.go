package rlock_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// Promises of several kinds of counters: semaphores, permits that expire, and latches.

// requireCounter requires a counter's number in Redis.
func (b fixture) requireCounter(t testing.TB, want int64) {
	t.Helper()
	n, err := b.do(t, "GET", b.name).AsInt64()
	if !rueidis.IsRedisNil(err) {
		require.NoError(t, err)
	}
	require.Equal(t, want, n)
}

// counter sets a counter, and makes sure that no call is sent twice because Redis does not know its script.
func (b fixture) counter(t testing.TB, n int64) {
	t.Helper()
	b.loadLatchScripts(t)
	permits(t, b.Semaphore(redistest.Name(t)), 1)
	setPermits(t, b.PermitSemaphore(redistest.Name(t)), 1)
	if n > 0 {
		require.NoError(t, b.do(t, "SET", b.name, strconv.FormatInt(n, 10)).Error())
	}
}

// permitLockers are both kinds of permits, one by one.
var permitLockers = map[string]func(c *rlock.Client, name string) rlock.Locker{
	"semaphore": func(c *rlock.Client, name string) rlock.Locker { return c.Semaphore(name).Locker(1) },
	"permits":   func(c *rlock.Client, name string) rlock.Locker { return c.PermitSemaphore(name).Locker(1) },
}

// A section with permits is a hold: Shutdown refuses others, waits for it, and ends it when its own time is over. Its permits can be given back
// after that.
func TestPermitsAtShutdown(t *testing.T) {
	for kind, of := range permitLockers {
		runVirtual(t, kind, func(t *testing.T, b fixture) {
			setPermits(t, b.PermitSemaphore(b.name), 1)
			c := newClient(t, b.rdb)
			l := of(c, b.name)
			section, unlock := enter(t, context.Background(), l)
			require.Equal(t, 1, c.Stats().Holds)
			waits := async(func() error { _, _, err := l.Lock(context.Background()); return err })
			b.awaitLine(t, b.name, 1)
			shut := async(func() error { return c.Shutdown(context.Background()) })
			require.ErrorIs(t, within(t, waits, wakeTimeout), rlock.ErrClosed)
			_, _, err := l.TryLock(context.Background(), 0)
			require.ErrorIs(t, err, rlock.ErrClosed)
			require.ErrorIs(t, c.Semaphore(b.name).Do(context.Background(), 0, nothing), rlock.ErrClosed, "not even without a permit")
			requireStillWaits(t, shut)
			require.NoError(t, section.Err())
			require.NoError(t, unlock())
			require.NoError(t, within(t, shut, wakeTimeout))
			b.requireCounter(t, 1)

			c = newClient(t, b.rdb)
			section, unlock = enter(t, context.Background(), of(c, b.name))
			soon, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
			defer cancel()
			require.ErrorIs(t, c.Shutdown(soon), context.DeadlineExceeded)
			require.ErrorIs(t, context.Cause(section), rlock.ErrClosed)
			b.requireCounter(t, 0)
			require.NoError(t, unlock())
			b.requireCounter(t, 1)
			require.ErrorIs(t, unlock(), rlock.ErrNotHeld)
			b.requireCounter(t, 1)
		})
	}
}

// Waiters are woken on a cluster, over sharded and over plain channels. A name whose keys and channels would be in several slots is refused.
// TestPermitsOnACluster has expiring permits.
func TestCountersOnACluster(t *testing.T) {
	cluster := redistest.SharedCluster(t)
	redistest.Parallel(t)
	ctx := context.Background()
	for kind, of := range map[string]struct {
		name, odd, says string
		set, open, wait func(c *rlock.Client, name string) error
	}{
		"semaphore": {
			name: "{%s:%d}x", odd: "a{b", says: "would be in another slot",
			set:  func(c *rlock.Client, name string) error { return did(c.Semaphore(name).TrySetPermits(ctx, 0)) },
			open: func(c *rlock.Client, name string) error { return c.Semaphore(name).Release(ctx, 2) },
			wait: func(c *rlock.Client, name string) error { return c.Semaphore(name).Acquire(ctx, 2) },
		},
		"latch": {
			name: "%s:%d", odd: "{a}b",
			says: `rlock: "{a}b": on a cluster the name of a latch may have no braces: Redisson puts it in braces, as in ` +
				`"redisson_countdownlatch__channel__{{a}b}", for its channel, which would be in another slot than the latch`,
			set:  func(c *rlock.Client, name string) error { return did(c.CountDownLatch(name).TrySetCount(ctx, 1)) },
			open: func(c *rlock.Client, name string) error { return c.CountDownLatch(name).CountDown(ctx) },
			wait: func(c *rlock.Client, name string) error { return c.CountDownLatch(name).Await(ctx) },
		},
	} {
		for _, plain := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/plain=%t", kind, plain), func(t *testing.T) {
				o := rlock.Options{PlainPubSub: plain}
				here, there := newClient(t, cluster.Client(t), o), newClient(t, cluster.Client(t), o)
				prefix := redistest.Name(t)
				const names = 10
				var waits []<-chan error
				for i := range names {
					name := fmt.Sprintf(of.name, prefix, i)
					require.NoError(t, of.set(here, name))
					waits = append(waits, async(func() error { return of.wait(there, name) }))
				}
				redistest.Eventually(t, testTimeout, func() bool { return waiting(t) == names }, "they wait")
				for i, got := range waits {
					require.NoError(t, of.open(here, fmt.Sprintf(of.name, prefix, i)))
					require.NoError(t, within(t, got, wakeTimeout))
				}
				for _, call := range []func(*rlock.Client, string) error{of.set, of.open, of.wait} {
					require.ErrorContains(t, call(here, of.odd), of.says)
				}
			})
		}
	}
}

// awaitedCounters are counters for which somebody may wait. If they are at 1, a change ends the wait.
var awaitedCounters = map[string]struct {
	wait, try, change func(ctx context.Context, c *rlock.Client, name string) error
	step              int64 // by which a change counts
	closed            error // of a change after Close
}{
	"semaphore": {
		wait: func(ctx context.Context, c *rlock.Client, name string) error {
			return c.Semaphore(name).Acquire(ctx, 2)
		},
		try: func(ctx context.Context, c *rlock.Client, name string) error {
			return c.Semaphore(name).TryAcquire(ctx, 2, 0)
		},
		change: func(ctx context.Context, c *rlock.Client, name string) error {
			return c.Semaphore(name).Release(ctx, 1)
		},
		step: 1,
	},
	"latch": {
		wait: func(ctx context.Context, c *rlock.Client, name string) error {
			return c.CountDownLatch(name).Await(ctx)
		},
		try: func(ctx context.Context, c *rlock.Client, name string) error {
			return c.CountDownLatch(name).TryAwait(ctx, 0)
		},
		change: func(ctx context.Context, c *rlock.Client, name string) error {
			return c.CountDownLatch(name).CountDown(ctx)
		},
		step: -1, closed: rlock.ErrClosed,
	},
}

// Close and Shutdown end all waits. During a Shutdown changes are made, since a section may have to, and after Close permits go back.
func TestCountersEndWaits(t *testing.T) {
	for kind, of := range awaitedCounters {
		for _, closes := range []bool{true, false} {
			runVirtual(t, kind+map[bool]string{true: "/Close", false: "/Shutdown"}[closes], func(t *testing.T, b fixture) {
				b.counter(t, 1)
				waits := async(func() error { return of.wait(context.Background(), b.Client, b.name) })
				b.awaitWaiters(t, 1)
				_, unlock := enter(t, context.Background(), b.Mutex(b.name+":lock"))
				changed := error(nil)
				if closes {
					changed = of.closed
				}
				ended := async(func() error {
					if closes {
						b.Close()
						return nil
					}
					return b.Shutdown(context.Background())
				})
				require.ErrorIs(t, within(t, waits, wakeTimeout), rlock.ErrClosed)
				require.ErrorIs(t, of.wait(context.Background(), b.Client, b.name), rlock.ErrClosed)
				require.ErrorIs(t, of.change(context.Background(), b.Client, b.name), changed)
				if changed == nil {
					b.requireCounter(t, 1+of.step)
				}
				require.NoError(t, unlock())
				require.NoError(t, within(t, ended, wakeTimeout))
			})
		}
	}
}

// A change during Close returns its own result, not ErrClosed, which would say that it does not count.
func TestCountersChangeBesideClose(t *testing.T) {
	for kind, of := range awaitedCounters {
		t.Run(kind, func(t *testing.T) {
			redistest.OnlyVirtual(t, "that the second call is in line can be seen only there", func(t *testing.T) {
				c, proxy, b := behindProxy(t, anyWay)
				b.counter(t, 3)
				proxy.OnRequest(nthScript(1, redistest.Hold))
				change := func() error { return of.change(context.Background(), c, b.name) }
				first := async(change)
				redistest.Eventually(t, testTimeout, func() bool { return proxy.Held() == 1 }, "the first call is under way")
				second := async(change)
				redistest.Settle(t) // the second one is in line
				closed := async(func() error { c.Close(); return nil })
				redistest.Eventually(t, testTimeout, func() bool { return errors.Is(of.wait(canceled(), c, b.name), rlock.ErrClosed) }, "the Client is closed")
				proxy.Release()
				for _, ended := range []<-chan error{first, second, closed} {
					require.NoError(t, within(t, ended, testTimeout))
				}
				b.requireCounter(t, 3+2*of.step)
			})
		})
	}
}

// A Trace reports a wait for a counter, but not as a hold.
func TestCountersAreTraced(t *testing.T) {
	for kind, of := range awaitedCounters {
		redistest.RunVirtual(t, kind, func(t *testing.T) {
			var told traceLines
			b := newFixture(t, told.traced())
			b.counter(t, 1)
			told.take()
			require.Error(t, of.try(context.Background(), b.Client, b.name))
			require.Equal(t, []string{kind + " failed: not acquired"}, told.take())
			waits := async(func() error { return of.wait(context.Background(), b.Client, b.name) })
			b.awaitWaiters(t, 1)
			sleep(time.Second) // in which it is told
			require.Equal(t, []string{kind + " waits"}, told.take())
			require.NoError(t, of.change(context.Background(), b.Client, b.name))
			require.NoError(t, within(t, waits, wakeTimeout))
			require.Equal(t, []string{kind + " passed waiting"}, told.take())
			require.NoError(t, of.change(context.Background(), b.Client, b.name))
			require.NoError(t, of.change(context.Background(), b.Client, b.name))
			require.NoError(t, of.try(context.Background(), b.Client, b.name))
			require.Equal(t, []string{kind + " passed"}, told.take())
			require.Zero(t, b.Stats().Holds)
			require.Zero(t, b.Stats().Acquired)
		})
	}
}

// Tries that come while another one is under way are answered by the next call, also if nobody of the process waits.
func TestCounterTriesTogether(t *testing.T) {
	ctx := context.Background()
	for kind, row := range map[string]struct {
		set  func(t *testing.T, b fixture)
		try  func(c *rlock.Client, name string) error
		says string
	}{
		"latch": {
			set: func(t *testing.T, b fixture) { b.set(t, b.CountDownLatch(b.name), 1) },
			try: func(c *rlock.Client, name string) error { return c.CountDownLatch(name).TryAwait(ctx, 0) }, says: `: 1 left to count down$`,
		},
		"semaphore": {
			set: func(t *testing.T, b fixture) {
				require.NoError(t, b.rdb.Do(ctx, b.rdb.B().Set().Key(b.name).Value("0").Build()).Error())
			},
			try: func(c *rlock.Client, name string) error { return c.Semaphore(name).TryAcquire(ctx, 1, 0) }, says: `: 0 free of 1 wanted$`,
		},
	} {
		redistest.RunVirtual(t, kind, func(t *testing.T) {
			c, proxy, b := behindProxy(t, anyWay)
			row.set(t, b)
			try := func() error { return row.try(c, b.name) }
			require.ErrorIs(t, try(), rlock.ErrNotAcquired) // the script is known
			proxy.OnReply(redistest.Nth(1, "EVALSHA", redistest.Hold))
			began := time.Now()
			tries := []<-chan error{async(try)}
			redistest.Eventually(t, testTimeout, func() bool { return proxy.Held() > 0 }, "the first one asks")
			for range 2 {
				tries = append(tries, async(try))
			}
			sleep(100 * time.Millisecond) // they are there
			proxy.Release()
			for _, err := range tries {
				require.Regexp(t, row.says, within(t, err, testTimeout).Error())
			}
			requireTookAtMost(t, 500*time.Millisecond, began, time.Now())
		})
	}
}
