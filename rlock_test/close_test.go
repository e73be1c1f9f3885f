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

// ourGoroutines counts the goroutines that run code of the library. It leaves out goroutines that live long and are started by timers,
// because nothing shows which test they belong to: those that hang in foreign code, and the ears of Clients that look for deadlocks.
func ourGoroutines() int { return ourGoroutinesIn(packages...) }

func ourGoroutinesIn(some ...string) int {
	return redistest.GoroutinesWithout([]string{"rlock_test_test.(*jam).hang(", "engine.(*blocked).listen."}, some...)
}

// withoutHub are the packages whose goroutines end with their calls.
var withoutHub = []string{
	"github.com/go-rlock/rlock/rlock.", "github.com/go-rlock/rlock/internal/engine.", "github.com/go-rlock/rlock/internal/calls.",
	"github.com/go-rlock/rlock/internal/sweep.",
}

var packages = append([]string{
	"github.com/go-rlock/rlock/lease.", "github.com/go-rlock/rlock/pubsub.", "github.com/go-rlock/rlock/lua.",
	"github.com/go-rlock/rlock/internal/tell.",
}, withoutHub...)

// Close ends all waiting calls with ErrClosed and cancels the ctx of every hold, without releasing the locks. An unlock after Close
// releases them.
func TestCloseWhileWaitingAndHolding(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newBareFixture(t)
		c := newClient(t, b.rdb)
		held, unlock, err := c.Mutex(b.name).Lock(context.Background())
		require.NoError(t, err)
		inner, unlockInner, err := c.Mutex(b.name).Lock(held)
		require.NoError(t, err)
		b.awaitFields(t, b.name, map[string]int64{rlock.Owner(held): 2})
		waiters := []pendingLock{lockAsync(t, c.Mutex(b.name)), lockAsync(t, tryFor{c.Mutex(b.name), testTimeout})}
		background := make(chan error, 1)
		go func() {
			_, _, err := c.Mutex(b.name).Lock(context.Background())
			background <- err
		}()
		redistest.Eventually(t, 5*time.Second, func() bool { return waiting(t) == 3 }, "all goroutines wait")
		b.awaitSubscribers(t, b.name, 1)

		began := time.Now()
		c.Close()
		requireTook(t, 0, began, time.Now())
		for _, ctx := range []context.Context{held, inner} {
			require.ErrorIs(t, ctx.Err(), context.Canceled)
			require.ErrorIs(t, context.Cause(ctx), rlock.ErrClosed)
		}
		for _, w := range waiters {
			require.ErrorIs(t, w.get(t, soon).err, rlock.ErrClosed)
		}
		require.ErrorIs(t, <-background, rlock.ErrClosed)
		b.awaitSubscribers(t, b.name, 0)
		require.Equal(t, map[string]int64{rlock.Owner(held): 2}, b.fields(t, b.name), "Close does not release")
		require.NoError(t, unlockInner())
		require.NoError(t, unlock())
		require.False(t, b.exists(t, b.name), "unlock after Close releases")
	})
}

// A re-entry that Redis grants while Close runs fails with ErrClosed, because its ctx could not be cancelled any more.
func TestReentryAnsweredDuringClose(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		proxy := redistest.StartProxy(t, s.Addr())
		b := fixture{rdb: s.Client(t), name: redistest.Name(t)}
		c := newClient(t, redistest.Dial(t, proxy.Addr()))
		m := c.Mutex(b.name)
		loadScripts(t, c)
		ctx, unlock, err := m.Lock(context.Background())
		require.NoError(t, err)
		proxy.OnReply(redistest.Nth(1, "EVALSHA", redistest.Hold))
		inner := lockAsync(t, under{context.WithoutCancel(ctx), c.Mutex(b.name, rlock.WithLease(time.Hour))})
		redistest.Eventually(t, 5*time.Second, func() bool { return proxy.Held() == 1 }, "Redis has counted the re-entry; the reply is held back")
		closed := async(func() error { c.Close(); return nil })
		<-ctx.Done()
		require.NoError(t, within(t, closed, testTimeout))
		proxy.Release()
		got := inner.get(t, 5*time.Second)
		require.ErrorIs(t, got.err, rlock.ErrClosed)
		require.ErrorIs(t, got.unlock(), rlock.ErrNotHeld)
		require.ErrorIs(t, context.Cause(ctx), rlock.ErrClosed)
		require.NoError(t, unlock())
		require.False(t, b.exists(t, b.name))
	})
}

// bothWays runs a test with both ways in which rueidis sends a command: on its own, ended only by its deadline, and in a pipeline
// with others, ended by its ctx.
func bothWays(t *testing.T, test func(*testing.T, func(*rueidis.ClientOption))) {
	t.Helper()
	for _, pipelined := range []bool{false, true} {
		t.Run(fmt.Sprintf("pipelined=%v", pipelined), func(t *testing.T) {
			test(t, func(o *rueidis.ClientOption) { o.AlwaysPipelining = pipelined })
		})
	}
}

// Neither Close nor any call under way needs an answer from Redis to return.
func TestCloseInABlackHole(t *testing.T) {
	bothWays(t, func(t *testing.T, way func(*rueidis.ClientOption)) {
		redistest.OnlyVirtual(t, "only there is it known that the calls are under way", func(t *testing.T) {
			const bound = 5*time.Second + time.Millisecond
			s := redistest.Start(t)
			proxy := redistest.StartProxy(t, s.Addr())
			b := fixture{rdb: s.Client(t), name: redistest.Name(t)}
			c := newClient(t, redistest.Dial(t, proxy.Addr(), way))
			ctx, unlock, err := c.Mutex(b.name).Lock(context.Background())
			require.NoError(t, err)
			waiter := lockAsync(t, c.Mutex(b.name))
			b.awaitSubscribers(t, b.name, 1)
			proxy.BlackHole(true)
			calls := []pendingLock{
				waiter,
				lockAsync(t, c.Mutex(b.name+":cancellable")),
				lockAsync(t, under{context.Background(), c.Mutex(b.name + ":background")}),
				lockAsync(t, under{context.WithoutCancel(ctx), c.Mutex(b.name, rlock.WithLease(time.Hour))}),
				lockAsync(t, tryFor{c.Mutex(b.name + ":try"), 0}),
			}
			query := async(func() error {
				_, err := c.Mutex(b.name).IsLocked(t.Context())
				return err
			})
			redistest.Settle(t)
			began := time.Now()
			closed := async(func() error { c.Close(); return nil })
			<-ctx.Done()
			unlocked := async(unlock)
			for _, p := range calls {
				got := p.get(t, bound)
				require.ErrorIs(t, got.err, rlock.ErrClosed)
				require.LessOrEqual(t, got.at.Sub(began), bound)
			}
			require.ErrorIs(t, within(t, query, bound), rlock.ErrClosed)
			require.ErrorIs(t, context.Cause(ctx), rlock.ErrClosed)
			require.NoError(t, within(t, closed, bound))
			require.Error(t, within(t, unlocked, bound), "unlock could not reach Redis")
			proxy.BlackHole(false)
		})
	})
}

// G9: goroutines that wait in the queue in Redis return at once when their Client is closed, even if Redis is silent. Their removal
// from the queue goes on, and Close waits for it.
func TestCloseSendsWaitersAwayAtOnce(t *testing.T) {
	for _, k := range []struct {
		kind string
		of   func(*rlock.Client, string) *rlock.Mutex
	}{
		{"plain", func(c *rlock.Client, name string) *rlock.Mutex { return c.Mutex(name) }},
		{"fair", func(c *rlock.Client, name string) *rlock.Mutex { return c.FairMutex(name) }},
		{"write", func(c *rlock.Client, name string) *rlock.Mutex { return c.RWMutex(name).Write() }},
	} {
		redistest.RunVirtual(t, k.kind, func(t *testing.T) {
			s := redistest.Start(t)
			b := fixture{rdb: s.Client(t), name: redistest.Name(t)}
			proxy := redistest.StartProxy(t, s.Addr())
			_, unlock, err := k.of(newClient(t, b.rdb), b.name).Lock(t.Context())
			require.NoError(t, err)
			c := newClient(t, redistest.Dial(t, proxy.Addr()))
			waiters := []pendingLock{
				lockAsync(t, k.of(c, b.name)),
				lockAsync(t, under{context.Background(), k.of(c, b.name)}),
				lockAsync(t, tryFor{k.of(c, b.name), time.Minute}),
			}
			redistest.Eventually(t, 5*time.Second, func() bool {
				info, err := k.of(c, b.name).Info(t.Context())
				return err == nil && len(info.Queue) > 0 && c.Stats().Waiting == len(waiters)
			}, "all wait, and are in the queue")
			proxy.BlackHole(true)
			began := time.Now()
			closed := async(func() error { c.Close(); return nil })
			for _, w := range waiters {
				a := w.get(t, 10*time.Second)
				require.ErrorIs(t, a.err, rlock.ErrClosed)
				requireTook(t, 0, began, a.at) // one last call to Redis would take a second
			}
			proxy.BlackHole(false)
			require.NoError(t, within(t, closed, 10*time.Second))
			require.NoError(t, unlock())
		})
	}
}

// G5: if Redis grants the lock to a caller whose Client is closing, Close releases it before it returns.
func TestLateGrantIsGivenBackByClose(t *testing.T) {
	inBothWays(t, func(t *testing.T, way func(*rueidis.ClientOption)) {
		s := redistest.Start(t)
		proxy := redistest.StartProxy(t, s.Addr())
		b := fixture{rdb: s.Client(t), name: redistest.Name(t)}
		c := newClient(t, redistest.Dial(t, proxy.Addr(), way))
		loadScripts(t, c)
		proxy.OnReply(redistest.Nth(1, "EVALSHA", redistest.Hold))
		p := lockAsync(t, c.Mutex(b.name))
		redistest.Eventually(t, testTimeout, func() bool { return proxy.Held() == 1 }, "Redis has granted the lock; the reply is held back")
		require.True(t, b.exists(t, b.name))
		closed := async(func() error { c.Close(); return nil })
		require.ErrorIs(t, p.get(t, testTimeout).err, rlock.ErrClosed)
		sleep(1200 * time.Millisecond) // a slow network, but faster than the timeout of Close
		proxy.Release()
		released := time.Now()
		require.NoError(t, within(t, closed, testTimeout))
		requireTook(t, 0, released, time.Now())
		require.False(t, b.exists(t, b.name))
	})
}

// Close returns while the program uses all connections of the pool. It does not wait for a connection that rueidis was asked for,
// since that request cannot be cancelled.
func TestCloseWhileThePoolIsExhausted(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		rdb := s.Client(t, func(o *rueidis.ClientOption) { o.BlockingPoolSize = 1 })
		b := fixture{rdb: s.Client(t), name: redistest.Name(t)}
		c := newClient(t, rdb)
		conn, giveBack := rdb.Dedicate()
		require.NoError(t, conn.Do(context.Background(), conn.B().Ping().Build()).Error())
		require.NoError(t, b.do(t, "HSET", b.name, foreignOwner, "1").Error())
		waiter := lockAsync(t, c.Mutex(b.name))
		sleep(100 * time.Millisecond) // until the Client asks for a connection to subscribe
		require.NoError(t, within(t, async(func() error { c.Close(); return nil }), 5*time.Second))
		require.ErrorIs(t, waiter.get(t, 5*time.Second).err, rlock.ErrClosed)
		giveBack()
	})
}

// If the program closes rdb before the Client, calls return errors and no waiter hangs for ever. The connection of the
// subscriptions is not closed with rdb, so a waiter notices only when it is woken or when that connection ends.
func TestRedisClientIsClosedFirst(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		b := fixture{rdb: s.Client(t), name: redistest.Name(t)}
		proxy := redistest.StartProxy(t, s.Addr())
		rdb := redistest.Dial(t, proxy.Addr())
		c := newClient(t, rdb, rlock.Options{WatchdogTimeout: time.Second})
		ctx, unlock, err := c.Mutex(b.name + ":held").Lock(context.Background())
		require.NoError(t, err)
		waiters := make(map[string]pendingLock)
		for _, name := range []string{b.name + ":unlocked", b.name + ":one", b.name + ":two"} {
			require.NoError(t, b.do(t, "HSET", name, foreignOwner, "1").Error())
			waiters[name] = lockAsync(t, under{context.Background(), c.Mutex(name)})
			b.awaitSubscribers(t, name, 1)
		}
		redistest.Eventually(t, 5*time.Second, func() bool { return waiting(t) == len(waiters) }, "all goroutines wait")
		told := func(name string) {
			t.Helper()
			require.ErrorIs(t, waiters[b.name+name].get(t, 5*time.Second).err, rueidis.ErrClosing)
		}
		rdb.Close()
		b.do(t, "PUBLISH", "redisson_lock__channel:{"+b.name+":unlocked}", "0")
		told(":unlocked")
		<-ctx.Done()
		require.ErrorIs(t, context.Cause(ctx), rlock.ErrLost)
		require.Error(t, unlock())
		_, _, err = c.Mutex(b.name).Lock(context.Background())
		require.ErrorIs(t, err, rueidis.ErrClosing)

		proxy.CutAll()
		told(":one")
		told(":two")
	})
}

// After Close every call fails with ErrClosed, and a second Close does nothing.
func TestUseAfterClose(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		ctx := context.Background()
		m := b.Mutex(b.name)
		b.Close()
		b.Close()
		_, noop, err := m.Lock(ctx)
		require.ErrorIs(t, err, rlock.ErrClosed)
		require.ErrorIs(t, noop(), rlock.ErrNotHeld)
		_, _, err = m.TryLock(ctx, time.Second)
		require.ErrorIs(t, err, rlock.ErrClosed)
		require.ErrorIs(t, m.Do(ctx, func(context.Context) error { panic("not called") }), rlock.ErrClosed)
		_, err = m.IsLocked(ctx)
		require.ErrorIs(t, err, rlock.ErrClosed)
		_, err = m.TTL(ctx)
		require.ErrorIs(t, err, rlock.ErrClosed)
		_, err = m.ForceUnlock(ctx)
		require.ErrorIs(t, err, rlock.ErrClosed)
	})
}

// Close may come at any moment of many calls: each of them ends, no key stays locked, and no goroutine is left.
func TestCloseRaces(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newBareFixture(t)
		proxy := redistest.StartProxy(t, redistest.Shared(t))
		proxy.Delay(100 * time.Microsecond)
		for i := range 30 {
			c := newClient(t, redistest.Dial(t, proxy.Addr())) // rueidis holds a mutex while it opens a second connection for subscriptions
			var wg sync.WaitGroup
			for j := range 8 {
				wg.Go(func() {
					ctx := context.Background()
					if j%2 == 0 { // the commands of a ctx that can be cancelled run on goroutines of their own
						var cancel context.CancelFunc
						ctx, cancel = context.WithCancel(ctx)
						defer cancel()
					}
					for {
						err := c.Mutex(b.name).Do(ctx, func(ctx context.Context) error {
							return c.Mutex(b.name).Do(ctx, func(context.Context) error { return nil })
						})
						if err != nil {
							assert.ErrorIs(t, err, rlock.ErrClosed)
							return
						}
					}
				})
			}
			sleep(time.Duration(i) * 50 * time.Microsecond)
			c.Close()
			wg.Wait()
			redistest.Eventually(t, testTimeout, func() bool { return !b.exists(t, b.name) }, "the lock is free")
		}
	})
}
