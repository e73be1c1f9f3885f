package rlock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

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
