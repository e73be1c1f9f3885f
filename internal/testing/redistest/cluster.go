package redistest

import (
	"strconv"
	"testing"
	"time"

	"github.com/redis/rueidis"
)

const (
	slots = 16384

	// busOffset is the distance from a node's port to its cluster bus port. Redis 6.2 supports only this default.
	busOffset = 10000

	// deployTimeout bounds each wait for the nodes of a deployment to agree.
	deployTimeout = 40 * time.Second
)

// Cluster is a real Redis cluster. Failovers change which nodes are masters; see Owner. Waits treat paused nodes as running, so resume them
// first.
type Cluster struct {
	nodes    []*admin
	replicas int // initial total
}

// StartCluster starts masters that share the slots evenly, each with the same number of replicas. It returns when all nodes agree that the
// cluster is up and the replicas are in sync. With at least three masters, a replica takes over from a dead master within a few seconds.
// The args are appended to each node's command line.
//
// Without replicas nobody takes over, so the nodes wait for each other for 15 s, Redis's default, before they say that the cluster is down: a busy
// machine may let one of them stand still for a second.
func StartCluster(tb testing.TB, masters, replicasPerMaster int, args ...string) *Cluster {
	tb.Helper()
	c := &Cluster{replicas: masters * replicasPerMaster}
	n := masters + c.replicas
	for range n {
		c.nodes = append(c.nodes, newAdmin(tb, start(tb, func(port int) []string {
			all := clusterArgs(port)
			if c.replicas > 0 {
				all = append(all, "--cluster-node-timeout", "1500")
			}
			return append(all, args...)
		})))
	}
	for i, node := range c.nodes {
		node.must(tb, "CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1))
		if i < masters {
			add := []string{"CLUSTER", "ADDSLOTS"} // Redis 6.2 knows no ranges
			for slot := i * slots / masters; slot < (i+1)*slots/masters; slot++ {
				add = append(add, strconv.Itoa(slot))
			}
			node.must(tb, add...)
		}
		// Introduce every pair: gossip alone would take several seconds more.
		for _, other := range c.nodes[:i] {
			node.must(tb, "CLUSTER", "MEET", "127.0.0.1", strconv.Itoa(other.port))
		}
	}
	for _, node := range c.nodes {
		Eventually(tb, deployTimeout, func() bool { return len(settled(node.views())) == n }, "cluster nodes know each other")
	}
	for i, node := range c.nodes[masters:] {
		node.must(tb, "CLUSTER", "REPLICATE", c.nodes[i%masters].must(tb, "CLUSTER", "MYID"))
	}
	c.AwaitOK(tb)
	return c
}

func clusterArgs(port int) []string {
	return append(plainArgs(port),
		"--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf",
		"--cluster-announce-ip", "127.0.0.1",
		// Replicas stay where tests put them, and take over even with stale data.
		"--cluster-allow-replica-migration", "no", "--cluster-replica-validity-factor", "0",
	)
}

// AwaitOK waits until all running nodes agree that the cluster is up and that running nodes serve every slot, and until all running
// replicas are in sync. After a master's death, that means the failover is complete.
func (c *Cluster) AwaitOK(tb testing.TB) {
	tb.Helper()
	running := c.running()
	dead := len(c.nodes) - len(running)
	up := make(map[string]bool)
	for _, node := range running {
		up[node.Addr()] = true
	}
	for _, node := range running {
		Eventually(tb, deployTimeout, func() bool {
			if fields(node.ask("CLUSTER", "INFO"))["cluster_state"] != "ok" {
				return false
			}
			replicas, served := 0, 0
			for _, v := range settled(node.views()) {
				if v.replica() {
					replicas++
				}
				if up[v.addr] {
					served += v.served()
				}
				if v.myself() && v.replica() && !node.synced() {
					return false
				}
			}
			return served == slots && replicas >= c.replicas-dead
		}, "cluster is up")
	}
}

// running returns the nodes with a live process.
func (c *Cluster) running() []*admin {
	var up []*admin
	for _, n := range c.nodes {
		if n.Pid() != 0 {
			up = append(up, n)
		}
	}
	return up
}

// node returns the node at addr.
func (c *Cluster) node(tb testing.TB, addr string) *admin {
	tb.Helper()
	for _, n := range c.nodes {
		if n.Addr() == addr {
			return n
		}
	}
	tb.Fatalf("redistest: %s is no node of the cluster", addr)
	return nil
}

// Nodes returns all nodes. Initially the masters come first, in slot order. The replicas of node i are i+masters, i+2*masters and so on.
func (c *Cluster) Nodes() []*Server { return servers(c.nodes) }

// Addrs returns the addresses of all nodes.
func (c *Cluster) Addrs() []string { return addrs(c.nodes) }

// Client returns a cluster client; the test's clean-up closes it.
func (c *Cluster) Client(tb testing.TB, mod ...func(*rueidis.ClientOption)) rueidis.Client {
	tb.Helper()
	return dial(tb, rueidis.ClientOption{InitAddress: c.Addrs()}, mod)
}

// Slot returns the slot of a key.
func (c *Cluster) Slot(tb testing.TB, key string) uint16 {
	tb.Helper()
	n, err := c.running()[0].do("CLUSTER", "KEYSLOT", key).AsInt64()
	if err != nil {
		tb.Fatal(err)
	}
	return uint16(n)
}

// Owner returns the node that serves a slot, as seen by the first running node. After a failover, call AwaitOK first.
func (c *Cluster) Owner(tb testing.TB, slot uint16) *Server {
	tb.Helper()
	for _, v := range parseViews(c.running()[0].must(tb, "CLUSTER", "NODES")) {
		if v.serves(slot) {
			return c.node(tb, v.addr).Server
		}
	}
	tb.Fatalf("redistest: nobody serves slot %d", slot)
	return nil
}

// MigrateSlot moves a slot and its keys to another master, as resharding does. It returns when all running nodes know the new owner.
func (c *Cluster) MigrateSlot(tb testing.TB, slot uint16, from, to *Server) {
	tb.Helper()
	src, dst, n := c.node(tb, from.Addr()), c.node(tb, to.Addr()), strconv.Itoa(int(slot))
	dstID := beginMove(tb, slot, src, dst)
	for {
		keys, err := src.do("CLUSTER", "GETKEYSINSLOT", n, "100").AsStrSlice()
		if err != nil {
			tb.Fatal(err)
		}
		if len(keys) == 0 {
			break
		}
		moveKeys(tb, src, dst, keys)
	}
	// The new owner comes first, because the old owner redirects to it from then on.
	dst.must(tb, "CLUSTER", "SETSLOT", n, "NODE", dstID)
	src.must(tb, "CLUSTER", "SETSLOT", n, "NODE", dstID)
	c.awaitOwner(tb, slot, to)
}

// BeginMove starts to move a slot, with some of its keys, to another master, and returns both masters. MigrateSlot completes the move.
func (c *Cluster) BeginMove(tb testing.TB, slot uint16, keys ...string) (from, to *Server) {
	tb.Helper()
	from, to = c.Owner(tb, slot), c.nodes[0].Server
	if from == to {
		to = c.nodes[1].Server
	}
	src, dst := c.node(tb, from.Addr()), c.node(tb, to.Addr())
	beginMove(tb, slot, src, dst)
	if len(keys) > 0 {
		moveKeys(tb, src, dst, keys)
	}
	return from, to
}

func beginMove(tb testing.TB, slot uint16, src, dst *admin) (dstID string) {
	tb.Helper()
	n := strconv.Itoa(int(slot))
	dstID = dst.must(tb, "CLUSTER", "MYID")
	dst.must(tb, "CLUSTER", "SETSLOT", n, "IMPORTING", src.must(tb, "CLUSTER", "MYID"))
	src.must(tb, "CLUSTER", "SETSLOT", n, "MIGRATING", dstID)
	return dstID
}

func moveKeys(tb testing.TB, src, dst *admin, keys []string) {
	tb.Helper()
	src.must(tb, append([]string{"MIGRATE", "127.0.0.1", strconv.Itoa(dst.port), "", "0", "5000", "KEYS"}, keys...)...)
}

// MoveSlot makes the servers change the owner of a slot and its keys atomically (Redis 8.4, Valkey 9 and later). It returns when all
// running nodes know the new owner.
func (c *Cluster) MoveSlot(tb testing.TB, slot uint16, from, to *Server) {
	tb.Helper()
	src, dst, n := c.node(tb, from.Addr()), c.node(tb, to.Addr()), strconv.Itoa(int(slot))
	if dst.do("CLUSTER", "MIGRATION", "IMPORT", n, n).Error() != nil { // then it is Valkey
		src.must(tb, "CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", n, n, "NODE", dst.must(tb, "CLUSTER", "MYID"))
	}
	c.awaitOwner(tb, slot, to)
}

// awaitOwner waits until all running nodes know the slot's owner.
func (c *Cluster) awaitOwner(tb testing.TB, slot uint16, owner *Server) {
	tb.Helper()
	for _, node := range c.running() {
		Eventually(tb, deployTimeout, func() bool {
			for _, v := range node.views() {
				if v.serves(slot) {
					return v.addr == owner.Addr()
				}
			}
			return false
		}, "all nodes know the slot's new owner")
	}
}
