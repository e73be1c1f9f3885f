package rlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
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
		<-hold.ctx.Done()
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
			<-hold.ctx.Done()
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
		<-hold.ctx.Done()
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

// shutDown calls Shutdown, and returns when it refuses new Locks.
func shutDown(t *testing.T, c *rlock.Client, ctx context.Context) <-chan error { //nolint:revive // the ctx is that of the call in question
	t.Helper()
	down := async(func() error { return c.Shutdown(ctx) })
	probe := c.Mutex(redistest.Name(t))
	redistest.Eventually(t, testTimeout, func() bool {
		_, unlock, err := probe.TryLock(context.Background(), 0)
		if err == nil {
			require.NoError(t, unlock())
		}
		return errors.Is(err, rlock.ErrClosed)
	}, "refused")
	return down
}

// process has a Client for each of three servers, and locks of all kinds.
type process [3]*rlock.Client

func (p process) lockers(name string) map[string]rlock.Locker {
	rw := p[0].RWMutex(name + ":rw")
	return map[string]rlock.Locker{
		"mutex":       p[0].Mutex(name),
		"fenced":      p[0].FencedMutex(name + ":fenced"),
		"fair":        p[0].FairMutex(name + ":fair"),
		"write":       rw.Write(),
		"upgradeable": p[0].RWMutex(name + ":up").Upgradeable(),
		"all":         rlock.All(p[0].Mutex(name+":1"), p[1].Mutex(name+":2")),
		"quorum":      rlock.Quorum(p[0].Mutex(name+":q"), p[1].Mutex(name+":q"), p[2].Mutex(name+":q")),
	}
}

// While Shutdown waits for a section, it ends the waits of all kinds, and calls none of them an outage: that one may be tried again.
func TestShutdownEndsWaits(t *testing.T) {
	redistest.OnlyVirtual(t, "that all wait can be seen only there", func(t *testing.T) {
		var others, ours process
		for i := range ours {
			server := redistest.Start(t)
			others[i], ours[i] = newClient(t, server.Client(t)), newClient(t, server.Client(t))
		}
		name := redistest.Name(t)
		ctx := context.Background()
		for _, l := range others.lockers(name) {
			enter(t, ctx, l)
		}
		_, unlock := enter(t, ctx, ours[0].Mutex(name+":section"))
		permits(t, others[0].Semaphore(name+":semaphore"), 1)
		require.NoError(t, others[0].Semaphore(name+":semaphore").Acquire(ctx, 1))
		setPermits(t, others[0].PermitSemaphore(name+":permits"), 1)
		_, _, err := others[0].PermitSemaphore(name + ":permits").Acquire(ctx)
		require.NoError(t, err)
		latch := fixture{Client: others[0]}
		latch.set(t, others[0].CountDownLatch(name+":latch"), 1)
		waits := map[string]<-chan error{
			"semaphore": async(func() error { return ours[0].Semaphore(name+":semaphore").Acquire(ctx, 1) }),
			"latch":     async(func() error { return ours[0].CountDownLatch(name + ":latch").Await(ctx) }),
			"permits": async(func() error {
				_, _, err := ours[0].PermitSemaphore(name + ":permits").Acquire(ctx)
				return err
			}),
		}
		for kind, l := range ours.lockers(name) {
			waits[kind] = async(func() error {
				_, _, err := l.Lock(ctx)
				return err
			})
		}
		sleep(time.Second) // all wait
		down := make([]<-chan error, len(ours))
		for i, c := range ours {
			down[i] = async(func() error { return c.Shutdown(ctx) })
		}
		for kind, w := range waits {
			err := within(t, w, wakeTimeout)
			require.ErrorIs(t, err, rlock.ErrClosed, kind)
			require.NotErrorIs(t, err, rlock.ErrUnreachable, kind)
			require.NotContains(t, err.Error(), "not reached", kind)
		}
		require.NoError(t, unlock())
		for _, d := range down {
			require.NoError(t, within(t, d, wakeTimeout))
		}
	})
}

// The section of a read/write lock can finish during Shutdown: it can read as the writer, downgrade, and upgrade, even
// if that has to wait for another reader. A Lock that competes is refused, even inside the section.
func TestShutdownLetsASectionFinish(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		other := newClient(t, b.rdb)
		rw := b.RWMutex(b.name)
		_, leave := enter(t, context.Background(), other.RWMutex(b.name).Read())
		reader, unlock := enter(t, context.Background(), rw.Upgradeable())
		down := shutDown(t, b.Client, context.Background())

		requireLockFails(t, reader, b.Mutex(b.name+":2"), rlock.ErrClosed)
		requireLockFails(t, rlock.Detach(reader), rw.Read(), rlock.ErrClosed)

		upgrade := lockAsync(t, upgrading{rw.Upgradeable(), reader})
		redistest.Eventually(t, testTimeout, func() bool { return b.Stats().Waiting == 1 }, "it waits")
		upgrade.stillWaits(t)
		require.NoError(t, leave())
		got := upgrade.gets(t, rlock.DefaultWatchdogTimeout/3)
		inner, unlockInner := enter(t, got.ctx, rw.Read())
		require.NoError(t, inner.Err())
		require.NoError(t, unlockInner())
		again, down2, err := rw.Downgrade(got.ctx)
		require.NoError(t, err)
		require.NoError(t, again.Err())
		require.NoError(t, down2())
		require.Empty(t, down)
		require.NoError(t, unlock())
		require.NoError(t, within(t, down, testTimeout))
		require.False(t, b.exists(t, b.name))

		// The same for a writer.
		c := newClient(t, b.rdb)
		rw = c.RWMutex(b.name)
		writer, _ := enter(t, context.Background(), rw.Write())
		down = shutDown(t, c, context.Background())
		inner, unlockInner = enter(t, writer, rw.Upgradeable())
		require.NoError(t, inner.Err())
		require.NoError(t, unlockInner())
		_, unlock, err = rw.Downgrade(writer)
		require.NoError(t, err)
		require.Empty(t, down)
		require.NoError(t, unlock())
		require.NoError(t, within(t, down, testTimeout))
		require.False(t, b.exists(t, b.name))
	})
}

// An Upgrade still waiting when Shutdown's time is over fails with an error for it.
func TestShutdownTellsAnUpgradeThatWaits(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		_, leave := enter(t, context.Background(), newClient(t, b.rdb).RWMutex(b.name).Read())
		u := b.RWMutex(b.name).Upgradeable()
		reader, unlock := enter(t, context.Background(), u)
		upgrade := async(func() error {
			_, _, err := u.Upgrade(reader)
			return err
		})
		redistest.Eventually(t, testTimeout, func() bool { return b.Stats().Waiting == 1 }, "it waits")
		over, cancel := context.WithCancel(context.Background())
		cancel()
		down := async(func() error { return b.Shutdown(over) })
		require.ErrorIs(t, within(t, upgrade, testTimeout), rlock.ErrClosed)
		require.NoError(t, unlock())
		require.ErrorIs(t, within(t, down, testTimeout), context.Canceled)
		require.NoError(t, leave())
	})
}

// While its sections run, a Client in Shutdown keeps no subscription without a waiter.
func TestShutdownEndsIdleSubscriptions(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		_, around := enter(t, context.Background(), b.Mutex(b.name+":around"))
		_, unlock := enter(t, context.Background(), newClient(t, b.rdb).Mutex(b.name))
		_, lingers := enter(t, context.Background(), newClient(t, b.rdb).Mutex(b.name+":lingers"))
		waits, gets := lockAsync(t, b.Mutex(b.name)), lockAsync(t, b.Mutex(b.name+":lingers"))
		b.awaitSubscribers(t, b.name, 1)
		b.awaitSubscribers(t, b.name+":lingers", 1)
		require.NoError(t, lingers())
		got := gets.gets(t, testTimeout)
		down := shutDown(t, b.Client, context.Background())
		require.ErrorIs(t, waits.get(t, testTimeout).err, rlock.ErrClosed)
		b.awaitSubscribers(t, b.name, 0)
		b.awaitSubscribers(t, b.name+":lingers", 0)
		require.Empty(t, down)
		for _, unlock := range []rlock.UnlockFunc{unlock, got.unlock, around} {
			require.NoError(t, unlock())
		}
		require.NoError(t, within(t, down, testTimeout))
	})
}

// When its time is over, Shutdown cancels the sections, and a second later it closes the Client, though they have not unlocked.
func TestShutdownWhoseTimeIsOver(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		const most = 50 * time.Millisecond
		b := newFixture(t)
		ctx, unlock := enter(t, context.Background(), b.Mutex(b.name))
		soonOver, cancel := context.WithTimeout(context.Background(), most)
		defer cancel()
		began := time.Now()
		require.ErrorIs(t, b.Shutdown(soonOver), context.DeadlineExceeded)
		requireTook(t, most+time.Second, began, time.Now())
		require.ErrorIs(t, context.Cause(ctx), rlock.ErrClosed)
		require.True(t, b.exists(t, b.name))
		require.NoError(t, unlock(), "an unlock works after Close")
	})
}

// If Redis has granted a Lock by the time Shutdown begins, the Lock is refused like any other, and the grant is given back.
func TestShutdownMeetsAGrant(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		c, proxy, b := behindProxy(t, oneConn)
		b.Client = c
		_, unlock := enter(t, context.Background(), b.Mutex(b.name+":around"))
		proxy.OnReply(redistest.Nth(1, "EVALSHA", redistest.Hold))
		got := lockAsync(t, b.Mutex(b.name))
		redistest.Eventually(t, testTimeout, func() bool { return b.exists(t, b.name) }, "granted")
		down := shutDown(t, b.Client, context.Background())
		proxy.Release()
		err := got.get(t, testTimeout).err
		require.ErrorIs(t, err, rlock.ErrClosed)
		require.NotErrorIs(t, err, rlock.ErrUnreachable)
		require.NoError(t, unlock())
		require.NoError(t, within(t, down, testTimeout))
		require.False(t, b.exists(t, b.name))
	})
}

// Shutdown of a Client without holds equals Close; it can be called again, and during Close.
func TestShutdownOfAnIdleClient(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		require.NoError(t, b.Shutdown(context.Background()))
		require.NoError(t, b.Shutdown(context.Background()))
		c := newClient(t, b.rdb)
		_, unlock := enter(t, context.Background(), c.Mutex(b.name))
		down := shutDown(t, c, context.Background())
		again := async(func() error { return c.Shutdown(context.Background()) })
		c.Close()
		require.NoError(t, within(t, down, testTimeout))
		require.NoError(t, within(t, again, testTimeout))
		require.NoError(t, unlock())
		require.Panics(t, func() { _ = new(rlock.Client).Shutdown(context.Background()) })
	})
}

// G5, G9: thousands of calls, most of them in vain, leave nothing, here or in Redis, but records that expire.
func TestManyCallsLeaveNothing(t *testing.T) {
	setPermits := func(b fixture, name string, n int64) error {
		return second(b.Semaphore(name).TrySetPermits(context.Background(), n))
	}
	for kind, of := range map[string]struct {
		set  func(b fixture, name string, n int64) error                   // n is 0 if nobody may get in
		call func(ctx context.Context, c *rlock.Client, name string) error // gives back what it gets
		left func(t *testing.T, b fixture, name string, n int64)
	}{
		"locks": {
			set: func(b fixture, name string, n int64) error {
				if n > 0 {
					return nil
				}
				return b.rdb.Do(context.Background(), b.rdb.B().Hset().Key(name).FieldValue().FieldValue(foreignOwner, "1").Build()).Error()
			},
			call: func(ctx context.Context, c *rlock.Client, name string) error { return c.Mutex(name).Do(ctx, nothing) },
			left: func(t *testing.T, b fixture, name string, n int64) { require.Equal(t, n == 0, b.exists(t, name)) },
		},
		"semaphores": {
			set: setPermits,
			call: func(ctx context.Context, c *rlock.Client, name string) error {
				return c.Semaphore(name).Do(ctx, 1, nothing)
			},
			left: func(t *testing.T, b fixture, name string, n int64) { requireFree(t, b.Semaphore(name), n) },
		},
		"permits": {
			set: setPermits,
			call: func(ctx context.Context, c *rlock.Client, name string) error {
				return c.PermitSemaphore(name).Do(ctx, func(context.Context, *rlock.Permit) error { return nil })
			},
			left: func(t *testing.T, b fixture, name string, n int64) { requirePermits(t, b.PermitSemaphore(name), n, 0) },
		},
		"latches": {
			set: func(b fixture, name string, _ int64) error {
				return second(b.CountDownLatch(name).TrySetCount(context.Background(), 2))
			},
			call: func(ctx context.Context, c *rlock.Client, name string) error {
				l := c.CountDownLatch(name)
				waits := async(func() error { return l.Await(ctx) })
				if err := l.CountDown(ctx); err != nil && !errors.Is(err, ctx.Err()) {
					return err
				}
				return errors.Join(second(l.Delete(context.Background())), <-waits)
			},
			left: func(t *testing.T, b fixture, name string, _ int64) { require.False(t, b.exists(t, name)) },
		},
	} {
		t.Run(kind, func(t *testing.T) {
			redistest.OnlyVirtual(t, "it counts all goroutines", func(t *testing.T) {
				const names = 1_000
				b := newFixture(t)
				requireNoGoroutines(t, b.rdb, names, func(i int) {
					name := fmt.Sprintf("%s:%d", kind, i)
					assert.NoError(t, of.set(b, name, int64(i%2)))
					ctx, cancel := context.WithTimeout(context.Background(), rand.N(20*time.Millisecond))
					defer cancel()
					if err := of.call(ctx, b.Client, name); err != nil {
						assert.ErrorIs(t, err, rlock.ErrNotAcquired)
					}
				})
				require.Empty(t, answer(b.do(t, "PUBSUB", "CHANNELS").AsStrSlice()).ok(t))
				for i := range names {
					name := fmt.Sprintf("%s:%d", kind, i)
					of.left(t, b, name, int64(i%2))
					require.NoError(t, b.do(t, "DEL", name).Error())
				}
				for _, key := range answer(b.do(t, "KEYS", "*").AsStrSlice()).ok(t) {
					require.Regexp(t, "^rlock_(sem_requests|latch):{", key)
					require.NotEqual(t, -time.Millisecond, b.pttl(t, key), "it ends by itself")
				}
				require.Zero(t, b.Stats().Holds)
				require.Zero(t, b.Stats().Waiting)
			})
		})
	}
}

// requireNoGoroutines calls f for each of n names, 64 at a time, and requires that no more goroutines are left than by the first hundred.
func requireNoGoroutines(t *testing.T, rdb rueidis.Client, n int, f func(i int)) {
	t.Helper()
	require.NoError(t, rdb.Do(t.Context(), rdb.B().Ping().Build()).Error()) // a ctx that can be cancelled starts rueidis' goroutines for good
	const first = 100
	settled := func() int {
		sleep(testTimeout)
		redistest.Settle(t)
		return runtime.NumGoroutine()
	}
	inParallel(first, f)
	before := settled()
	inParallel(n-first, func(i int) { f(first + i) })
	require.LessOrEqual(t, settled(), before)
}
