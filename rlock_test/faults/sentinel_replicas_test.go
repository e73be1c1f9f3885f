package faults

import (
	"context"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// Fault 4, Options.Replicas and G1: the master is killed at a random moment around its reply to WAIT, while
// none, one or both of its replicas are stopped. WAIT only promises that one replica has the hold, so the test
// promotes the furthest replica, as sentinels and clusters do. Every granted Lock is found there; with both
// replicas stopped, no Lock is granted.
func TestMasterKilledRightAfterAReplicatedGrant(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(faultsSeed(t), 0))
	nodes := []*redistest.Server{redistest.Start(t), redistest.Start(t), redistest.Start(t)} // the master first
	admin := func(n *redistest.Server) rueidis.Client { return n.Client(t, redistest.Single, quickToNotice) }
	granted, refused := 0, 0
	for round := range 20 {
		master, replicas := nodes[0], nodes[1:]
		for _, n := range replicas {
			if n.Pid() == 0 {
				n.Restart()
			}
			host, port := "127.0.0.1", master.Addr()[len("127.0.0.1:"):]
			require.NoError(t, do(t, admin(n), "REPLICAOF", host, port).Error())
		}
		redistest.Eventually(t, failover, func() bool {
			n, err := do(t, admin(master), "WAIT", "2", "100").AsInt64()
			return err == nil && n == 2
		}, "both replicas are in step")
		stopped := rng.IntN(4) // one bit per replica
		for i, n := range replicas {
			if stopped>>i&1 == 1 {
				n.Pause()
			}
		}

		name := "round:" + strconv.Itoa(round)
		answered := make(chan struct{}, 1)
		proxy := redistest.StartProxy(t, master.Addr())
		proxy.OnReply(func(cmd []string) redistest.Action {
			if cmd[0] == "WAIT" {
				answered <- struct{}{}
			}
			return redistest.Pass
		})
		c, err := rlock.New(redistest.Dial(t, proxy.Addr(), redistest.Single), rlock.Options{
			Replicas: 1, ReplicaTimeout: 200 * time.Millisecond,
		})
		require.NoError(t, err)
		killed, returned := make(chan struct{}), make(chan struct{})
		delay := time.Duration(rng.Int64N(int64(2 * time.Millisecond)))
		go func() { // ends with the reply to WAIT, at its timeout at the latest, or with the Lock
			defer close(killed)
			select {
			case <-answered:
				<-time.After(delay)
			case <-returned: // without WAIT: on a busy machine Lock got no dedicated connection in time
			}
			master.Kill()
		}()
		ctx, _, err := c.Mutex(name).TryLock(context.Background(), time.Second)
		close(returned)
		<-killed
		for _, n := range replicas {
			n.Resume()
		}
		next := furthest(t, replicas, admin)
		require.NoError(t, do(t, admin(next), "REPLICAOF", "NO", "ONE").Error())
		if err == nil {
			granted++
			require.Equal(t, map[string]int64{rlock.Owner(ctx): 1}, owners(t, admin(next), name), "granted, so there")
			require.NotEqual(t, 3, stopped, "no replica could confirm")
		} else {
			refused++
			t.Logf("round %d, stopped %b: %v", round, stopped, err)
		}
		c.Close()
		if next == nodes[2] {
			nodes[1], nodes[2] = nodes[2], nodes[1]
		}
		nodes[0], nodes[1] = nodes[1], nodes[0] // next is the master, the dead one a replica
	}
	t.Logf("%d granted, %d refused", granted, refused)
	require.Positive(t, granted)
	require.Positive(t, refused)
}

// furthest returns the replica with most of the dead master's writes, after both have read what was in flight.
func furthest(t testing.TB, replicas []*redistest.Server, admin func(*redistest.Server) rueidis.Client) *redistest.Server {
	t.Helper()
	var offsets [2]int64
	for i, n := range replicas {
		redistest.Eventually(t, failover, func() bool {
			info, err := do(t, admin(n), "INFO", "replication").ToString()
			_, offset, _ := strings.Cut(info, "slave_repl_offset:")
			offset, _, _ = strings.Cut(offset, "\r")
			if err == nil {
				offsets[i], err = strconv.ParseInt(offset, 10, 64)
			}
			return err == nil && strings.Contains(info, "master_link_status:down")
		}, "the replica has noticed")
	}
	if offsets[1] > offsets[0] {
		return replicas[1]
	}
	return replicas[0]
}

// Fault 4, Options.Replicas and G5: a stopped replica does not count. With Replicas at 2 the hold is refused and
// given back; with 1 it is granted.
func TestReplicaPausedDuringAcquire(t *testing.T) {
	t.Parallel()
	s := redistest.StartWatchfulSentinel(t)
	rdb := s.Client(t)
	replicated(t, rdb, "2")
	s.Nodes()[2].Pause()
	defer s.Nodes()[2].Resume()
	two := newClient(t, rdb, rlock.Options{Replicas: 2, ReplicaTimeout: 300 * time.Millisecond})
	_, unlock, err := two.Mutex("m").Lock(context.Background())
	require.ErrorIs(t, err, rlock.ErrNotReplicated)
	require.ErrorIs(t, unlock(), rlock.ErrNotHeld)
	require.False(t, exists(t, rdb, "m"))
	one := newClient(t, rdb, rlock.Options{Replicas: 1, ReplicaTimeout: failover})
	require.NoError(t, one.Mutex("m").Do(context.Background(), func(ctx context.Context) error {
		require.Equal(t, map[string]int64{rlock.Owner(ctx): 1}, owners(t, s.Nodes()[1].Client(t), "m"))
		return nil
	}))
}
