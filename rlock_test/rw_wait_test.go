package rlock_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// Against an unbroken stream of readers from several processes, a writer gets in within twice the longest section.
// Against an unbroken stream of writers, no reader waits forever.
func TestNobodyStarves(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		const section = 300 * time.Millisecond
		s := redistest.Start(t)
		name := redistest.Name(t)
		ctx := context.Background()
		var wg sync.WaitGroup
		stop := make(chan struct{})
		busy := func(m *rlock.Mutex, section time.Duration) {
			wg.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					assert.NoError(t, m.Do(ctx, func(context.Context) error {
						sleep(section)
						return nil
					}))
				}
			})
		}
		clients := []*rlock.Client{newClient(t, s.Client(t)), newClient(t, s.Client(t)), newClient(t, s.Client(t))}
		for i := range 12 {
			busy(clients[i%2].RWMutex(name).Read(), section*time.Duration(i+1)/12)
		}
		for round := range 4 {
			began := time.Now()
			_, unlock, err := clients[1+round%2].RWMutex(name).Write().Lock(ctx)
			waited := time.Since(began)
			assert.NoError(t, err)
			assert.Less(t, waited, 2*section, "a writer among readers")
			assert.NoError(t, unlock())
			sleep(section / 3)
		}
		for i := range 6 {
			busy(clients[i%2].RWMutex(name).Write(), 10*time.Millisecond)
		}
		for range 4 {
			began := time.Now()
			_, unlock, err := clients[2].RWMutex(name).Read().Lock(ctx)
			assert.NoError(t, err)
			assert.Less(t, time.Since(began), 10*time.Second, "a reader among writers")
			assert.NoError(t, unlock())
		}
		close(stop)
		wg.Wait()
		require.Positive(t, clients[0].Stats().Shared)
		for _, c := range clients {
			c.Close()
		}
		rwNothing(t, s.Client(t), name)
	})
}

// G5: a waiter on either side that gives up leaves nothing, and admits those who waited because of it.
func TestReadWriteWaitersLeave(t *testing.T) {
	for name, o := range map[string]rlock.Options{"with hand-offs": {}, "without": {HandOff: rlock.HandOff{Most: -1}}} {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			b := newFixture(t, o)
			ctx := context.Background()
			rw, other := b.RWMutex(b.name), newClient(t, b.rdb, o).RWMutex(b.name)
			_, leave := enter(t, ctx, rw.Read())
			writers := []pendingLock{lockAsync(t, rw.Write()), lockAsync(t, other.Write())}
			redistest.Eventually(t, testTimeout, func() bool {
				n, err := b.do(t, "ZCARD", "rlock_writers:{"+b.name+"}").AsInt64()
				return err == nil && n == 2
			}, "both have left a mark")
			readers := []pendingLock{lockAsync(t, rw.Read()), lockAsync(t, other.Read())}
			b.awaitWaiters(t, 4)
			_, _, err := newClient(t, b.rdb, o).RWMutex(b.name).Read().TryLock(ctx, 0)
			require.ErrorIs(t, err, rlock.ErrNotAcquired, "a third process has to wait, too")
			_, _, err = rw.Write().TryLock(ctx, 0)
			require.ErrorIs(t, err, rlock.ErrNotAcquired)

			writers[0].cancel()
			require.ErrorIs(t, writers[0].get(t, soon).err, context.Canceled)
			sleep(100 * time.Millisecond)
			readers[0].stillWaits(t)
			readers[1].stillWaits(t)
			writers[1].cancel()
			require.ErrorIs(t, writers[1].get(t, soon).err, context.Canceled)
			for _, p := range readers {
				p.getAndUnlock(t, soon)
			}
			_, _, err = rw.Write().TryLock(ctx, 300*time.Millisecond)
			require.ErrorIs(t, err, rlock.ErrNotAcquired)
			require.NoError(t, leave())
			rwNothing(t, b.rdb, b.name)
		})
	}
}

// G4: a user has no right to the writers' marks. When a writer gives up, the readers behind it join those inside. The
// last reader to leave notifies the waiting upgrade, and waiters are notified if the remaining readers end early.
func TestReadWriteWithoutTheRightToMarks(t *testing.T) {
	redistest.Parallel(t)
	s := redistest.Start(t)
	past := fixture{rdb: s.Client(t), name: redistest.Name(t)}
	rules := []string{"~" + past.name, "~{" + past.name + "}:*", "~rlock_upgrade:*", "~rlock_queue:*", "&*", "+@all"}
	require.NoError(t, past.do(t, append([]string{"ACL", "SETUSER", "limited", "on", ">secret"}, rules...)...).Error())
	client := func() *rlock.Client {
		return newClient(t, s.Client(t, func(o *rueidis.ClientOption) { o.Username, o.Password = "limited", "secret" }))
	}
	ctx := context.Background()
	a, b := client(), client()
	rw := b.RWMutex(past.name)
	_, leave := enter(t, ctx, a.RWMutex(past.name).Read())
	writer := lockAsync(t, rw.Write())
	past.awaitWaiters(t, 1)
	reader := lockAsync(t, rw.Read())
	past.awaitWaiters(t, 2)
	require.False(t, past.exists(t, "rlock_writers:{"+past.name+"}"))
	reader.stillWaits(t)
	writer.cancel()
	require.ErrorIs(t, writer.get(t, soon).err, context.Canceled)
	got := reader.get(t, soon)
	require.NoError(t, got.err)
	require.NoError(t, got.unlock())

	section, unlock := enter(t, ctx, rw.Upgradeable())
	upgrade := lockAsync(t, upgrading{rw.Upgradeable(), section})
	past.awaitWaiters(t, 1)
	require.NoError(t, leave())
	got = upgrade.get(t, soon)
	require.NoError(t, got.err)
	require.NoError(t, got.unlock())
	require.NoError(t, unlock())

	_, leave = enter(t, ctx, a.RWMutex(past.name).Read())
	_, _, err := a.RWMutex(past.name, rlock.WithLease(2*time.Second)).Read().Lock(ctx)
	require.NoError(t, err)
	writer = lockAsync(t, rw.Write())
	past.awaitWaiters(t, 1)
	require.NoError(t, leave())
	got = writer.get(t, 2*soon)
	require.NoError(t, got.err)
	require.NoError(t, got.unlock())
}

// A writer killed while it waits keeps no reader out: the next reader drops its mark, and the waiters are notified.
func TestWaitingWriterIsKilled(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		dying, proxy, past := behindProxy(t, anyWay)
		ctx := context.Background()
		rw := past.RWMutex(past.name)
		_, leave := enter(t, ctx, rw.Read())
		lockAsync(t, dying.RWMutex(past.name).Write())
		redistest.Eventually(t, testTimeout, func() bool { return past.exists(t, "rlock_writers:{"+past.name+"}") }, "it waits")
		asleep := lockAsync(t, past.RWMutex(past.name, byCall).Read()) // by its own call: the first reader may have come early enough to share its hold
		past.awaitWaiters(t, 2)
		proxy.Refuse(true)
		proxy.CutAll()
		third := newClient(t, past.rdb).RWMutex(past.name)
		redistest.Eventually(t, soon, func() bool {
			_, unlock, err := third.Read().TryLock(ctx, 0)
			return err == nil && unlock() == nil
		}, "a reader that comes now is in")
		got := asleep.get(t, soon)
		require.NoError(t, got.err, "the waiting reader is in, too")
		require.NoError(t, got.unlock())
		require.NoError(t, leave())
	})
}
