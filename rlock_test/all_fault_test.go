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

// newAllLeaver has callers that want several locks.
func newAllLeaver(t *testing.T, way func(*rueidis.ClientOption)) (*leavingCallers, []string, *rlock.MultiMutex) {
	t.Helper()
	h := newLeavingCallers(t, way)
	names := append(numbered(h.name, 2), h.name)
	m := rlock.All(mutexes(h.Client, names...)...)
	require.NoError(t, m.Do(context.Background(), func(context.Context) error { return nil })) // the scripts
	return h, names, m
}

// G5, G6: the replies of the one call of a Lock and of its unlock are lost. Nothing counts twice, and nothing is left.
func TestAllRepliesLost(t *testing.T) {
	redistest.Parallel(t)
	bothWays(t, func(t *testing.T, way func(*rueidis.ClientOption)) {
		redistest.Parallel(t)
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

// The reply of the unlock is lost while waiters of this process and of another stand for its locks: they get them.
func TestAllUnlockLostWithWaiters(t *testing.T) {
	redistest.Parallel(t)
	h, names, m := newAllLeaver(t, func(*rueidis.ClientOption) {})
	_, unlock, err := m.Lock(context.Background())
	require.NoError(t, err)
	local := lockAsync(t, h.Mutex(names[0]))
	remote := lockAsync(t, newClient(t, h.rdb).Mutex(names[1]))
	for _, name := range names[:2] {
		redistest.Eventually(t, testTimeout, func() bool { return h.exists(t, "rlock_queue:{"+name+"}") }, "in line")
	}
	h.proxy.OnReply(redistest.Nth(1, "EVALSHA", redistest.Cut))
	require.NoError(t, unlock())
	for _, p := range []pendingLock{local, remote} {
		got := p.get(t, 5*time.Second)
		require.NoError(t, got.err)
		require.NoError(t, got.unlock())
	}
	fixture{rdb: h.rdb}.clear(t)
}

// G5: the caller leaves while its call is under way. Redis answers later or never, and anything it granted is given back.
func TestAllIsCancelledWhileItAsks(t *testing.T) {
	redistest.Parallel(t)
	for name, answer := range map[string]func(h *leavingCallers){
		"answered": func(h *leavingCallers) { h.proxy.Release() },
		"silence":  func(*leavingCallers) {},
		"cut off":  func(h *leavingCallers) { h.proxy.CutAll() },
	} {
		t.Run(name, func(t *testing.T) {
			redistest.Parallel(t)
			h, names, m := newAllLeaver(t, func(*rueidis.ClientOption) {})
			p := h.asks(t, m)
			sleep(200 * time.Millisecond) // time for an answer
			p.cancel()
			got := p.get(t, soon)
			require.ErrorIs(t, got.err, rlock.ErrNotAcquired)
			require.ErrorIs(t, got.err, rlock.ErrUnreachable)
			require.ErrorIs(t, got.err, context.Canceled)
			answer(h)
			redistest.Eventually(t, rlock.DefaultWatchdogTimeout/2, func() bool {
				return !slices.ContainsFunc(names, func(name string) bool { return h.exists(t, name) })
			}, "given back, and not at the end of the lease")
			h.clear(t)
		})
	}
}

// G9: Close while it waits, while it asks a silent Redis, and while it holds.
func TestAllAndClose(t *testing.T) {
	redistest.Parallel(t)
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
		if !slices.Contains(cmd, silent[0]) { // one of the waiter's, which may ask once more
			return redistest.Pass
		}
		return hold(cmd)
	})
	asks := lockAsync(t, rlock.All(mutexes(h.Client, silent...)...))
	redistest.Eventually(t, 5*time.Second, func() bool { return h.proxy.Held() == 1 }, "not answered")
	closed := async(func() error { h.Close(); return nil })
	require.ErrorIs(t, waits.get(t, soon).err, rlock.ErrClosed)
	require.ErrorIs(t, asks.get(t, soon).err, rlock.ErrClosed)
	<-held.Done()
	require.ErrorIs(t, context.Cause(held), rlock.ErrClosed)
	h.proxy.Release()
	require.NoError(t, within(t, closed, 10*time.Second))
	require.NoError(t, unlock(), "also after Close")
	require.NoError(t, unlockOther())
	_, _, err = m.TryLock(context.Background(), 0)
	require.ErrorIs(t, err, rlock.ErrClosed)
	fixture{rdb: h.rdb}.clear(t)
}

// G5: an outage is not reported as a held lock, and is noticed as fast as for a single lock.
func TestAllWhenRedisIsDown(t *testing.T) {
	redistest.Parallel(t)
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
	require.Less(t, time.Since(began), 15*time.Second)
	s.Restart()
	require.NoError(t, m.Do(context.Background(), func(context.Context) error { return nil }))
}

// While a slot moves, one node has the keys of some locks and the next node those of the rest. No script may touch them together, so the
// locks are taken singly.
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
	cl.MigrateSlot(t, slot, from, to) // goes on from there
	require.NoError(t, m.Do(context.Background(), func(context.Context) error { return nil }))
	for _, name := range names {
		require.False(t, b.exists(t, name))
	}
}

// With Replicas each lock is confirmed by them, by a command of its own.
func TestAllWithReplicas(t *testing.T) {
	s := redistest.Start(t)
	c := newClient(t, s.Client(t), rlock.Options{Replicas: 1, ReplicaTimeout: 50 * time.Millisecond})
	err := rlock.All(mutexes(c, "a", "b")...).Do(context.Background(), func(context.Context) error { panic("not replicated") })
	require.ErrorIs(t, err, rlock.ErrNotReplicated)
	require.Zero(t, fixture{rdb: s.Client(t)}.size(t))
}

// WithMinHold keeps a lock taken after its section, not after a Lock that gave it back to wait for another one.
func TestAllGivesBackWithoutMinHold(t *testing.T) {
	redistest.Parallel(t)
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
	b.awaitSubscribers(t, names[1], 1) // so it had the first one, and gave it back
	require.NoError(t, other.Mutex(names[0]).TryDo(context.Background(), soon, func(context.Context) error { return nil }))
	require.NoError(t, unlock1())
	got := p.get(t, soon)
	require.NoError(t, got.err)
	require.NoError(t, got.unlock())
	require.Greater(t, b.pttl(t, names[0]), time.Minute)
	require.False(t, b.exists(t, names[1]))
	b.do(t, "DEL", names[0])
}

// G9: a Lock over two Clients holds the first Client's lock and is waiting for the slow second Client when the first is closed. The first
// lock is given back before Close returns, because its Redis may be unreachable afterwards.
func TestAllHasALockOfTheClientThatIsClosed(t *testing.T) {
	redistest.Parallel(t)
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
	redistest.Eventually(t, testTimeout, func() bool { return proxy.Held() == 1 }, "the second one is asked")
	require.True(t, b.exists(t, names[0]))
	b.Close()
	require.False(t, b.exists(t, names[0]))
	require.ErrorIs(t, within(t, locks, soon), rlock.ErrClosed)
	proxy.Release()
	slow.Close()
	require.False(t, b.exists(t, names[1]))
}

// A round trip to Redis may take longer than a second: a free lock still takes a single call each.
func TestAllOverASlowNetwork(t *testing.T) {
	redistest.Parallel(t)
	b := newFixture(t)
	proxy := redistest.StartProxy(t, redistest.Shared(t))
	c := newClient(t, redistest.Dial(t, proxy.Addr()))
	fair := rlock.All(c.FairMutex(b.name+":1"), c.FairMutex(b.name+":2"))
	require.NoError(t, fair.Do(context.Background(), nothingToDo)) // the scripts
	const trip = 1200 * time.Millisecond
	proxy.Delay(trip / 2)
	began := time.Now()
	_, unlock, err := fair.Lock(context.Background())
	require.NoError(t, err)
	require.Less(t, time.Since(began), 2*trip+soon)
	proxy.Delay(0)
	require.NoError(t, unlock())
}

// Two handles of the same lock let each other in. A slow reply to the second is not reported as a held lock.
func TestAllOfBothSidesMeetsASlowReply(t *testing.T) {
	redistest.Parallel(t)
	for name, all := range map[string]func(rw *rlock.RWMutex) *rlock.MultiMutex{
		"write and read":       func(rw *rlock.RWMutex) *rlock.MultiMutex { return rlock.All(rw.Read(), rw.Write()) },
		"upgradeable and read": func(rw *rlock.RWMutex) *rlock.MultiMutex { return rlock.All(rw.Read(), rw.Upgradeable()) },
		"one in the other": func(rw *rlock.RWMutex) *rlock.MultiMutex {
			return rlock.All(rw.Read(), rlock.All(rw.Write()), rlock.All(rw.Read(), rw.Write()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			redistest.Parallel(t)
			b := newFixture(t)
			proxy := redistest.StartProxy(t, redistest.Shared(t))
			m := all(newClient(t, redistest.Dial(t, proxy.Addr())).RWMutex(b.name))
			require.NoError(t, m.Do(context.Background(), nothingToDo)) // the scripts
			proxy.OnReply(redistest.Nth(strings.Count(name, "upgradeable")+2, "EVALSHA", redistest.Hold))
			locks := lockAsync(t, m)
			redistest.Eventually(t, testTimeout, func() bool { return proxy.Held() == 1 }, "the second one is asked")
			sleep(1100 * time.Millisecond)
			proxy.Release()
			got := locks.get(t, 5*time.Second)
			require.NoError(t, got.err)
			require.NoError(t, got.unlock())
			require.False(t, b.exists(t, b.name))
		})
	}
}
