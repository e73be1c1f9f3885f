package redistest_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
)

func TestClusterMigratesASlotWithItsKeys(t *testing.T) {
	t.Parallel()
	cl := redistest.StartCluster(t, 3, 0)
	c := cl.Client(t)
	require.Len(t, cl.Nodes(), 3)
	require.Len(t, cl.Addrs(), 3)
	for i := range 250 { // more than one batch
		require.NoError(t, c.Do(t.Context(), c.B().Set().Key(fmt.Sprintf("{a}%d", i)).Value("v").Build()).Error())
	}
	slot := cl.Slot(t, "{a}")
	require.EqualValues(t, 15495, slot)
	from, to := cl.Owner(t, slot), cl.Nodes()[0]
	require.Same(t, cl.Nodes()[2], from)

	cl.MigrateSlot(t, slot, from, to)
	require.Same(t, to, cl.Owner(t, slot))
	n, err := to.Client(t, redistest.Single).Do(t.Context(), c.B().Dbsize().Build()).AsInt64()
	require.NoError(t, err)
	require.EqualValues(t, 250, n)
	got, err := c.Do(t.Context(), c.B().Get().Key("{a}249").Build()).ToString()
	require.NoError(t, err)
	require.Equal(t, "v", got)
	require.Zero(t, redistest.Commands(t, c)["flushall"])
	require.Positive(t, redistest.Commands(t, c)["set"])

	cl.MigrateSlot(t, slot, to, from)
	cl.AwaitOK(t)
}

func TestClusterMigrationEndsShardedSubscriptions(t *testing.T) {
	t.Parallel()
	cl := redistest.StartCluster(t, 3, 0)
	slot := cl.Slot(t, "chan")
	from := cl.Owner(t, slot)
	to := cl.Nodes()[0]
	if to == from {
		to = cl.Nodes()[1]
	}
	c := cl.Client(t)
	confirmed, ended := make(chan struct{}, 8), make(chan error, 1)
	ctx := rueidis.WithOnSubscriptionHook(within(t, 20*time.Second), func(rueidis.PubSubSubscription) { confirmed <- struct{}{} })
	go func() { // ended by the migration
		ended <- c.Receive(ctx, c.B().Ssubscribe().Channel("chan").Build(), func(rueidis.PubSubMessage) {})
	}()
	next(t, confirmed)
	cl.MigrateSlot(t, slot, from, to)
	require.NoError(t, next(t, ended))
}

func TestClusterReplacesADeadMaster(t *testing.T) {
	t.Parallel()
	cl := redistest.StartCluster(t, 3, 1)
	require.Len(t, cl.Nodes(), 6)
	slot := cl.Slot(t, "key")
	old := cl.Owner(t, slot)
	c := cl.Client(t)
	old.Kill()
	cl.AwaitOK(t)
	require.False(t, old == cl.Owner(t, slot), "the old master has the slot")
	redistest.Eventually(t, soon, func() bool {
		return c.Do(within(t, time.Second), c.B().Set().Key("key").Value("v").Build()).Error() == nil
	}, "the client follows")
	old.Restart() // comes back as a replica
	cl.AwaitOK(t)
	require.False(t, old == cl.Owner(t, slot), "the old master has the slot")
}

// All tests of a binary get the same deployment, which outlasts the test that started it.
func TestSharedDeploymentsOutlastTheirFirstTest(t *testing.T) {
	var cluster *redistest.Cluster
	var sentinel *redistest.Sentinel
	t.Run("first", func(t *testing.T) { cluster, sentinel = redistest.SharedCluster(t), redistest.SharedSentinel(t) })
	require.Same(t, cluster, redistest.SharedCluster(t))
	require.Same(t, sentinel, redistest.SharedSentinel(t))
	cluster.AwaitOK(t)
	require.NoError(t, ping(t, cluster.Client(t), soon))
	require.True(t, sentinel.Master(t).Answers())
}
