package pubsub

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
)

func shardedChannels(t *testing.T, mod func(*rueidis.ClientOption)) {
	cluster := redistest.StartCluster(t, 3, 0)
	s := newSite(t, cluster.Client(t, mod), cluster.Client(t))
	queues := s.parkQueues(30, true)
	require.Equal(t, 3, s.hub.linkCount(), "one link a node")
	require.Len(t, s.channels(true), 2*30)
	for ch, ws := range queues {
		s.publish(ch, "0")
		awaitTurn(t, ws[0], soon)
		ws[0].Leave()
		awaitTurn(t, ws[1], soon)
		ws[1].Leave()
	}
	redistest.Eventually(t, recovery, func() bool { return s.hub.isEmpty() }, "no topic is left")

	churn(s, 2000, true)
	redistest.Eventually(t, recovery, func() bool { return s.hub.isEmpty() }, "no topic is left")
	redistest.Eventually(t, recovery, func() bool { return len(s.channels(true)) == 0 }, "no channel is left")
	s.hub.Close()
}

// Before Redis 7 there are no sharded channels, so any node will do.
func TestPlainChannelsOnACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0)
	s := newSite(t, cluster.Client(t), cluster.Client(t))
	queues := s.parkQueues(5, false)
	for _, node := range cluster.Nodes() {
		c := node.Client(t, redistest.Single)
		require.NoError(t, c.Do(t.Context(), c.B().ClientKill().TypePubsub().Build()).Error())
	}
	s.afterOutage(queues)
}

// A slot moves to a node unknown to the client. The client learns of it from the next command for the slot, so the waiters must send one.
func TestSlotMovesToANewNode(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0)
	s := newSite(t, cluster.Client(t), cluster.Client(t))
	ch := Channel{Name: redistest.Name(t), Sharded: true}
	ws := s.park(ch, 2)

	slot := cluster.Slot(t, ch.Name)
	node := redistest.Start(t, "--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf", "--cluster-announce-ip", "127.0.0.1")
	newcomer, owner := node.Client(t, redistest.Single), cluster.Owner(t, slot).Client(t, redistest.Single)
	host, port, err := net.SplitHostPort(node.Addr())
	require.NoError(t, err)
	await := func(c rueidis.Client, cmd ...string) (answer string) {
		t.Helper()
		redistest.Eventually(t, recovery, func() bool {
			var err error
			answer, err = s.ask(c, cmd...).ToString()
			return err == nil
		}, strings.Join(cmd, " "))
		return answer
	}
	await(owner, "CLUSTER", "MEET", host, port)
	from, to := await(owner, "CLUSTER", "MYID"), await(newcomer, "CLUSTER", "MYID")
	redistest.Eventually(t, recovery, func() bool { // a node that has not learned of the epoch would lose the slot again
		info, err := s.ask(newcomer, "CLUSTER", "INFO").ToString()
		return err == nil && strings.Contains(info, "cluster_known_nodes:4") && strings.Contains(info, "cluster_current_epoch:3")
	}, "the newcomer knows all")
	n := strconv.Itoa(int(slot))
	await(newcomer, "CLUSTER", "SETSLOT", n, "IMPORTING", from)
	await(owner, "CLUSTER", "SETSLOT", n, "MIGRATING", to)
	await(newcomer, "CLUSTER", "SETSLOT", n, "NODE", to)
	await(owner, "CLUSTER", "SETSLOT", n, "NODE", to)

	awaitTurn(t, ws[0], recovery)
	// To the client, this is the attempt to lock: a command with a key of the slot. Only then does it learn of the node, unless it asks one
	// that has not heard of it: then the waiter has another turn.
	require.NotContains(t, s.hub.conns.rdb.Nodes(), node.Addr())
	try := func() {
		require.NoError(t, s.ask(s.hub.conns.rdb, "EXISTS", ch.Name).Error())
		ws[0].Held(-1, false)
	}
	try()
	redistest.Eventually(t, recovery, func() bool {
		n, err := newcomer.Do(t.Context(), newcomer.B().PubsubShardnumsub().Channel(ch.Name).Build()).AsIntMap()
		if err == nil && n[ch.Name] == 1 {
			return true
		}
		select {
		case <-ws[0].Turn():
			try()
		default:
		}
		return false
	}, "subscribed at the new node")
	awaitTurn(t, ws[0], recovery)
	leave(ws...)
	redistest.Eventually(t, recovery, func() bool { return s.hub.isEmpty() }, "no topic is left")
}

// ask sends a command whose first argument is a key, unless its name has two words.
func (s site) ask(c rueidis.Client, cmd ...string) rueidis.RedisResult {
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	if cmd[0] == "EXISTS" {
		return c.Do(ctx, c.B().Exists().Key(cmd[1:]...).Build())
	}
	return c.Do(ctx, c.B().Arbitrary(cmd...).Build())
}

// A user without the right to query routes, or to a sharded channel, cannot wait there, and gets an error.
func TestForbiddenOnACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0)
	for _, node := range cluster.Nodes() {
		setUser(t, node.Client(t, redistest.Single), "allkeys", "allchannels", "+@all")
	}
	s := newSite(t, cluster.Client(t, asTester), cluster.Client(t))
	for _, node := range cluster.Nodes() {
		setUser(t, node.Client(t, redistest.Single), "-cluster|slots")
	}
	ch := Channel{Name: redistest.Name(t), Sharded: true}
	a, late := &Waiter{}, &Waiter{}
	require.True(t, s.hub.Join(a, queue(ch)))
	a.Held(-1, false)
	awaitRefusal(t, a, ch.Name, "NOPERM")
	require.True(t, s.hub.Join(late, queue(ch)))
	leave(a, late)
	require.True(t, s.hub.isEmpty())
	for _, node := range cluster.Nodes() {
		setUser(t, node.Client(t, redistest.Single), "+cluster|slots")
	}
	s.leaveAll(ch, s.park(ch, 2))

	for _, node := range cluster.Nodes() {
		setUser(t, node.Client(t, redistest.Single), "resetchannels", "&"+ch.Name+"*")
	}
	w := s.waits(Channel{Name: "shut", Sharded: true})
	awaitRefusal(t, w, `"shut"`, "NOPERM")
	w.Leave()
}

func TestReadsOneRangeOfSlots(t *testing.T) {
	t.Parallel()
	s := sharedSite(t)
	for reply, want := range map[string]string{
		`{0, 16383, {'10.0.0.1', 7000, 'id'}, {'10.0.0.2', 7001, 'id'}}`: "10.0.0.1:7000 0 16383",
		`{5, 5, {'::1', 7000}}`: "[::1]:7000 5 5",
		`{5, 6, {'', 7000}}`:    "127.0.0.1:7000 5 6", // the node that was asked

		`'text'`: "", `{0, 1}`: "", `{'a', 1, {'h', 1}}`: "", `{0, 'a', {'h', 1}}`: "", `{-1, 1, {'h', 1}}`: "",
		`{0, 16384, {'h', 1}}`: "", `{0, 1, 'h'}`: "", `{0, 1, {'h'}}`: "", `{0, 1, {'h', 'a'}}`: "",
	} {
		msg, err := s.do(s.rdb.B().Eval().Script("return " + reply).Numkeys(0).Build()).ToMessage()
		require.NoError(t, err)
		addr, first, last, err := s.hub.conns.parseRange(msg)
		if want == "" {
			require.ErrorIs(t, err, errBadSlots, reply)
			continue
		}
		require.NoError(t, err, reply)
		require.Equal(t, want, fmt.Sprint(addr, " ", first, " ", last))
	}
}

// While a cluster is down its answers are useless. The waiters continue when it is back.
func TestClusterRoutesUnknownForAWhile(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0)
	var proxies []*redistest.Proxy
	for _, node := range cluster.Nodes() {
		p := redistest.StartProxy(t, node.Addr())
		proxies = append(proxies, p)
	}
	s := newSite(t, cluster.Client(t, redistest.Via(proxies...)), cluster.Client(t))
	for _, p := range proxies {
		p.OnRequest(redistest.Nth(1, "CLUSTER SLOTS", redistest.Fail("LOADING wait")))
		p.OnRequest(redistest.Nth(2, "CLUSTER SLOTS", redistest.Fail("CLUSTERDOWN wait")))
	}
	ch := Channel{Name: redistest.Name(t), Sharded: true}
	s.leaveAll(ch, s.park(ch, 2))
}

// A node that hangs keeps nobody from subscribing at another one: each process learns its routes from a node that answers.
func TestRoutesBesideANodeThatHangs(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0)
	var proxies []*redistest.Proxy
	for _, node := range cluster.Nodes() {
		proxies = append(proxies, redistest.StartProxy(t, node.Addr()))
	}
	rdb, test := cluster.Client(t, redistest.Via(proxies...)), cluster.Client(t)
	for _, node := range rdb.Nodes() { // connect
		require.NoError(t, node.Do(t.Context(), node.B().Ping().Build()).Error())
	}
	hung := cluster.Nodes()[0]
	var ch Channel
	for i := 0; ch.Name == "" || cluster.Owner(t, cluster.Slot(t, ch.Name)) == hung; i++ {
		ch = Channel{Name: fmt.Sprint(redistest.Name(t), i), Sharded: true}
	}
	proxies[0].BlackHole(true)
	for range 10 {
		s := newSite(t, rdb, test)
		w, began := s.waits(ch), time.Now()
		s.awaitLive(w)
		require.Less(t, redistest.Ran(t, began, time.Now()), 5*time.Second)
		w.Leave()
	}
	proxies[0].BlackHole(false)
}
