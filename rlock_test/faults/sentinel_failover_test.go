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

const (
	// failover bounds the time from a master's death until clients follow its successor, on a loaded machine. Leases
	// that must survive it are longer.
	failover     = 15 * time.Second
	longWatchdog = 2 * failover
	// notice is how long a node may be silent until its clients think that it is gone.
	notice = 2 * time.Second
)

// app selects a user for the lock clients, so that tests can lock out the default user, which sentinels and
// replicas have. Its connections detect a silent node within seconds.
func app(o *rueidis.ClientOption) {
	o.Username, o.Password = "app", "secret"
	o.ConnWriteTimeout = notice
}

func allowApp(t testing.TB, nodes []*redistest.Server) {
	t.Helper()
	for _, n := range nodes {
		require.NoError(t, do(t, n.Client(t, redistest.Single), "ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all").Error())
	}
}

// cutOff separates a master from its sentinels and replicas, while the app still reaches it.
func cutOff(t testing.TB, master rueidis.Client) {
	t.Helper()
	require.NoError(t, do(t, master, "ACL", "SETUSER", "default", "-@all").Error())
	_ = do(t, master, "CLIENT", "KILL", "USER", "default") // replies with the number of connections killed
	redistest.Eventually(t, patience, func() bool {
		info, err := do(t, master, "ROLE").ToArray()
		if err != nil || len(info) != 3 {
			return false
		}
		replicas, err := info[2].ToArray()
		return err == nil && len(replicas) == 0
	}, "no replica is connected")
}

// follows waits until the client has switched to another master.
func follows(t testing.TB, rdb rueidis.Client, old *redistest.Server) (master string) {
	t.Helper()
	redistest.Eventually(t, failover, func() bool {
		for master = range rdb.Nodes() {
			if master == old.Addr() {
				return false
			}
		}
		return true
	}, "the client follows the new master")
	return master
}

// replicated waits until the replicas of rdb's master have all earlier writes.
func replicated(t testing.TB, rdb rueidis.Client, replicas string) {
	t.Helper()
	redistest.Eventually(t, failover, func() bool {
		n, err := do(t, rdb, "WAIT", replicas, "100").AsInt64()
		return err == nil && n >= 1
	}, "the replicas have it")
}

// Fault 4, G2 and G4: the master is killed, or cut off from its sentinels and replicas but still reachable for
// clients, with a holder and a waiter. The replicated hold continues at the new master. The waiter moves there,
// receives the unlock, and leaves no subscription at the old master. A hold that only the old master has is
// lost, and its holder's ctx is cancelled.
func TestSentinelFailoverUnderHolderAndWaiter(t *testing.T) {
	t.Parallel()
	for _, cut := range []bool{false, true} {
		t.Run(map[bool]string{false: "killed", true: "cut off"}[cut], func(t *testing.T) {
			t.Parallel()
			s := redistest.StartWatchfulSentinel(t)
			allowApp(t, s.Nodes())
			old := s.Master(t)
			atOld := old.Client(t, app)
			holder, waiting := s.Client(t, app), s.Client(t, app)
			ctx, unlock, err := newClient(t, holder, rlock.Options{WatchdogTimeout: longWatchdog}).
				Mutex("kept").Lock(context.Background())
			require.NoError(t, err)
			w := startLock(context.Background(), newClient(t, waiting, rlock.Options{}).Mutex("kept"))
			awaitSubscribers(t, atOld, "kept", false, 1, patience)
			replicated(t, holder, "2")

			var lost granted
			if cut {
				cutOff(t, atOld)
				lost.ctx, lost.unlock, err = newClient(t, holder, rlock.Options{WatchdogTimeout: longWatchdog / 3}).
					Mutex("lost").Lock(context.Background())
				require.NoError(t, err, "granted by the old master alone")
			} else {
				old.Kill()
			}
			follows(t, holder, old)
			addr := follows(t, waiting, old)
			followed := time.Now()
			atNew := redistest.Dial(t, addr, app, redistest.Single)
			// Waiters look for a new master once a second, and then have to connect.
			awaitSubscribers(t, atNew, "kept", false, 1, patience)
			if cut {
				awaitSubscribers(t, atOld, "kept", false, 0, patience)
				// docs/guarantees.md: the next renewal finds the loss.
				ended(t, lost.ctx, longWatchdog)
				require.Less(t, redistest.Ran(t, followed, time.Now()), longWatchdog/3/3+notice)
				require.ErrorIs(t, lost.unlock(), rlock.ErrNotHeld)
			}

			require.NoError(t, ctx.Err())
			require.Equal(t, map[string]int64{rlock.Owner(ctx): 1}, owners(t, atNew, "kept"))
			w.waits(t)
			require.NoError(t, unlock())
			require.NoError(t, w.gets(t, patience, "woken by the new master").unlock())
			require.False(t, exists(t, atNew, "kept"))
			awaitSubscribers(t, atNew, "kept", false, 0, patience)

			if cut { // the old master comes back as a replica
				require.NoError(t, do(t, atOld, "ACL", "SETUSER", "default", "+@all").Error())
			}
		})
	}
}

// Fault 4, G2 where Redis forgets: the master dies with a hold that no replica has. Another client gets the lock
// from the new master, and the first holder's next renewal cancels its ctx (docs/guarantees.md).
func TestSentinelFailoverForgetsAHold(t *testing.T) {
	t.Parallel()
	s := redistest.StartWatchfulSentinel(t)
	const watchdog = 9 * time.Second
	allowApp(t, s.Nodes())
	first, second := s.Client(t, app), s.Client(t, app)
	old := s.Master(t)
	cutOff(t, old.Client(t, app)) // stopped replicas would still read the hold from their sockets
	ctx, unlock, err := newClient(t, first, rlock.Options{WatchdogTimeout: watchdog}).Mutex("m").Lock(context.Background())
	require.NoError(t, err)
	locked := time.Now()
	old.Kill()
	follows(t, second, old)
	follows(t, first, old)
	followed := time.Now()
	ctx2, unlock2, err := newClient(t, second, rlock.Options{}).Mutex("m").TryLock(context.Background(), patience)
	require.NoError(t, err)
	ended(t, ctx, watchdog+patience)
	told := time.Now()
	require.True(t, redistest.Ran(t, followed, told) < watchdog/3+notice && redistest.Ran(t, locked, told) < watchdog+watchdog/3+notice,
		"cancelled %v after the failover, %v after the grant", told.Sub(followed), told.Sub(locked))
	require.ErrorIs(t, unlock(), rlock.ErrNotHeld)
	require.NoError(t, ctx2.Err())
	require.Equal(t, map[string]int64{rlock.Owner(ctx2): 1}, owners(t, second, "m"))
	require.NoError(t, unlock2())
}
