package faults

import (
	"context"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// grantLease is the lease of a process that was handed the lock, until it renews or asks.
const grantLease = 2 * time.Second

// awaitPlaced starts a waiter on a new client and waits until rdb sees n processes in the queue.
func awaitPlaced(t *testing.T, rdb, own rueidis.Client, name string, n int) waiter {
	t.Helper()
	w := startStubbornLock(newClient(t, own, rlock.Options{WatchdogTimeout: longWatchdog}).Mutex(name))
	awaitQueued(t, rdb, name, n)
	return w
}

// Fault 4, G1, G2, G4: the master is killed after it has granted the lock to another process, before that process
// renews it. The replicated grant lease ends before there is a new master, and the process's ctx is cancelled in time.
// The next process gets the lock as soon as it follows the new master.
func TestSentinelFailoverBetweenGrantAndRenewal(t *testing.T) {
	t.Parallel()
	s := redistest.StartWatchfulSentinel(t)
	allowApp(t, s.Nodes())
	old, rdb := s.Master(t), s.Client(t, app)
	const name = "granted"
	holder := newClient(t, rdb, rlock.Options{WatchdogTimeout: longWatchdog})
	var got granted
	var second waiter
	for short := false; !short; { // on a loaded machine the first waiter may have waited too long, and ask
		if got.unlock != nil {
			require.NoError(t, got.unlock())
			require.NoError(t, second.gets(t, patience, "granted").unlock())
		}
		_, unlock, err := holder.Mutex(name).Lock(context.Background())
		require.NoError(t, err)
		// The first waiter's renewals reach no node: neither the master, which would get one at once after a long wait,
		// nor the new master, which may be there before the grant lease ends.
		var proxies []*redistest.Proxy
		for _, n := range s.Nodes() {
			proxy := redistest.StartProxy(t, n.Addr())
			proxy.OnRequest(func(cmd []string) redistest.Action {
				if c, ok := parseHistScript(cmd); ok && c.what == "renew" {
					return redistest.Hold
				}
				return redistest.Pass
			})
			proxies = append(proxies, proxy)
		}
		first := awaitPlaced(t, rdb, s.Client(t, app, redistest.Via(proxies...)), name, 1)
		second = awaitPlaced(t, rdb, s.Client(t, app), name, 2)
		replicated(t, rdb, "2")
		require.NoError(t, unlock())
		got = first.gets(t, patience, "granted")
		left, err := do(t, rdb, "PTTL", name).AsInt64()
		require.NoError(t, err)
		short = left <= grantLease.Milliseconds()
	}
	old.Kill()
	killed := time.Now()
	lostBy(t, got.ctx, killed.Add(grantLease))
	require.ErrorIs(t, context.Cause(got.ctx), rlock.ErrLost)
	follows(t, rdb, old)
	next := second.gets(t, patience, "at the new master")
	require.GreaterOrEqual(t, next.at, got.at)
	require.Equal(t, map[string]int64{rlock.Owner(next.ctx): 1}, owners(t, rdb, name))
	require.ErrorIs(t, got.unlock(), rlock.ErrLost)
	require.NoError(t, next.ctx.Err())
	require.NoError(t, next.unlock())
	redistest.Eventually(t, failover, func() bool {
		n, err := do(t, rdb, "EXISTS", name, queueOf(name)).AsInt64()
		return err == nil && n == 0
	}, "no key and no place in the queue may be left")
	awaitSubscribers(t, rdb, name, false, 0, patience)
}

// Fault 4, G1, G2, G4: a lock's slot moves after a hand-over to another process, before that process renews the lock.
// The hold is renewed at the new node. The queue moves along, or its members ask again, and all get their turns.
func TestSlotMovesBetweenGrantAndRenewal(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 0)
	const name = "granted"
	slot, rdb := c.Slot(t, name), c.Client(t)
	_, unlock, err := newClient(t, rdb, rlock.Options{WatchdogTimeout: longWatchdog}).Mutex(name).Lock(context.Background())
	require.NoError(t, err)
	var line []waiter
	for i := range 3 {
		line = append(line, awaitPlaced(t, rdb, c.Client(t), name, i+1))
	}
	for i := range line {
		require.NoError(t, unlock())
		var got granted
		redistest.Eventually(t, grantLease+patience, func() bool {
			for _, w := range line { // a waiter that asks again may lose its place to the next one
				if len(w) > 0 {
					got = <-w
					return true
				}
			}
			return false
		}, "granted")
		require.NoError(t, got.err)
		from, to := c.Owner(t, slot), c.Nodes()[0]
		if from == to {
			to = c.Nodes()[1]
		}
		c.MigrateSlot(t, slot, from, to)
		redistest.Eventually(t, patience, func() bool {
			left, err := do(t, rdb, "PTTL", name).AsInt64()
			return err == nil && left > grantLease.Milliseconds()
		}, "renewed at the new node")
		require.NoError(t, got.ctx.Err())
		require.Equal(t, map[string]int64{rlock.Owner(got.ctx): 1}, owners(t, rdb, name))
		node := to.Client(t, redistest.Single)
		redistest.Eventually(t, patience, func() bool { return subscribers(t, node, name, true) >= len(line)-1-i }, "the others follow")
		unlock = got.unlock
	}
	require.NoError(t, unlock())
	n, err := do(t, rdb, "EXISTS", name, queueOf(name)).AsInt64()
	require.NoError(t, err)
	require.Zero(t, n)
}

// Fault 4, G1, G4, G6: an unlock removes the last place in the queue, and so its key, while the slot migrates and the
// keys are still at the old node. In the middle of the release, Redis would redirect commands on the missing key to
// the new node. The unlock returns nil, and the next process gets the lock.
func TestUnlockEmptiesTheQueueWhileTheSlotMoves(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 0)
	for _, dead := range []int{0, 1} {
		t.Run(map[int]string{0: "granted", 1: "nobody listens"}[dead], func(t *testing.T) {
			name := "emptied:" + map[int]string{0: "granted", 1: "dead"}[dead]
			slot, rdb := c.Slot(t, name), c.Client(t)
			_, unlock, err := newClient(t, rdb, rlock.Options{WatchdogTimeout: longWatchdog}).Mutex(name).Lock(context.Background())
			require.NoError(t, err)
			var next waiter
			if dead == 0 {
				next = awaitPlaced(t, rdb, c.Client(t), name, 1)
			} else {
				require.NoError(t, do(t, rdb, "ZADD", queueOf(name), "1", "00000000-0000-4000-8000-000000000000:1").Error())
				require.NoError(t, do(t, rdb, "PEXPIRE", queueOf(name), "20000").Error())
			}
			from, to := c.BeginMove(t, slot)
			unlocked := call(unlock)
			// A release that cannot succeed in this state does so after the migration.
			select {
			case err = <-unlocked:
				require.NoError(t, err)
				c.MigrateSlot(t, slot, from, to)
			case <-time.After(notice / 2):
				c.MigrateSlot(t, slot, from, to)
				require.NoError(t, returned(t, unlocked, patience))
			}
			if next != nil {
				got := next.gets(t, grantLease+patience, "granted")
				require.Equal(t, map[string]int64{rlock.Owner(got.ctx): 1}, owners(t, rdb, name))
				require.NoError(t, got.unlock())
			}
			n, err := do(t, rdb, "EXISTS", name, queueOf(name)).AsInt64()
			require.NoError(t, err)
			require.Zero(t, n)
		})
	}
}
