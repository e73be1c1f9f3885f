package faults

import (
	"context"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// awaitPlaced starts a waiter of a client of its own and waits until so many processes are in the queue, as rdb sees it.
func awaitPlaced(t *testing.T, rdb, own rueidis.Client, name string, n int) waiter {
	t.Helper()
	w := startStubbornLock(newClient(t, own, rlock.Options{WatchdogTimeout: longWatchdog}).Mutex(name))
	awaitQueued(t, rdb, name, n)
	return w
}

// Fault 4, G1, G2, G4: the master is killed when it has given the lock to another process, and before that has renewed it. The grant, which
// the replicas have, is over before there is a new master: the process is told. The next one gets the lock from the new master, as soon
// as it follows.
func TestSentinelFailoverBetweenGrantAndRenewal(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinel(t)
	allowApp(t, s.Nodes())
	old, rdb := s.Master(t), s.Client(t, app)
	const name = "granted"
	holder := newClient(t, rdb, rlock.Options{WatchdogTimeout: longWatchdog})
	var got granted
	var second waiter
	for short := false; !short; { // on a loaded machine the first one may have waited for too long, and ask
		if got.unlock != nil {
			require.NoError(t, got.unlock())
			require.NoError(t, second.gets(t, promptly, "granted").unlock())
		}
		_, unlock, err := holder.Mutex(name).Lock(context.Background())
		require.NoError(t, err)
		// Renewals of the first one reach no node: not the master, where the next would come at once if it had waited for long, and
		// not the new one, which may be there before the grant is over.
		var proxies []*redistest.Proxy
		for _, n := range s.Nodes() {
			proxy := redistest.StartProxy(t, n.Addr())
			proxy.OnRequest(every(isRenewal, redistest.Hold))
			proxies = append(proxies, proxy)
		}
		first := awaitPlaced(t, rdb, s.Client(t, app, redistest.Via(proxies...)), name, 1)
		second = awaitPlaced(t, rdb, s.Client(t, app), name, 2)
		replicated(t, rdb, "2")
		require.NoError(t, unlock())
		got = first.gets(t, promptly, "granted")
		left, err := do(t, rdb, "PTTL", name).AsInt64()
		require.NoError(t, err)
		short = left <= grantLease.Milliseconds()
	}
	old.Kill()
	killed := time.Now()
	told := cancellationOf(got.ctx)
	told.by(t, killed.Add(grantLease), tellSlack)
	require.ErrorIs(t, context.Cause(got.ctx), rlock.ErrLost)
	follows(t, rdb, old)
	next := second.gets(t, time.Second+2*promptly, "at the new master")
	require.GreaterOrEqual(t, next.at, got.at)
	require.Equal(t, map[string]int64{rlock.Owner(next.ctx): 1}, owners(t, rdb, name))
	require.ErrorIs(t, got.unlock(), rlock.ErrLost)
	require.NoError(t, next.ctx.Err())
	require.NoError(t, next.unlock())
	redistest.Eventually(t, failover, func() bool {
		n, err := do(t, rdb, "EXISTS", name, queueOf(name)).AsInt64()
		return err == nil && n == 0
	}, "no key, no place in the queue")
	awaitSubscribers(t, rdb, name, false, 0, promptly)
}

// Fault 4, G1, G2, G4: the slot of a lock moves when the lock was given to another process, and before that has renewed it. The hold is
// renewed at the new node; the queue moves along, or who is in it asks again, and all have their turns.
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
		redistest.Eventually(t, grantLease+promptly, func() bool {
			for _, w := range line { // who has to ask again may lose its place to the one behind it
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
		redistest.Eventually(t, grantLease, func() bool {
			left, err := do(t, rdb, "PTTL", name).AsInt64()
			return err == nil && left > grantLease.Milliseconds()
		}, "renewed at the new node")
		require.NoError(t, got.ctx.Err())
		require.Equal(t, map[string]int64{rlock.Owner(got.ctx): 1}, owners(t, rdb, name))
		node := to.Client(t, redistest.Single)
		redistest.Eventually(t, promptly, func() bool { return subscribers(t, node, name, true) >= len(line)-1-i }, "they follow")
		unlock = got.unlock
	}
	require.NoError(t, unlock())
	n, err := do(t, rdb, "EXISTS", name, queueOf(name)).AsInt64()
	require.NoError(t, err)
	require.Zero(t, n)
}

// Fault 4, G1, G4, G6: a lock is unlocked while its slot is being migrated and its keys are still where they were. The last place
// in the queue goes with that, and with it the key, so that Redis would send whoever asks for the queue to the other node: in the middle of
// the release. The unlock says that all is well, and the next process has the lock.
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
			// Whatever the release cannot do in this state it does when the migration is over.
			select {
			case err = <-unlocked:
				require.NoError(t, err)
				c.MigrateSlot(t, slot, from, to)
			case <-time.After(promptly / 2):
				c.MigrateSlot(t, slot, from, to)
				require.NoError(t, returned(t, unlocked, promptly))
			}
			if next != nil {
				got := next.gets(t, grantLease+promptly, "given to it")
				require.Equal(t, map[string]int64{rlock.Owner(got.ctx): 1}, owners(t, rdb, name))
				require.NoError(t, got.unlock())
			}
			n, err := do(t, rdb, "EXISTS", name, queueOf(name)).AsInt64()
			require.NoError(t, err)
			require.Zero(t, n)
		})
	}
}
