package rlock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// Close cancels the ctx of a section with permits, and so ends a Lead.
func TestSemaphoreSectionsAtClose(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		watch := b.Semaphore(b.name)
		permits(t, watch, 1)
		c := newClient(t, b.rdb)
		leads := make(chan struct{})
		lead := async(func() error {
			return rlock.Lead(context.Background(), c.Semaphore(b.name).Locker(1), func(ctx context.Context) error {
				close(leads)
				<-ctx.Done()
				return context.Cause(ctx)
			})
		})
		<-leads
		c.Close()
		require.ErrorIs(t, within(t, lead, wakeTimeout), rlock.ErrClosed)
		requireFree(t, watch, 1)
	})
}

// The permits of a section go back even if Redis refuses that at first: nobody could give them back in its place.
func TestSemaphoreSectionIsRefused(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		c, proxy, b := behindProxy(t, anyWay)
		watch := b.Semaphore(b.name)
		permits(t, watch, 2)
		s := c.Semaphore(b.name)
		proxy.OnRequest(nthScript(2, redistest.Fail("NOREPLICAS Not enough good replicas to write.")))
		err := s.Do(context.Background(), 1, nothing)
		require.ErrorIs(t, err, rlock.ErrPending)
		require.ErrorContains(t, err, "NOREPLICAS")
		redistest.Eventually(t, testTimeout, func() bool { return b.text(t, b.name) == "2" }, "the permit is back")

		require.NoError(t, s.Acquire(context.Background(), 1))
		proxy.OnRequest(nthScript(1, redistest.Fail("NOREPLICAS Not enough good replicas to write.")))
		err = s.Release(context.Background(), 1)
		require.ErrorContains(t, err, "NOREPLICAS")
		require.NotErrorIs(t, err, rlock.ErrPending, "its caller may repeat it")
		sleep(time.Minute)
		requireFree(t, watch, 1)
		require.NoError(t, s.Release(context.Background(), 1))
		requireFree(t, watch, 2)
	})
}

// readableLog is a log that can be read while it is written.
type readableLog struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *readableLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *readableLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// changesAfterOutage calls change twice during an outage; both go on, even if Redis refuses the second at first. Later two more never get
// through: then the log says so, within a minute.
func changesAfterOutage(t *testing.T, of func(c *rlock.Client) func(n int) error, left func() int64) {
	t.Helper()
	proxy := redistest.StartProxy(t, redistest.Shared(t))
	log := new(readableLog)
	c := newClient(t, redistest.Dial(t, proxy.Addr()), rlock.Options{Logger: slog.New(slog.NewTextHandler(log, nil))})
	change := of(c)
	proxy.Refuse(true)
	proxy.CutAll()
	require.ErrorIs(t, change(2), rlock.ErrPending)
	require.ErrorIs(t, change(3), rlock.ErrPending, "at once, since the first goes on")
	proxy.OnRequest(nthScript(2, redistest.Fail("NOREPLICAS Not enough good replicas to write.")))
	proxy.Refuse(false)
	redistest.Eventually(t, testTimeout, func() bool { return left() == 0 }, "both are made")
	require.Empty(t, log.String())

	proxy.Refuse(true)
	proxy.CutAll()
	began := time.Now()
	require.ErrorIs(t, change(1), rlock.ErrPending)
	require.ErrorIs(t, change(1), rlock.ErrPending)
	redistest.Eventually(t, 2*time.Minute, func() bool { return log.String() != "" }, "they are given up")
	require.InDelta(t, 60, time.Since(began).Seconds(), 5)
	require.Contains(t, log.String(), "may be wrong after a call without an answer")
	proxy.Refuse(false)
	sleep(time.Minute)
	require.Equal(t, int64(0), left(), "nothing is sent after that")
}

func TestSemaphoreChangesAfterAnOutage(t *testing.T) {
	redistest.OnlyVirtual(t, "it waits for a minute", func(t *testing.T) {
		b := newFixture(t)
		watch := b.Semaphore(b.name)
		permits(t, watch, 0)
		changesAfterOutage(t, func(c *rlock.Client) func(int) error {
			s := c.Semaphore(b.name)
			return func(n int) error { return s.Release(context.Background(), int64(n)) }
		}, func() int64 {
			n := answer(watch.Available(context.Background())).ok(t)
			return 5 - n
		})
	})
}

func TestLatchCountDownsAfterAnOutage(t *testing.T) {
	redistest.OnlyVirtual(t, "it waits for a minute", func(t *testing.T) {
		b := newFixture(t)
		watch := b.CountDownLatch(b.name)
		answer(watch.TrySetCount(context.Background(), 102)).is(t, true)
		changesAfterOutage(t, func(c *rlock.Client) func(int) error {
			l := c.CountDownLatch(b.name)
			return func(int) error { return l.CountDown(context.Background()) }
		}, func() int64 {
			n := answer(watch.Count(context.Background())).ok(t)
			return n - 100
		})
	})
}

// After Close nothing goes on for long on a silent Redis, however many changes have been left behind.
func TestSemaphoreChangesEndWithClose(t *testing.T) {
	redistest.OnlyVirtual(t, "goroutines that are left fail it", func(t *testing.T) {
		b := newFixture(t)
		permits(t, b.Semaphore(b.name), 0)
		proxy := redistest.StartProxy(t, redistest.Shared(t))
		log := new(readableLog)
		c := newClient(t, redistest.Dial(t, proxy.Addr()), rlock.Options{Logger: slog.New(slog.NewTextHandler(log, nil))})
		s := c.Semaphore(b.name)
		answer(s.Available(context.Background())).ok(t)
		proxy.BlackHole(true)
		var all []<-chan error
		for range 30 {
			all = append(all, async(func() error {
				ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
				defer cancel()
				_, err := s.ReleaseIfExists(ctx, 1)
				return err
			}))
		}
		for _, got := range all {
			require.Error(t, within(t, got, testTimeout))
		}
		began := time.Now()
		c.Close()
		requireTookAtMost(t, 5*time.Second, began, time.Now())
		require.Contains(t, log.String(), "may be wrong after a call without an answer")
	})
}

// Close ends the wait of a process in line, and its goroutines, though Redis does not answer the call that leaves the line.
func TestSemaphoreWaitEndsWithClose(t *testing.T) {
	redistest.OnlyVirtual(t, "goroutines that are left fail it", func(t *testing.T) {
		c, proxy, b := behindProxy(t, anyWay)
		permits(t, b.Semaphore(b.name), 0)
		waits := async(func() error { return c.Semaphore(b.name).Acquire(context.Background(), 1) })
		b.awaitLine(t, b.name, 1)
		proxy.BlackHole(true)
		began := time.Now()
		c.Close()
		requireTookAtMost(t, 6*time.Second, began, time.Now())
		require.ErrorIs(t, within(t, waits, wakeTimeout), rlock.ErrClosed)
	})
}

// A request under way does not count as a waiter: a try beside it asks Redis, too.
func TestSemaphoreTriesBesideRequests(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		permits(t, b.Semaphore(b.name), 100)
		setPermits(t, b.PermitSemaphore(b.name+":p"), 100)
		for range 10 {
			var tries []<-chan error
			for range 20 {
				tries = append(tries, async(func() error { return b.Semaphore(b.name).TryAcquire(context.Background(), 1, 0) }))
				tries = append(tries, async(func() error {
					_, p, err := b.PermitSemaphore(b.name+":p").TryAcquire(context.Background(), 0)
					return errors.Join(err, p.Release())
				}))
			}
			for _, got := range tries {
				require.NoError(t, within(t, got, testTimeout))
			}
			require.NoError(t, b.Semaphore(b.name).Release(context.Background(), 20))
		}
	})
}

// No permits are there at once, and giving none back does nothing, as in Redisson.
func TestSemaphoreOfNothing(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		s := b.Semaphore(b.name)
		require.NoError(t, s.Acquire(context.Background(), 0))
		require.NoError(t, s.TryAcquire(context.Background(), 0, time.Second))
		require.NoError(t, s.Release(context.Background(), 0))
		require.False(t, b.exists(t, b.name))
		require.NoError(t, s.Do(context.Background(), 0, nothing))
		require.ErrorContains(t, s.Acquire(context.Background(), -1), "want 0 to")
		require.ErrorContains(t, b.Semaphore("").Release(context.Background(), 0), "empty")
	})
}

func TestSemaphoreDelete(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t, rlock.Options{WatchdogTimeout: 3 * time.Second})
		s := b.Semaphore(b.name)
		answer(s.Delete(context.Background())).is(t, false)
		permits(t, s, 0)
		waits := b.acquireAsync(t, newClient(t, b.rdb).Semaphore(b.name), 1, 1)
		answer(s.Delete(context.Background())).is(t, true)
		requireStillWaits(t, waits)
		permits(t, s, 1)
		require.NoError(t, within(t, waits, wakeTimeout), "it was set again")
		require.NoError(t, b.do(t, "SET", b.name, "text").Error())
		_, err := s.Delete(context.Background())
		require.ErrorContains(t, err, "not a counter")
		require.Equal(t, "text", b.text(t, b.name))

		p := b.PermitSemaphore(b.name + ":p")
		setPermits(t, p, 1)
		held := acquire(t, p, 1)
		answer(p.Delete(context.Background())).is(t, true)
		requirePermits(t, p, 0, 0)
		awaitEnd(t, held.ctx)
		require.ErrorIs(t, context.Cause(held.ctx), rlock.ErrLost)
		require.ErrorIs(t, held.permit.Release(), rlock.ErrLost)
		keys := answer(b.do(t, "KEYS", "*"+b.name+":p*").AsStrSlice()).ok(t)
		for _, key := range keys {
			require.Contains(t, key, "rlock_sem_requests", "only records are left, which end by themselves")
		}
	})
}

// A TrySetCount whose caller has left is not undone: others may have counted down since.
func TestLatchStaysSet(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		c, proxy, b := behindProxy(t, anyWay)
		b.loadLatchScripts(t)
		proxy.OnReply(nthScript(1, redistest.Hold))
		short, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
		defer cancel()
		_, err := c.CountDownLatch(b.name).TrySetCount(short, 3)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, rlock.ErrPending)
		latch := b.CountDownLatch(b.name)
		answer(latch.TrySetCount(context.Background(), 3)).is(t, false)
		require.NoError(t, latch.CountDown(context.Background()))
		waits := b.awaitAsync(t, latch)
		proxy.Release()
		requireStillWaits(t, waits)
		requireCount(t, latch, 2)
		require.NoError(t, latch.CountDown(context.Background()))
		require.NoError(t, latch.CountDown(context.Background()))
		require.NoError(t, within(t, waits, wakeTimeout))
	})
}

// Permits go back after Close even if the hold was lost, or is another process's.
func TestPermitsReleasedAfterClose(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		watch := newClient(t, b.rdb).PermitSemaphore(b.name)
		setPermits(t, watch, 4)
		others := acquire(t, watch, 1)
		s := b.PermitSemaphore(b.name, rlock.WithLease(time.Hour))
		held := acquire(t, s, 3)
		require.NoError(t, s.Release(context.Background(), held.permit.IDs()[0]))
		require.ErrorIs(t, context.Cause(held.ctx), rlock.ErrLost)
		b.Close()
		require.ErrorIs(t, held.permit.Release(), rlock.ErrLost)
		requirePermits(t, watch, 3, 1)
		require.NoError(t, s.Release(context.Background(), others.permit.ID()))
		require.ErrorIs(t, s.Release(context.Background(), others.permit.ID()), rlock.ErrNotHeld)
		requirePermits(t, watch, 4, 0)
	})
}

// A Semaphore and a PermitSemaphore of one name take from one number, and do not wait for each other's calls.
func TestSemaphoresOfBothKinds(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		s, p := b.Semaphore(b.name), b.PermitSemaphore(b.name)
		setPermits(t, p, 2)
		require.NoError(t, s.Acquire(context.Background(), 1))
		held := acquire(t, p, 1)
		waits, cancel := context.WithCancel(context.Background())
		defer cancel()
		first := async(func() error { return s.Acquire(waits, 1) })
		redistest.Eventually(t, testTimeout, func() bool { return b.inLine(t, b.name) == 1 && waiting(t) == 1 }, "the plain one waits")
		second := async(func() error { _, _, err := p.Acquire(waits); return err })
		redistest.Eventually(t, testTimeout, func() bool { return b.inLine(t, b.name) == 2 && waiting(t) == 2 }, "so does the other")
		require.NoError(t, held.permit.Release())
		require.NoError(t, within(t, first, wakeTimeout))
		requireStillWaits(t, second)
		require.NoError(t, s.Release(context.Background(), 1))
		require.NoError(t, within(t, second, wakeTimeout))
	})
}

// While Redis is silent, few calls are left behind, for whatever names.
func TestCountersAreLeftBehind(t *testing.T) {
	for kind, try := range map[string]func(ctx context.Context, c *rlock.Client, name string){
		"semaphore": func(ctx context.Context, c *rlock.Client, name string) { _ = c.Semaphore(name).Acquire(ctx, 1) },
		"release":   func(ctx context.Context, c *rlock.Client, name string) { _ = c.Semaphore(name).Release(ctx, 1) },
		"permits": func(ctx context.Context, c *rlock.Client, name string) {
			_, _, _ = c.PermitSemaphore(name).Acquire(ctx)
		},
		"latch": func(ctx context.Context, c *rlock.Client, name string) {
			_, _ = c.CountDownLatch(name).TrySetCount(ctx, 1)
		},
		"await": func(ctx context.Context, c *rlock.Client, name string) { _ = c.CountDownLatch(name).Await(ctx) },
	} {
		redistest.RunVirtual(t, kind, func(t *testing.T) {
			c, proxy, b := behindProxy(t, anyWay)
			require.Error(t, c.Semaphore(b.name).TryAcquire(context.Background(), 1, 0)) // connects
			sent := make(map[string]bool)
			var mu sync.Mutex
			proxy.OnRequest(func(cmd []string) redistest.Action {
				if isScript(cmd) {
					mu.Lock()
					sent[cmd[3]] = true
					mu.Unlock()
				}
				return redistest.Drop
			})
			var all sync.WaitGroup
			for i := range 400 {
				all.Go(func() {
					sleep(time.Duration(i) * 2 * time.Millisecond)
					ctx, cancel := context.WithTimeout(context.Background(), 60*time.Millisecond)
					defer cancel()
					try(ctx, c, fmt.Sprintf("%s:%d", b.name, i))
				})
			}
			all.Wait()
			mu.Lock()
			require.Less(t, len(sent), 100)
			mu.Unlock()
			c.Close()
		})
	}
}
