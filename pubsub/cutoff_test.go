package pubsub

import (
	"strconv"
	"strings"
	"testing"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
)

// loner is a cluster node made to believe that it is cut off. It forgets the owner of one slot that no test uses, and the other nodes do
// not notice.
type loner struct {
	t    *testing.T
	rdb  rueidis.Client
	slot string
}

func newLoner(t *testing.T, cluster *redistest.Cluster, node *redistest.Server, used Channel) loner {
	t.Helper()
	n := loner{t: t, rdb: node.Client(t, redistest.Single)}
	// Step through the slots: the node's own may begin thousands further on, and each look is a command.
	for slot := uint16(0); n.slot == ""; slot += 1024 {
		if cluster.Owner(t, slot) == node && slot != cluster.Slot(t, used.Name) {
			n.slot = strconv.Itoa(int(slot))
		}
	}
	return n
}

func (n loner) do(cmd ...string) rueidis.RedisResult {
	return n.rdb.Do(n.t.Context(), n.rdb.B().Arbitrary(cmd...).Build())
}

func (n loner) becomes(state, verb string) {
	n.t.Helper()
	require.NoError(n.t, n.do("CLUSTER", verb, n.slot).Error())
	redistest.Eventually(n.t, recovery, func() bool {
		info, err := n.do("CLUSTER", "INFO").ToString()
		return err == nil && strings.Contains(info, "cluster_state:"+state)
	}, "the node's state is "+state)
}

func (n loner) cutOff() { n.t.Helper(); n.becomes("fail", "DELSLOTS") }
func (n loner) joins()  { n.t.Helper(); n.becomes("ok", "ADDSLOTS") }

func (n loner) subscribers(ch Channel) int64 {
	n.t.Helper()
	what := map[bool]string{false: "NUMSUB", true: "SHARDNUMSUB"}[ch.Sharded]
	reply, err := n.do("PUBSUB", what, ch.Name).AsIntMap()
	require.NoError(n.t, err)
	return reply[ch.Name]
}

// The possible replies of a node asked whether it is connected to its cluster. Without a reply it counts as connected. A node outside a
// cluster is not asked.
func TestInTouch(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0)
	node := cluster.Nodes()[1]
	n := newLoner(t, cluster, node, Channel{})
	l := &link{conns: newSite(t, cluster.Client(t), cluster.Client(t)).hub.conns}
	ask := func(rdb rueidis.Client) error {
		conn, release := rdb.Dedicate()
		defer release()
		return l.inTouch(conn)
	}
	proxy := redistest.StartProxy(t, node.Addr())
	broken := redistest.Dial(t, proxy.Addr(), redistest.Single)
	proxy.OnRequest(redistest.Each("CLUSTER INFO", redistest.Cut))
	setUser(t, n.rdb, "+@all", "-cluster")
	forbidden := node.Client(t, redistest.Single, asTester)

	require.NoError(t, ask(n.rdb))
	require.Error(t, ask(broken))
	n.cutOff()
	require.ErrorIs(t, ask(n.rdb), errCutOff)
	require.NoError(t, ask(forbidden))
	err := ask(broken)
	require.Error(t, err)
	require.NotErrorIs(t, err, errCutOff)
	n.joins()
	require.NoError(t, ask(n.rdb))

	server := redistest.Start(t)
	alone := newSite(t, server.Client(t), server.Client(t))
	l = &link{conns: alone.hub.conns}
	require.NoError(t, ask(alone.rdb))
	require.NotContains(t, redistest.Commands(t, alone.rdb), "cluster|info")
}

// A node is asked only when a connection begins, and when the end of the holder's remaining lease has woken a waiter. If it is cut off, the
// waiter subscribes elsewhere. A sharded channel is on no other node, so its waiter subscribes again when the node is back.
func TestLeavesANodeThatIsCutOff(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0)
	for kind, sharded := range map[string]bool{"plain": false, "sharded": true} {
		t.Run(kind, func(t *testing.T) {
			s := newSite(t, cluster.Client(t), cluster.Client(t))
			ch := Channel{Name: redistest.Name(t), Sharded: sharded}
			before := redistest.Commands(t, s.rdb)["cluster|info"]
			asked := func() int64 { return redistest.Commands(t, s.rdb)["cluster|info"] - before }
			ws := s.park(ch, 2)
			first := ws[0]
			require.EqualValues(t, 1, asked(), "when the connection began")

			s.publish(ch, "0")
			awaitTurn(t, first, soon)
			first.Held(-1, false)
			noTurn(t, ws...)
			require.EqualValues(t, 1, asked(), "a message is a sign of life")
			first.Held(quiet, false)
			awaitTurn(t, first, soon)
			first.Held(-1, false)
			redistest.Eventually(t, soon, func() bool { return asked() == 2 }, "the time was up: it is asked")
			noTurn(t, ws...)
			require.EqualValues(t, 1, s.subscribers(ch), "it is in touch: nothing changes")
			s.park(Channel{Name: "{" + ch.Name + "}", Sharded: sharded}, 1)[0].Leave() // by the same connection
			require.EqualValues(t, 2, asked(), "once")

			var n loner
			for _, node := range cluster.Nodes() {
				if n = newLoner(t, cluster, node, ch); n.subscribers(ch) > 0 {
					break
				}
			}
			n.cutOff()
			noTurn(t, ws...)
			require.EqualValues(t, 1, n.subscribers(ch), "the node is cut off, unnoticed")
			first.Held(quiet, false)
			awaitTurn(t, first, soon)
			first.Held(-1, false)
			redistest.Eventually(t, soon, func() bool { return n.subscribers(ch) == 0 }, "it is left")
			if sharded {
				noTurn(t, ws...)
				n.joins()
			}
			s.awaitLive(first) // with a new subscription
			first.Held(-1, false)
			require.EqualValues(t, 1, s.subscribers(ch))
			require.Equal(t, sharded, n.subscribers(ch) == 1, "plain channels are at another node now")
			s.publish(ch, "0")
			awaitTurn(t, first, soon)
			s.leaveAll(ch, ws)
			if !sharded {
				n.joins()
			}
		})
	}
}
