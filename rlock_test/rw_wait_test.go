package rlock_test

import (
	"context"
	"fmt"
	"strconv"
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
			assert.Less(t, redistest.Ran(t, began, time.Now()), 10*time.Second, "a reader among writers")
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
	got := reader.gets(t, soon)
	require.NoError(t, got.unlock())

	section, unlock := enter(t, ctx, rw.Upgradeable())
	upgrade := lockAsync(t, upgrading{rw.Upgradeable(), section})
	past.awaitWaiters(t, 1)
	require.NoError(t, leave())
	got = upgrade.gets(t, soon)
	require.NoError(t, got.unlock())
	require.NoError(t, unlock())

	_, leave = enter(t, ctx, a.RWMutex(past.name).Read())
	enter(t, ctx, a.RWMutex(past.name, rlock.WithLease(3*time.Second)).Read()) // if it ends before the unlock, the writer is in at once
	writer = lockAsync(t, rw.Write())
	past.awaitWaiters(t, 1)
	require.NoError(t, leave())
	got = writer.gets(t, 2*soon)
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

// A writer in another process has the lock as soon as it is unlocked. Only now and then it lets listeners out of line go first, such as
// Redisson, which nothing but their unlocks shows.
func TestWriterWakesAtOnce(t *testing.T) {
	redistest.OnlyVirtual(t, "it counts moments of 10 ms", func(t *testing.T) {
		b := newFixture(t)
		other := newClient(t, redistest.Dial(t, redistest.Shared(t)))
		late, longest := 0, time.Duration(0)
		for range 60 {
			_, unlock := enter(t, context.Background(), b.RWMutex(b.name).Write())
			waiter := lockAsync(t, other.RWMutex(b.name).Write())
			sleep(time.Second)
			began := time.Now()
			require.NoError(t, unlock())
			got := waiter.gets(t, soon)
			require.NoError(t, got.unlock())
			if took := got.at.Sub(began); took > 0 {
				late, longest = late+1, max(longest, took)
			}
		}
		require.Equal(t, 12, late, "in the first four seconds, after 2, 4 and 8 s more, then each 8 s")
		require.LessOrEqual(t, longest, 20*time.Millisecond)
	})
}

// G4: a writer, or an upgrade, waits for a renewed reader of Redisson's, which leaves without a message, since another reader is left.
// When the lease of that reader ends, the lock is free without a message, too. The waiter looks then, not when the longest lease would
// have ended.
func TestWriterLooksWhenTheFirstReaderEnds(t *testing.T) {
	const brief = 3 * time.Second
	redistest.Virtual(t, func(t *testing.T) {
		for _, upgrades := range []bool{false, true} {
			b := newFixture(t)
			ctx := context.Background()
			other := newClient(t, b.rdb)
			var end func() error
			waits := func() pendingLock { return lockAsync(t, b.RWMutex(b.name).Write()) }
			if upgrades {
				reader, unlock := enter(t, ctx, b.RWMutex(b.name).Upgradeable())
				end = unlock
				waits = func() pendingLock { return lockAsync(t, upgrading{b.RWMutex(b.name).Upgradeable(), reader}) }
			}
			java := "00000000-0000-0000-0000-000000000000:1"
			holdKey := func(owner string) string { return "{" + b.name + "}:" + owner + ":rwlock_timeout:1" }
			require.NoError(t, b.do(t, "HSET", b.name, "mode", "read", java, "1").Error())
			require.NoError(t, b.do(t, "SET", holdKey(java), "1", "PX", "30000").Error())
			require.NoError(t, b.do(t, "PEXPIRE", b.name, "30000").Error())
			stays, _ := enter(t, ctx, other.RWMutex(b.name, rlock.WithLease(brief)).Read())
			began := time.Now()
			waiter := waits()
			b.awaitWaiters(t, 1)
			redistest.Eventually(t, testTimeout, func() bool { return b.exists(t, "rlock_writers:{"+b.name+"}") }, "it has left its mark")
			require.NoError(t, b.do(t, "HDEL", b.name, java).Error()) // as Redisson's unlock
			require.NoError(t, b.do(t, "DEL", holdKey(java)).Error())
			if !upgrades { // the longest lease is that of the reader who stays
				left := answer(b.do(t, "PTTL", holdKey(rlock.Owner(stays))).ToInt64()).ok(t)
				require.NoError(t, b.do(t, "PEXPIRE", b.name, strconv.FormatInt(left, 10)).Error())
			}
			got := waiter.gets(t, time.Minute)
			require.Less(t, got.at.Sub(began), 2*brief)
			require.NoError(t, got.unlock())
			if end != nil {
				require.NoError(t, end())
			}
		}
	})
}

// G4: a writer waits for a reader's lease. That reader leaves, and the other readers are dead or have short leases.
// When these end, the waiter gets in: the writer, or, if it is cut off, the readers behind it.
func TestReadersThatStayAreDead(t *testing.T) {
	const brief = 1500 * time.Millisecond
	ctx := context.Background()
	for _, many := range []int{1, 12} { // with many fields, a script looks at only some of them
		for _, how := range []string{"fixed leases", "cut off", "the writer is cut off, too"} {
			redistest.RunVirtual(t, fmt.Sprintf("%d, %s", many, how), func(t *testing.T) {
				dying, proxy, past := behindProxy(t, anyWay, rlock.Options{WatchdogTimeout: brief})
				dead := newClient(t, past.rdb).RWMutex(past.name, rlock.WithLease(brief))
				waiter, writer := newClient(t, past.rdb).RWMutex(past.name), newClient(t, past.rdb).RWMutex(past.name)
				if how != "fixed leases" {
					dead = dying.RWMutex(past.name, byCall) // one hash field per reader
				}
				if how == "the writer is cut off, too" {
					writer = dead
				}
				_, leave := enter(t, ctx, past.RWMutex(past.name).Read())
				for range many {
					enter(t, ctx, dead.Read())
				}
				waits := lockAsync(t, writer.Write())
				redistest.Eventually(t, testTimeout, func() bool { return past.exists(t, "rlock_writers:{"+past.name+"}") }, "the writer waits")
				past.awaitWaiters(t, 1)
				if how == "the writer is cut off, too" {
					waits = lockAsync(t, waiter.Read())
					past.awaitWaiters(t, 2)
				}
				if how != "fixed leases" {
					proxy.BlackHole(true)
				}
				require.NoError(t, leave())
				waits.getAndUnlock(t, brief+2*soon)
				proxy.BlackHole(false)
			})
		}
	}
}

// G4: when the last live reader leaves, the waiting upgrade is notified, however many dead readers remain.
func TestUpgradeBesideDeadReaders(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		ctx := context.Background()
		die := func() {
			t.Helper()
			for i := range 30 {
				require.NoError(t, b.do(t, "HSET", b.name, fmt.Sprintf("%s:9%d", b.ID(), i), "1").Error())
			}
		}
		other := newClient(t, b.rdb).RWMutex(b.name)
		for range 5 {
			_, leave := enter(t, ctx, other.Read())
			u := b.RWMutex(b.name).Upgradeable()
			section, unlock := enter(t, ctx, u)
			upgrade := lockAsync(t, upgrading{u, section})
			redistest.Eventually(t, testTimeout, func() bool { return b.exists(t, "rlock_writers:{"+b.name+"}") }, "the upgrade waits")
			b.awaitWaiters(t, 1)
			die() // the upgrade's own script did not come across them
			require.NoError(t, leave())
			upgrade.getAndUnlock(t, soon)
			require.NoError(t, unlock())
		}
		rwNothing(t, b.rdb, b.name)
	})
}

// G5: fields of dead readers do not pile up in a lock that is never written, whether its other readers unlock or die.
func TestDeadReadersDoNotPileUp(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t, rlock.Options{HandOff: rlock.HandOff{Most: -1}}) // each reader asks, even right after another
		ctx := context.Background()
		rw := b.RWMutex(b.name)
		section, leave, err := rw.Read().Lock(ctx) // the lock always has a reader
		require.NoError(t, err)
		die := func() {
			t.Helper()
			cmd := []string{"HSET", b.name}
			for i := range 400 {
				cmd = append(cmd, fmt.Sprintf("%s:9%d", b.ID(), i), "2")
			}
			require.NoError(t, b.do(t, cmd...).Error())
		}
		fields := func() int64 {
			n := answer(b.do(t, "HLEN", b.name).AsInt64()).ok(t)
			return n
		}
		die()
		_, unlock, err := b.RWMutex(b.name, byCall).Read().Lock(ctx) // does not share the other's field
		require.NoError(t, err)
		require.NoError(t, unlock())
		require.EqualValues(t, 2, fields(), "an unlock looks at all fields, to find out whether it is the last")

		_, stay := enter(t, ctx, newClient(t, b.rdb).RWMutex(b.name).Read())
		die()
		redistest.Eventually(t, testTimeout, func() bool {
			_, unlock := enter(t, ctx, rw.Read())
			require.NoError(t, unlock())
			return fields() < 30
		}, "each unlock takes out those that it meets")

		die()
		for range 300 {
			enter(t, ctx, b.RWMutex(b.name, rlock.WithLease(testTimeout)).Read())
		}
		require.Less(t, fields(), int64(400), "300 live readers, and few of the 400 dead ones are left")
		require.NoError(t, section.Err())
		require.NoError(t, stay())
		require.NoError(t, leave())
		answer(rw.Read().ForceUnlock(ctx)).ok(t)
	})
}

// G1: readers without hold keys, as other libraries write them, have the lock until the hash expires, however many they are: writers of
// both kinds wait. Beside a reader with a hold key they count as dead.
func TestReadersWithoutHoldKeys(t *testing.T) {
	const lasts = 5 * time.Second
	redistest.OnlyVirtual(t, "exact times", func(t *testing.T) {
		for _, many := range []int{1, 40} {
			b := newFixture(t)
			ctx := context.Background()
			others := []string{"HSET", b.name, "mode", "read"}
			for i := range many {
				others = append(others, fmt.Sprintf("11111111-2222-3333-4444-555555555555:%d", i), "1")
			}
			write := func() {
				t.Helper()
				require.NoError(t, b.do(t, others...).Error())
				require.NoError(t, b.do(t, "PEXPIRE", b.name, strconv.FormatInt(lasts.Milliseconds(), 10)).Error())
			}
			for name, writer := range map[string]rlock.Locker{
				"write": b.RWMutex(b.name).Write(), "fenced": b.FencedRWMutex(b.name).Write(),
			} {
				write()
				_, _, err := writer.TryLock(ctx, 0)
				require.ErrorIs(t, err, rlock.ErrNotAcquired, name)
				began := time.Now()
				_, unlock, err := writer.Lock(ctx)
				require.NoError(t, err, name)
				require.Equal(t, lasts+time.Millisecond, time.Since(began), name) // in whole milliseconds
				require.NoError(t, unlock())
			}

			write()
			_, leave := enter(t, ctx, b.RWMutex(b.name).Read())
			waits := lockAsync(t, newClient(t, b.rdb).RWMutex(b.name).Write())
			b.awaitWaiters(t, 1)
			require.NoError(t, leave())
			waits.getAndUnlock(t, soon)
		}
	})
}
