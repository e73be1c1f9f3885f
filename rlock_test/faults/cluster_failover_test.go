package faults

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// pubSubModes are the two ways to announce unlocks on a cluster.
var pubSubModes = map[string]rlock.Options{
	"sharded": {WatchdogTimeout: longWatchdog},
	"plain":   {WatchdogTimeout: longWatchdog, PlainPubSub: true},
}

// clusterScene is a lock on a cluster, held by one client and waited for by another.
type clusterScene struct {
	*redistest.Cluster
	nodes  map[string]rueidis.Client // by address
	rdb    rueidis.Client            // the holder's
	name   string
	slot   uint16
	plain  bool
	hold   granted
	waiter waiter
	asks   *asks  // the calls of the waiter's client
	at     string // where the waiter was subscribed before the fault
}

// asks is a client that records the outcome of its calls of scripts. Other commands, such as for the nodes of the slots, go side by side.
type asks struct {
	rueidis.Client

	mu      sync.Mutex // guards the following
	open    int        // calls under way
	answers int        // calls answered since look
	err     error      // of the call that returned last
}

func (a *asks) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	if !strings.HasPrefix(cmd.Commands()[0], "EVAL") {
		return a.Client.Do(ctx, cmd)
	}
	a.mu.Lock()
	a.open++
	a.mu.Unlock()
	result := a.Client.Do(ctx, cmd)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.open--
	if a.err = result.Error(); a.err == nil {
		a.answers++
	}
	return result
}

func (a *asks) look() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answers = 0
}

// settled reports whether a call has been sent since look and the last one was answered.
func (a *asks) settled() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.open == 0 && a.err == nil && a.answers > 0
}

func newClusterScene(t *testing.T, c *redistest.Cluster, o rlock.Options, name string) *clusterScene {
	t.Helper()
	s := &clusterScene{
		Cluster: c, nodes: make(map[string]rueidis.Client), rdb: c.Client(t, quickToNotice),
		name: name, slot: c.Slot(t, name), plain: o.PlainPubSub,
	}
	for _, n := range c.Nodes() {
		s.nodes[n.Addr()] = n.Client(t, redistest.Single, quickToNotice)
	}
	s.hold.ctx, s.hold.unlock, s.hold.err = newClient(t, s.rdb, o).Mutex(name).Lock(context.Background())
	require.NoError(t, s.hold.err)
	s.asks = &asks{Client: c.Client(t, quickToNotice)}
	s.waiter = startStubbornLock(newClient(t, s.asks, o).Mutex(name))
	s.awaitSubscriber(t, patience)
	return s
}

// quickToNotice makes clients notice a dead connection within seconds instead of ten.
func quickToNotice(o *rueidis.ClientOption) { o.ConnWriteTimeout = notice }

func (s *clusterScene) owner(t testing.TB) rueidis.Client { return s.nodes[s.Owner(t, s.slot).Addr()] }

// subscribed returns the addresses of the nodes that have the waiter's subscription.
func (s *clusterScene) subscribed(t testing.TB) (at []string) {
	for addr, n := range s.nodes {
		if subscribers(t, n, s.name, !s.plain) > 0 {
			at = append(at, addr)
		}
	}
	return at
}

// awaitSubscriber waits until the waiter is subscribed at exactly one node: the slot's owner if the channel is sharded.
func (s *clusterScene) awaitSubscriber(t testing.TB, within time.Duration) (addr string) {
	t.Helper()
	redistest.Eventually(t, within, func() bool {
		at := s.subscribed(t)
		if len(at) != 1 {
			return false
		}
		addr = at[0]
		return s.plain || addr == s.Owner(t, s.slot).Addr()
	}, "the waiter is subscribed")
	return addr
}

// handOver ends the scene: the unlock wakes the waiter, and nothing is left.
func (s *clusterScene) handOver(t testing.TB) {
	t.Helper()
	require.NoError(t, s.hold.ctx.Err())
	require.Equal(t, map[string]int64{rlock.Owner(s.hold.ctx): 1}, owners(t, s.owner(t), s.name))
	s.waiter.waits(t)
	require.NoError(t, s.hold.unlock())
	require.NoError(t, s.waiter.gets(t, patience, "woken by the unlock").unlock())
	require.False(t, exists(t, s.owner(t), s.name))
	redistest.Eventually(t, patience, func() bool { return len(s.subscribed(t)) == 0 }, "no channel is left")
}

// Fault 4, G2 and G4: the master of the lock's slot is killed, or stopped until it has been replaced, under a holder
// and a waiter. The hold, already replicated, continues at the new master, where the unlock wakes the waiter.
func TestClusterFailoverUnderHolderAndWaiter(t *testing.T) {
	t.Parallel()
	for mode, o := range pubSubModes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			c := redistest.StartCluster(t, 3, 1)
			t.Run("killed", func(t *testing.T) {
				s := newClusterScene(t, c, o, "killed")
				old := s.Owner(t, s.slot)
				s.replicate(t)
				old.Kill()
				s.AwaitOK(t)
				delete(s.nodes, old.Addr())
				s.awaitSubscriber(t, failover)
				s.follow(t)
				// A client that has not noticed looks at the cluster at a random time within a second after each refused
				// command, which may be more often than once: the next test has time for that, this one has not.
				s.findsKey(t, s.asks.Client, "the waiter's client follows")
				s.handOver(t)
				old.Restart()
				s.AwaitOK(t)
			})
			t.Run("paused", func(t *testing.T) {
				s := newClusterScene(t, c, o, "paused")
				old := s.Owner(t, s.slot)
				s.replicate(t)
				old.Pause()
				redistest.Eventually(t, failover, func() bool { return s.Owner(t, s.slot) != old }, "a new master")
				atOld := s.nodes[old.Addr()]
				delete(s.nodes, old.Addr())
				s.awaitSubscriber(t, failover)
				s.follow(t)
				// The message comes at once, but a waiter that was subscribed elsewhere has not noticed the new master
				// yet: its attempt first waits in vain for the old master, and then up to a second for a look at the
				// cluster.
				s.handOver(t)
				old.Resume()
				s.AwaitOK(t)
				awaitSubscribers(t, atOld, s.name, !s.plain, 0, patience)
			})
		})
	}
}

// follow waits until the holder's client follows; an earlier unlock would give up after some
// seconds and continue in the background. It also waits for the waiter's client, if that had to subscribe anew: then it
// tries again, and may need several looks at the cluster to find the node.
func (s *clusterScene) follow(t testing.TB) {
	t.Helper()
	s.findsKey(t, s.rdb, "the holder's client follows")
	redistest.Eventually(t, failover, func() bool {
		at := s.subscribed(t)
		return len(at) == 1 && (at[0] == s.at || s.asks.settled())
	}, "the waiter has asked, and was answered")
}

// findsKey waits until a client finds the lock at the new master.
func (s *clusterScene) findsKey(t testing.TB, rdb rueidis.Client, what string) {
	t.Helper()
	redistest.Eventually(t, failover, func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), notice)
		defer cancel()
		n, err := rdb.Do(ctx, rdb.B().Exists().Key(s.name).Build()).AsInt64()
		return err == nil && n == 1
	}, what)
}

// replicate waits until the replica has the hold, by an acquire that waits for replicas. From then on, asks records
// only commands of the fault that follows.
func (s *clusterScene) replicate(t testing.TB) {
	t.Helper()
	c := newClient(t, s.rdb, rlock.Options{Replicas: 1, ReplicaTimeout: failover, PlainPubSub: s.plain})
	require.NoError(t, c.Mutex("{"+s.name+"}later").Do(context.Background(), func(context.Context) error { return nil }))
	s.asks.look()
	s.at = s.awaitSubscriber(t, patience)
}

// isolate makes a node of the cluster and the other nodes forget each other: it still serves clients, but learns
// nothing more from the cluster. Its slots go to its successor, a replica, if there is one.
func (s *clusterScene) isolate(t testing.TB, addr, successor string) {
	t.Helper()
	for other, n := range s.nodes {
		if other == addr {
			continue
		}
		id, err := do(t, n, "CLUSTER", "MYID").ToString()
		require.NoError(t, err)
		require.NoError(t, do(t, s.nodes[addr], "CLUSTER", "FORGET", id).Error())
	}
	if successor != "" {
		require.NoError(t, do(t, s.nodes[successor], "CLUSTER", "FAILOVER", "TAKEOVER").Error())
		redistest.Eventually(t, failover, func() bool { return s.Owner(t, s.slot).Addr() == successor }, "a new master")
	}
}

// Fault 4, G2 and G4: the node with a waiter's subscription is cut off from the cluster but still serves the waiter.
// Nothing breaks, but no more messages come. The waiter notices at the latest when the holder's remaining lease is
// over, and subscribes elsewhere; from then on messages wake it again. The hold continues at the new master.
func TestClusterNodeCutOffUnderHolderAndWaiter(t *testing.T) {
	t.Parallel()
	for mode, o := range pubSubModes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			c := redistest.StartCluster(t, 3, 1)
			o.WatchdogTimeout = 8 * time.Second
			masters := c.Nodes()[:3]
			// Owner asks the first node, so that one stays in the cluster.
			var s *clusterScene
			var cut, successor string
			for i := 0; cut == ""; i++ {
				name := fmt.Sprint("cut:", i)
				owner := c.Owner(t, c.Slot(t, name))
				if owner == masters[0] {
					continue
				}
				s = newClusterScene(t, c, o, name)
				at := s.awaitSubscriber(t, patience)
				switch {
				case !s.plain:
					cut, successor = at, c.Nodes()[map[bool]int{true: 4, false: 5}[owner == masters[1]]].Addr()
				case at == masters[1].Addr() || at == masters[2].Addr():
					if at != owner.Addr() {
						cut = at
						break
					}
					fallthrough
				default:
					s.handOver(t)
				}
			}
			s.replicate(t)
			s.isolate(t, cut, successor)
			atCut := s.nodes[cut]
			delete(s.nodes, cut)
			s.awaitSubscriber(t, o.WatchdogTimeout+failover)
			awaitSubscribers(t, atCut, s.name, !s.plain, 0, patience)
			s.follow(t)
			s.handOver(t)
		})
	}
}
