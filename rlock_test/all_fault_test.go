package rlock_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// newAllLeaver returns callers behind a proxy, the names of three locks, and an All of these locks.
func newAllLeaver(t *testing.T, way func(*rueidis.ClientOption)) (*leavingCallers, []string, *rlock.MultiMutex) {
	t.Helper()
	h := newLeavingCallers(t, way)
	names := append(numbered(h.name, 2), h.name)
	m := rlock.All(mutexes(h.Client, names...)...)
	require.NoError(t, m.Do(context.Background(), func(context.Context) error { return nil })) // loads the scripts
	return h, names, m
}

// G5, G6: the connection is cut before the reply to Lock, and again before the reply to unlock. The repeated calls count only once,
// and no key is left.
func TestAllRepliesLost(t *testing.T) {
	inBothWays(t, func(t *testing.T, way func(*rueidis.ClientOption)) {
		h, names, m := newAllLeaver(t, way)
		h.proxy.OnReply(redistest.Nth(1, "EVALSHA", redistest.Cut))
		_, unlock, err := m.Lock(context.Background())
		require.NoError(t, err)
		for _, name := range names {
			fields := h.fields(t, name)
			require.Len(t, fields, 1)
			for _, count := range fields {
				require.EqualValues(t, 1, count)
			}
		}
		h.proxy.OnReply(redistest.Nth(1, "EVALSHA", redistest.Cut))
		require.NoError(t, unlock())
		require.Zero(t, fixture{rdb: h.rdb}.size(t))
	})
}

// The reply to the unlock is lost while goroutines of this process and of another wait for the locks. Both waiters get their lock.
func TestAllUnlockLostWithWaiters(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		h, names, m := newAllLeaver(t, func(*rueidis.ClientOption) {})
		_, unlock, err := m.Lock(context.Background())
		require.NoError(t, err)
		local := lockAsync(t, h.Mutex(names[0]))
		remote := lockAsync(t, newClient(t, h.rdb).Mutex(names[1]))
		for _, name := range names[:2] {
			redistest.Eventually(t, testTimeout, func() bool { return h.exists(t, "rlock_queue:{"+name+"}") }, "the waiter is in the queue")
		}
		h.proxy.OnReply(redistest.Nth(1, "EVALSHA", redistest.Cut))
		require.NoError(t, unlock())
		for _, p := range []pendingLock{local, remote} {
			p.getAndUnlock(t, 5*time.Second)
		}
		fixture{rdb: h.rdb}.clear(t)
	})
}

// G5: the caller cancels while its call is under way. Whether Redis answers later or never, all locks are released before their
// lease ends.
func TestAllIsCancelledWhileItAsks(t *testing.T) {
	for name, answer := range map[string]func(h *leavingCallers){
		"answered": func(h *leavingCallers) { h.proxy.Release() },
		"silence":  func(*leavingCallers) {},
		"cut off":  func(h *leavingCallers) { h.proxy.CutAll() },
	} {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			h, names, m := newAllLeaver(t, func(*rueidis.ClientOption) {})
			p := h.asks(t, m)
			sleep(200 * time.Millisecond) // longer than Redis takes to answer
			p.cancel()
			got := p.get(t, soon)
			require.ErrorIs(t, got.err, rlock.ErrNotAcquired)
			require.ErrorIs(t, got.err, rlock.ErrUnreachable)
			require.ErrorIs(t, got.err, context.Canceled)
			answer(h)
			redistest.Eventually(t, rlock.DefaultWatchdogTimeout/2, func() bool {
				return !slices.ContainsFunc(names, func(name string) bool { return h.exists(t, name) })
			}, "the locks are released before their lease ends")
			h.clear(t)
		})
	}
}

// G9: Close while one All waits, another one asks a silent Redis, and a third one holds its locks. All of them end with ErrClosed,
// and no key is left.
func TestAllAndClose(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		h, names, m := newAllLeaver(t, func(*rueidis.ClientOption) {})
		other := newClient(t, h.rdb)
		_, unlockOther, err := other.Mutex(names[0]).Lock(context.Background())
		require.NoError(t, err)
		waits := lockAsync(t, m)
		fixture{rdb: h.rdb}.awaitSubscribers(t, names[0], 1)
		held, unlock, err := rlock.All(mutexes(h.Client, "x", "y")...).Lock(context.Background())
		require.NoError(t, err)
		silent := numbered("silent", 50)
		hold := redistest.Nth(1, "EVALSHA", redistest.Hold)
		h.proxy.OnReply(func(cmd []string) redistest.Action {
			if !slices.Contains(cmd, silent[0]) { // the waiter may try once more
				return redistest.Pass
			}
			return hold(cmd)
		})
		asks := lockAsync(t, rlock.All(mutexes(h.Client, silent...)...))
		redistest.Eventually(t, 5*time.Second, func() bool { return h.proxy.Held() == 1 }, "the proxy holds the reply")
		closed := async(func() error { h.Close(); return nil })
		require.ErrorIs(t, waits.get(t, soon).err, rlock.ErrClosed)
		require.ErrorIs(t, asks.get(t, soon).err, rlock.ErrClosed)
		<-held.Done()
		require.ErrorIs(t, context.Cause(held), rlock.ErrClosed)
		h.proxy.Release()
		require.NoError(t, within(t, closed, 10*time.Second))
		require.NoError(t, unlock(), "unlock also works after Close")
		require.NoError(t, unlockOther())
		_, _, err = m.TryLock(context.Background(), 0)
		require.ErrorIs(t, err, rlock.ErrClosed)
		fixture{rdb: h.rdb}.clear(t)
	})
}

// G5: while Redis is down, calls fail with ErrUnreachable within the time that they take for a single lock. The error is not
// ErrNotAcquired unless the caller asked for a bounded wait. Once Redis is back, the locks work again.
func TestAllWhenRedisIsDown(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		c := newClient(t, s.Client(t))
		m := rlock.All(mutexes(c, numbered("down", 50)...)...)
		_, unlock, err := m.Lock(context.Background())
		require.NoError(t, err)
		s.Stop()
		began := time.Now()
		require.ErrorIs(t, unlock(), rlock.ErrUnreachable)
		_, _, err = m.TryLock(context.Background(), 0)
		require.ErrorIs(t, err, rlock.ErrUnreachable)
		require.ErrorIs(t, err, rlock.ErrNotAcquired)
		_, _, err = m.Lock(context.Background())
		require.ErrorIs(t, err, rlock.ErrUnreachable)
		require.NotErrorIs(t, err, rlock.ErrNotAcquired)
		requireTookAtMost(t, 3*3*time.Second, began, time.Now())
		s.Restart()
		require.NoError(t, m.Do(context.Background(), func(context.Context) error { return nil }))
	})
}

// While a cluster slot moves, some keys are on the old node and others on the new one, so no script can touch them together. All
// then takes and releases the locks one by one.
func TestAllWhileASlotMoves(t *testing.T) {
	redistest.Parallel(t)
	cl := redistest.StartCluster(t, 3, 0)
	b := fixture{Client: newClient(t, cl.Client(t)), rdb: cl.Client(t)}
	names := []string{"a{x}", "b{x}", "c{x}"}
	m := rlock.All(mutexes(b.Client, names...)...)
	_, unlock, err := m.Lock(context.Background())
	require.NoError(t, err)

	slot := cl.Slot(t, names[0])
	from, to := cl.BeginMove(t, slot, names[1])

	require.NoError(t, unlock())
	began := time.Now()
	require.NoError(t, m.Do(context.Background(), func(context.Context) error { return nil }))
	require.Less(t, time.Since(began), soon)
	cl.MigrateSlot(t, slot, from, to) // completes the move
	require.NoError(t, m.Do(context.Background(), func(context.Context) error { return nil }))
	for _, name := range names {
		require.False(t, b.exists(t, name))
	}
}

// With Options.Replicas each lock needs its confirmation by a replica, with a command of its own. Without a replica, All fails with
// ErrNotReplicated and leaves no key.
func TestAllWithReplicas(t *testing.T) {
	redistest.Parallel(t) // without WAIT in memory
	s := redistest.Start(t)
	c := newClient(t, s.Client(t), rlock.Options{Replicas: 1, ReplicaTimeout: 50 * time.Millisecond})
	err := rlock.All(mutexes(c, "a", "b")...).Do(context.Background(), func(context.Context) error { panic("not replicated") })
	require.ErrorIs(t, err, rlock.ErrNotReplicated)
	require.Zero(t, fixture{rdb: s.Client(t)}.size(t))
}

// WithMinHold keeps a lock taken after its section ends. It does not apply to a lock that All gives back because it has to wait for
// another one.
func TestAllGivesBackWithoutMinHold(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		other := newClient(t, b.rdb)
		names := numbered(b.name, 2)
		m := rlock.All(b.Mutex(names[0], rlock.WithMinHold(time.Hour)), b.Mutex(names[1]))
		_, unlock0, err := other.Mutex(names[0]).Lock(context.Background())
		require.NoError(t, err)
		p := lockAsync(t, m)
		b.awaitSubscribers(t, names[0], 1)
		_, unlock1, err := other.Mutex(names[1]).Lock(context.Background())
		require.NoError(t, err)
		require.NoError(t, unlock0())
		b.awaitSubscribers(t, names[1], 1) // so it has taken the first lock and given it back
		require.NoError(t, other.Mutex(names[0]).TryDo(context.Background(), soon, func(context.Context) error { return nil }))
		require.NoError(t, unlock1())
		p.getAndUnlock(t, soon)
		require.Greater(t, b.pttl(t, names[0]), time.Minute)
		require.False(t, b.exists(t, names[1]))
		b.do(t, "DEL", names[0])
	})
}

// G9: an All over two Clients holds the lock of the first Client and waits for a slow reply to the second. When the first Client is
// closed, its lock is released before Close returns, since its Redis may be unreachable after that.
func TestAllHasALockOfTheClientThatIsClosed(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		proxy := redistest.StartProxy(t, redistest.Shared(t))
		slow := newClient(t, redistest.Dial(t, proxy.Addr()))
		loadScripts(t, slow)
		proxy.OnReply(redistest.Nth(1, "EVALSHA", redistest.Hold))
		names := numbered(b.name, 2)
		locks := async(func() error {
			_, _, err := rlock.All(b.Mutex(names[0]), slow.Mutex(names[1])).Lock(context.Background())
			return err
		})
		redistest.Eventually(t, testTimeout, func() bool { return proxy.Held() == 1 }, "the call for the second lock is under way")
		require.True(t, b.exists(t, names[0]))
		b.Close()
		require.False(t, b.exists(t, names[0]))
		require.ErrorIs(t, within(t, locks, soon), rlock.ErrClosed)
		proxy.Release()
		slow.Close()
		require.False(t, b.exists(t, names[1]))
	})
}

// A round trip to Redis may take longer than a second. Free locks are still taken with one round trip each.
func TestAllOverASlowNetwork(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		proxy := redistest.StartProxy(t, redistest.Shared(t))
		c := newClient(t, redistest.Dial(t, proxy.Addr()))
		fair := rlock.All(c.FairMutex(b.name+":1"), c.FairMutex(b.name+":2"))
		require.NoError(t, fair.Do(context.Background(), nothingToDo)) // loads the scripts
		const trip = 1200 * time.Millisecond
		proxy.Delay(trip / 2)
		began := time.Now()
		_, unlock, err := fair.Lock(context.Background())
		require.NoError(t, err)
		requireTook(t, 2*trip, began, time.Now())
		proxy.Delay(0)
		require.NoError(t, unlock())
	})
}

// Handles of one lock that let each other in, such as its writer and its reader: one slow reply to the second call does not make
// Lock treat the lock as held by someone else.
func TestAllOfBothSidesMeetsASlowReply(t *testing.T) {
	for name, all := range map[string]func(rw *rlock.RWMutex) *rlock.MultiMutex{
		"write and read":       func(rw *rlock.RWMutex) *rlock.MultiMutex { return rlock.All(rw.Read(), rw.Write()) },
		"upgradeable and read": func(rw *rlock.RWMutex) *rlock.MultiMutex { return rlock.All(rw.Read(), rw.Upgradeable()) },
		"one in the other": func(rw *rlock.RWMutex) *rlock.MultiMutex {
			return rlock.All(rw.Read(), rlock.All(rw.Write()), rlock.All(rw.Read(), rw.Write()))
		},
	} {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			b := newFixture(t)
			proxy := redistest.StartProxy(t, redistest.Shared(t))
			m := all(newClient(t, redistest.Dial(t, proxy.Addr())).RWMutex(b.name))
			require.NoError(t, m.Do(context.Background(), nothingToDo)) // loads the scripts
			proxy.OnReply(redistest.Nth(strings.Count(name, "upgradeable")+2, "EVALSHA", redistest.Hold))
			locks := lockAsync(t, m)
			redistest.Eventually(t, testTimeout, func() bool { return proxy.Held() == 1 }, "the call for the second lock is under way")
			sleep(1100 * time.Millisecond)
			proxy.Release()
			locks.getAndUnlock(t, 5*time.Second)
			require.False(t, b.exists(t, b.name))
		})
	}
}
