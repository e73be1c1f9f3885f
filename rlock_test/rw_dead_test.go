package rlock_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// G4: the reader whose lease a writer was told of leaves, and those that stay are dead or have short leases. Whoever waits is in when
// these end: the writer, or readers behind one that is cut off.
func TestReadersThatStayAreDead(t *testing.T) {
	redistest.Parallel(t)
	const brief = 1500 * time.Millisecond
	ctx := context.Background()
	for _, many := range []int{1, 12} { // of many fields only some are looked at
		for _, how := range []string{"fixed leases", "cut off", "the writer is cut off, too"} {
			t.Run(fmt.Sprintf("%d, %s", many, how), func(t *testing.T) {
				redistest.Parallel(t)
				dying, proxy, past := behindProxy(t, anyWay, rlock.Options{WatchdogTimeout: brief})
				dead := newClient(t, past.rdb).RWMutex(past.name, rlock.WithLease(brief))
				waiter, writer := newClient(t, past.rdb).RWMutex(past.name), newClient(t, past.rdb).RWMutex(past.name)
				if how != "fixed leases" {
					dead = dying.RWMutex(past.name, byCall) // each a field of its own
				}
				if how == "the writer is cut off, too" {
					writer = dead
				}
				_, leave, err := past.RWMutex(past.name).Read().Lock(ctx)
				require.NoError(t, err)
				for range many {
					_, _, err := dead.Read().Lock(ctx)
					require.NoError(t, err)
				}
				waits := lockAsync(t, writer.Write())
				redistest.Eventually(t, testTimeout, func() bool { return past.exists(t, "rlock_writers:{"+past.name+"}") }, "it waits")
				past.awaitWaiters(t, 1)
				if how == "the writer is cut off, too" {
					waits = lockAsync(t, waiter.Read())
					past.awaitWaiters(t, 2)
				}
				if how != "fixed leases" {
					proxy.BlackHole(true)
				}
				require.NoError(t, leave())
				got := waits.get(t, brief+2*soon)
				require.NoError(t, got.err)
				require.NoError(t, got.unlock())
				proxy.BlackHole(false)
			})
		}
	}
}

// G4: the last other reader that lives leaves, however many dead ones are there: the reader that upgrades is told.
func TestUpgradeBesideDeadReaders(t *testing.T) {
	redistest.Parallel(t)
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
		_, leave, err := other.Read().Lock(ctx)
		require.NoError(t, err)
		u := b.RWMutex(b.name).Upgradeable()
		section, unlock, err := u.Lock(ctx)
		require.NoError(t, err)
		upgrade := lockAsync(t, upgrading{u, section})
		redistest.Eventually(t, testTimeout, func() bool { return b.exists(t, "rlock_writers:{"+b.name+"}") }, "it waits")
		b.awaitWaiters(t, 1)
		die() // the question of the upgrade has not met them
		require.NoError(t, leave())
		got := upgrade.get(t, soon)
		require.NoError(t, got.err)
		require.NoError(t, got.unlock())
		require.NoError(t, unlock())
	}
	rwNothing(t, b.rdb, b.name)
}

// G5: fields of dead readers do not pile up in a lock that is never written, whether other readers unlock or die.
func TestDeadReadersDoNotPileUp(t *testing.T) {
	redistest.Parallel(t)
	b := newFixture(t)
	ctx := context.Background()
	rw := b.RWMutex(b.name)
	section, leave, err := rw.Read().Lock(ctx) // somebody always reads
	require.NoError(t, err)
	die := func() {
		t.Helper()
		cmd := []string{"HSET", b.name}
		for i := range 2000 {
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
	_, unlock, err := rw.Read().Lock(ctx)
	require.NoError(t, err)
	require.NoError(t, unlock())
	require.EqualValues(t, 2, fields(), "an unlock has met them all, to see whether it is the last")

	_, stay, err := newClient(t, b.rdb).RWMutex(b.name).Read().Lock(ctx)
	require.NoError(t, err)
	die()
	redistest.Eventually(t, testTimeout, func() bool {
		_, unlock, err := rw.Read().Lock(ctx)
		require.NoError(t, err)
		require.NoError(t, unlock())
		return fields() < 30
	}, "each unlock takes out those that it meets")

	die()
	for range 1500 {
		_, _, err := b.RWMutex(b.name, rlock.WithLease(testTimeout)).Read().Lock(ctx)
		require.NoError(t, err)
	}
	require.Less(t, fields(), int64(2000), "1,500 live, and of 2,000 that are dead not many are left")
	require.NoError(t, section.Err())
	require.NoError(t, stay())
	require.NoError(t, leave())
	_, err = rw.Read().ForceUnlock(ctx)
	require.NoError(t, err)
}
