package rlock_test

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

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
					_, _, err := dead.Read().Lock(ctx)
					require.NoError(t, err)
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
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
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
			n, err := b.do(t, "HLEN", b.name).AsInt64()
			require.NoError(t, err)
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
			_, _, err := b.RWMutex(b.name, rlock.WithLease(testTimeout)).Read().Lock(ctx)
			require.NoError(t, err)
		}
		require.Less(t, fields(), int64(400), "300 live readers, and few of the 400 dead ones are left")
		require.NoError(t, section.Err())
		require.NoError(t, stay())
		require.NoError(t, leave())
		_, err = rw.Read().ForceUnlock(ctx)
		require.NoError(t, err)
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
