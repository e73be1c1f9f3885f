package faults

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// Fault 4, G2: a slot's migration stops halfway for longer than the lease, with some locks at the old node and some at
// the new one. Redis refuses calls with keys of both. The renewals of the holds, which share calls, succeed all the
// same.
func TestSlotHalfMovedUnderManyHolds(t *testing.T) {
	t.Parallel()
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
	var moved []string
	for i := range holds / 2 {
		moved = append(moved, name(i))
	}
	from, to := c.BeginMove(t, slot, moved...)
	sleep(9 * time.Second) // three leases
	for i, ctx := range ctxs {
		require.NoError(t, context.Cause(ctx), "hold %d", i)
	}
	c.MigrateSlot(t, slot, from, to) // completes the migration
	for i, unlock := range unlocks {
		require.NoError(t, unlock(), "hold %d", i)
		require.False(t, exists(t, watch, name(i)))
	}
}
