package faults

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
)

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
				at := s.awaitSubscriber(t, promptly)
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
			awaitSubscribers(t, atCut, s.name, !s.plain, 0, promptly)
			s.follow(t)
			s.handOver(t)
		})
	}
}
