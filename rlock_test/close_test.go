package rlock_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// A re-entry that Redis grants while Close runs fails with ErrClosed, because its ctx could not be cancelled any more.
func TestReentryAnsweredDuringClose(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		c, proxy, b := behindProxy(t, anyWay)
		hold := locked(t, c.Mutex(b.name))
		proxy.OnReply(redistest.Nth(1, "EVALSHA", redistest.Hold))
		inner := lockAsync(t, under{context.WithoutCancel(hold.ctx), c.Mutex(b.name, rlock.WithLease(time.Hour))})
		redistest.Eventually(t, testTimeout, func() bool { return proxy.Held() == 1 }, "Redis has counted the re-entry; the reply is held back")
		closed := async(func() error { c.Close(); return nil })
		awaitEnd(t, hold.ctx)
		require.NoError(t, within(t, closed, testTimeout))
		proxy.Release()
		got := inner.get(t, testTimeout)
		require.ErrorIs(t, got.err, rlock.ErrClosed)
		require.EqualError(t, got.err, `rlock: "`+b.name+`": client closed`)
		require.ErrorIs(t, got.unlock(), rlock.ErrNotHeld)
		require.ErrorIs(t, context.Cause(hold.ctx), rlock.ErrClosed)
		require.NoError(t, hold.unlock())
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
			c, proxy, b := behindProxy(t, way)
			hold := locked(t, c.Mutex(b.name))
			waiter := lockAsync(t, c.Mutex(b.name))
			b.awaitSubscribers(t, b.name, 1)
			proxy.BlackHole(true)
			calls := []pendingLock{
				waiter,
				lockAsync(t, c.Mutex(b.name+":cancellable")),
				lockAsync(t, under{context.Background(), c.Mutex(b.name + ":background")}),
				lockAsync(t, under{context.WithoutCancel(hold.ctx), c.Mutex(b.name, rlock.WithLease(time.Hour))}),
				lockAsync(t, tryFor{c.Mutex(b.name + ":try"), 0}),
			}
			query := async(func() error {
				_, err := c.Mutex(b.name).IsLocked(t.Context())
				return err
			})
			redistest.Settle(t)
			began := time.Now()
			closed := async(func() error { c.Close(); return nil })
			awaitEnd(t, hold.ctx)
			unlocked := async(hold.unlock)
			for _, p := range calls {
				got := p.get(t, bound)
				require.ErrorIs(t, got.err, rlock.ErrClosed)
				require.LessOrEqual(t, got.at.Sub(began), bound)
			}
			require.ErrorIs(t, within(t, query, bound), rlock.ErrClosed)
			require.ErrorIs(t, context.Cause(hold.ctx), rlock.ErrClosed)
			require.NoError(t, within(t, closed, bound))
			require.Error(t, within(t, unlocked, bound), "unlock could not reach Redis")
			proxy.BlackHole(false)
		})
	})
}

// G9: goroutines that wait in the queue in Redis return at once when their Client is closed, even if Redis is silent. Their removal
// from the queue goes on, and Close waits for it.
func TestCloseSendsWaitersAwayAtOnce(t *testing.T) {
	for _, kind := range []string{"plain", "fair", "write"} {
		redistest.RunVirtual(t, kind, func(t *testing.T) {
			c, proxy, b := behindProxy(t, anyWay)
			hold := locked(t, ofAllKinds(b.Client, b.name)[kind])
			m := ofAllKinds(c, b.name)[kind]
			waiters := []pendingLock{lockAsync(t, m), lockAsync(t, under{context.Background(), m}), lockAsync(t, tryFor{m, time.Minute})}
			redistest.Eventually(t, testTimeout, func() bool {
				info, err := m.Info(t.Context())
				return err == nil && len(info.Queue) > 0 && c.Stats().Waiting == len(waiters)
			}, "all wait, and are in the queue")
			proxy.BlackHole(true)
			began := time.Now()
			closed := async(func() error { c.Close(); return nil })
			for _, w := range waiters {
				a := w.get(t, testTimeout)
				require.ErrorIs(t, a.err, rlock.ErrClosed)
				requireTook(t, 0, began, a.at) // one last call to Redis would take a second
			}
			proxy.BlackHole(false)
			require.NoError(t, within(t, closed, testTimeout))
			require.NoError(t, hold.unlock())
		})
	}
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
		b := newBareFixture(t)
		proxy := redistest.StartProxy(t, redistest.Shared(t))
		rdb := redistest.Dial(t, proxy.Addr())
		c := newClient(t, rdb, rlock.Options{WatchdogTimeout: time.Second})
		hold := locked(t, c.Mutex(b.name+":held"))
		names := numbered(b.name, 3)
		var waiters []pendingLock
		for i, name := range names {
			require.NoError(t, b.do(t, "HSET", name, foreignOwner, "1").Error())
			waiters = append(waiters, lockAsync(t, under{context.Background(), c.Mutex(name)}))
			b.awaitSubscribers(t, name, 1)
			redistest.Eventually(t, testTimeout, func() bool { return waiting(t) == i+1 }, "the goroutine waits")
		}
		rdb.Close()
		b.do(t, "PUBLISH", "redisson_lock__channel:{"+names[0]+"}", "0")
		require.ErrorIs(t, waiters[0].get(t, testTimeout).err, rueidis.ErrClosing)
		awaitEnd(t, hold.ctx)
		require.ErrorIs(t, context.Cause(hold.ctx), rlock.ErrLost)
		require.Error(t, hold.unlock())
		requireLockFails(t, context.Background(), c.Mutex(b.name), rueidis.ErrClosing)
		proxy.CutAll()
		for _, w := range waiters[1:] {
			require.ErrorIs(t, w.get(t, testTimeout).err, rueidis.ErrClosing)
		}
	})
}

// G2: after Close no ctx reports the end of a lease, but each unlock does, of inner levels, too, and without an answer from Redis. It says why:
// nobody has touched the key.
func TestUnlockAfterCloseAndTheLease(t *testing.T) {
	const watchdog, ends = 3 * time.Second, time.Second
	terms := map[string]struct {
		options []rlock.Option
		lasts   time.Duration
		reason  rlock.LossReason
	}{
		"renewed":  {nil, watchdog, rlock.LostExpired},
		"fixed":    {[]rlock.Option{rlock.WithLease(ends)}, ends, rlock.LostExpired},
		"bounded":  {[]rlock.Option{rlock.WithMaxHold(ends)}, ends, rlock.LostMaxHold},
		"lingered": {[]rlock.Option{rlock.WithLinger(time.Minute)}, watchdog, rlock.LostExpired},
	}
	for name, terms := range terms {
		for _, silent := range []bool{false, true} {
			redistest.RunVirtual(t, fmt.Sprintf("%s, silent=%v", name, silent), func(t *testing.T) {
				c, proxy, past := behindProxy(t, anyWay, rlock.Options{WatchdogTimeout: watchdog})
				m := c.Mutex(past.name, terms.options...)
				began := time.Now()
				hold := locked(t, m)
				levels := []rlock.UnlockFunc{locked(t, under{hold.ctx, m}).unlock, hold.unlock}
				c.Close()
				sleep(terms.lasts + 100*time.Millisecond)
				proxy.BlackHole(silent)
				for i, unlock := range levels {
					called := time.Now()
					err := unlock()
					require.ErrorIs(t, err, rlock.ErrNotHeld)
					require.ErrorIs(t, err, rlock.ErrLost)
					var loss *rlock.LostError
					require.ErrorAs(t, err, &loss)
					require.Equal(t, terms.reason, loss.Reason, err.Error())
					requireTook(t, terms.lasts, began, loss.Since)
					requireTookAtMost(t, time.Duration(i)*time.Second, called, time.Now()) // the last one tries to remove what may be left
				}
				proxy.BlackHole(false)
			})
		}
	}
}

// The same, of a Quorum whose Clients are closed.
func TestUnlockOfAQuorumAfterCloseAndTheLease(t *testing.T) {
	for _, silent := range []bool{false, true} {
		redistest.RunVirtual(t, fmt.Sprintf("silent=%v", silent), func(t *testing.T) {
			const watchdog = 3 * time.Second
			e := newQuorumServers(t, 3)
			v := e.process(t, rlock.Options{WatchdogTimeout: watchdog})
			hold := locked(t, v)
			inner := locked(t, under{hold.ctx, v})
			e.awaitVotes(t, len(e.servers))
			v.close()
			require.ErrorIs(t, context.Cause(hold.ctx), rlock.ErrClosed)
			sleep(watchdog)
			for _, c := range v.clients {
				require.Zero(t, c.Stats().Lost, "nobody has asked")
			}
			for _, p := range e.proxies {
				p.BlackHole(silent)
			}
			for _, unlock := range []rlock.UnlockFunc{inner.unlock, hold.unlock} {
				called := time.Now()
				err := unlock()
				require.ErrorIs(t, err, rlock.ErrLost)
				var loss *rlock.LostError
				require.ErrorAs(t, err, &loss)
				require.Equal(t, rlock.LostExpired, loss.Reason, err.Error())
				requireTook(t, 0, called, time.Now())
			}
			for _, p := range e.proxies {
				p.BlackHole(false)
			}
		})
	}
}

// The same, of permits.
func TestReleaseAfterCloseAndTheLease(t *testing.T) {
	for _, silent := range []bool{false, true} {
		redistest.RunVirtual(t, fmt.Sprintf("silent=%v", silent), func(t *testing.T) {
			const watchdog = 3 * time.Second
			c, proxy, past := behindProxy(t, anyWay, rlock.Options{WatchdogTimeout: watchdog})
			setPermits(t, past.PermitSemaphore(past.name), 1)
			began := time.Now()
			held := acquire(t, c.PermitSemaphore(past.name), 1)
			c.Close()
			sleep(watchdog + 100*time.Millisecond)
			proxy.BlackHole(silent)
			called := time.Now()
			err := held.permit.Release()
			require.ErrorIs(t, err, rlock.ErrNotHeld)
			var loss *rlock.LostError
			require.ErrorAs(t, err, &loss)
			require.Equal(t, rlock.LostExpired, loss.Reason, err.Error())
			requireTook(t, watchdog, began, loss.Since)
			requireTookAtMost(t, time.Second, called, time.Now())
			proxy.BlackHole(false)
		})
	}
}

// After Close every call fails with ErrClosed, and a second Close does nothing.
func TestUseAfterClose(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		ctx, m := context.Background(), b.Mutex(b.name)
		b.Close()
		b.Close()
		_, noop, err := m.Lock(ctx)
		require.ErrorIs(t, err, rlock.ErrClosed)
		require.ErrorIs(t, noop(), rlock.ErrNotHeld)
		for name, call := range map[string]func() error{
			"TryLock":     func() error { _, _, err := m.TryLock(ctx, time.Second); return err },
			"Do":          func() error { return m.Do(ctx, func(context.Context) error { panic("not called") }) },
			"IsLocked":    func() error { _, err := m.IsLocked(ctx); return err },
			"TTL":         func() error { _, err := m.TTL(ctx); return err },
			"ForceUnlock": func() error { _, err := m.ForceUnlock(ctx); return err },
		} {
			require.ErrorIs(t, call(), rlock.ErrClosed, name)
		}
	})
}
