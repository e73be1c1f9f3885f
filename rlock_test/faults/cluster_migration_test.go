package faults

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// Fault 4, G1, G2 and G4: the slot of a lock moves to another node and back, under a holder and a waiter. The hold is
// kept and renewed; the waiter follows, and the unlock wakes it.
func TestSlotMovesUnderHolderAndWaiter(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 0)
	for mode, o := range pubSubModes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			s := newClusterScene(t, c, o, "moves:"+mode)
			for range 2 {
				from, to := s.Owner(t, s.slot), s.Nodes()[0]
				if from == to {
					to = s.Nodes()[1]
				}
				s.MigrateSlot(t, s.slot, from, to)
				s.awaitSubscriber(t, patience)
				last := remaining(t, s.nodes[to.Addr()], s.name)
				redistest.Eventually(t, o.WatchdogTimeout/3+patience, func() bool {
					before := last
					last = remaining(t, s.nodes[to.Addr()], s.name)
					return last > before
				}, "renewed at the new node")
			}
			s.handOver(t)
		})
	}
}

// Fault 4, G4: an unlock in the middle of a slot's migration, after the lock's key has moved and before its channel
// has. With sharded pub/sub the message is published at the new node, which the waiter does not know yet: it tries
// again when the migration ends. Plain messages reach all nodes.
func TestUnlockWhileTheSlotMoves(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 0)
	for mode, o := range pubSubModes {
		t.Run(mode, func(t *testing.T) {
			s := newClusterScene(t, c, o, "moving:"+mode)
			from, to := s.BeginMove(t, s.slot, s.name)
			require.NoError(t, s.hold.unlock())
			if s.plain {
				require.NoError(t, s.waiter.gets(t, patience, "woken by the unlock").unlock())
			}
			s.MigrateSlot(t, s.slot, from, to) // completes the migration
			if !s.plain {
				require.NoError(t, s.waiter.gets(t, patience, "tries again at the new node").unlock())
			}
			redistest.Eventually(t, patience, func() bool { return len(s.subscribed(t)) == 0 }, "no channel is left")
		})
	}
}

// Fault 4, G1, G2 and G4 under load: a slot moves back and forth while goroutines of several clients count under one of
// its locks. No update, hold or wake-up is lost, and nobody waits long. The lock is fenced, so that its two keys may
// briefly be on different nodes, and its tokens must rise.
func TestSlotGoesBackAndForthUnderLoad(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 0)
	for mode, o := range pubSubModes {
		t.Run(mode, func(t *testing.T) {
			name := "load:" + mode
			slot := c.Slot(t, name)
			const enough = 5                       // moves, however long they take
			end := time.Now().Add(6 * time.Second) // at least
			var over atomic.Bool
			// Only the holder writes these (except sections), in two steps, so that an intruder would show.
			var witness, last, longest, sections atomic.Int64
			var wg sync.WaitGroup
			for range 3 {
				m := newClient(t, c.Client(t), o).FencedMutex(name)
				for range 4 {
					wg.Go(func() {
						for !over.Load() {
							began := time.Now()
							ctx, unlock, err := m.Lock(context.Background())
							if !assert.NoError(t, err) {
								return
							}
							longest.Store(max(longest.Load(), int64(time.Since(began))))
							seen := witness.Load()
							token, _ := rlock.FencingToken(ctx, name)
							assert.Greater(t, token, last.Swap(token))
							<-time.After(time.Millisecond)
							witness.Store(seen + 1)
							sections.Add(1)
							if !assert.NoError(t, unlock()) {
								return
							}
						}
					})
				}
			}
			moves := 0
			for ; time.Now().Before(end) || moves <= enough; moves++ {
				from := c.Owner(t, slot)
				to := c.Nodes()[moves%3]
				if from != to {
					c.MigrateSlot(t, slot, from, to)
				}
			}
			over.Store(true)
			wg.Wait()
			t.Logf("%d sections, %d moves, longest wait %v", sections.Load(), moves, time.Duration(longest.Load()))
			require.Equal(t, sections.Load(), witness.Load())
			// A lease is renewed every third.
			require.Less(t, time.Duration(longest.Load()), longWatchdog*2/3, "no wake-up was lost: a waiter that misses one sleeps until the lease ends")
		})
	}
}

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
