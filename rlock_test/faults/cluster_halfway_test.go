package faults

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// Fault 4, G2: a slot stays in the middle of its migration for longer than the lease, some of its locks
// at the old node and some at the new one. A call for both kinds is refused there; the renewals of the
// holds, which share calls, go on all the same.
func TestSlotHalfMovedUnderManyHolds(t *testing.T) {
	const holds = 10
	c := redistest.StartCluster(t, 3, 0)
	watch := c.Client(t)
	client := newClient(t, c.Client(t), rlock.Options{WatchdogTimeout: 3 * time.Second})
	name := func(i int) string { return fmt.Sprintf("{half}:%d", i) }
	var ctxs [holds]context.Context
	var unlocks [holds]rlock.UnlockFunc
	for i := range holds {
		var err error
		ctxs[i], unlocks[i], err = client.Mutex(name(i)).Lock(t.Context())
		require.NoError(t, err)
	}

	slot := c.Slot(t, name(0))
	from, to := c.Owner(t, slot), c.Nodes()[0]
	if from == to {
		to = c.Nodes()[1]
	}

	src, dst, n := from.Client(t, redistest.Single), to.Client(t, redistest.Single), fmt.Sprint(slot)
	id := func(node rueidis.Client) string {
		v, err := do(t, node, "CLUSTER", "MYID").ToString()
		require.NoError(t, err)
		return v
	}
	require.NoError(t, do(t, dst, "CLUSTER", "SETSLOT", n, "IMPORTING", id(src)).Error())
	require.NoError(t, do(t, src, "CLUSTER", "SETSLOT", n, "MIGRATING", id(dst)).Error())
	port := to.Addr()[len("127.0.0.1:"):]
	for i := range holds / 2 {
		require.NoError(t, do(t, src, "MIGRATE", "127.0.0.1", port, name(i), "0", "5000").Error())
	}
	loadPass(9 * time.Second) // three leases
	for i, ctx := range ctxs {
		require.NoError(t, context.Cause(ctx), "hold %d", i)
	}
	c.MigrateSlot(t, slot, from, to) // goes on from there
	for i, unlock := range unlocks {
		require.NoError(t, unlock(), "hold %d", i)
		require.False(t, exists(t, watch, name(i)))
	}
}
