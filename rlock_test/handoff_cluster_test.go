package rlock_test

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// Hand-offs on a cluster, with both kinds of pub/sub, of locks whose keys are all of one slot: first in peace,
// then while the slot is on its way to another node, and then there. A fenced lock has two keys, of which one
// may have moved and the other not: such a hand-off is refused, and the release that follows is not.
func TestHandOffOnACluster(t *testing.T) {
	redistest.Parallel(t)
	c := redistest.StartCluster(t, 3, 0)
	for _, plain := range []bool{false, true} {
		for _, fenced := range []bool{false, true} {
			t.Run(map[bool]string{false: "sharded", true: "plain"}[plain]+"/"+map[bool]string{false: "mutex", true: "fenced"}[fenced], func(t *testing.T) {
				rdb := c.Client(t)
				b := fixture{Client: newClient(t, rdb, rlock.Options{HandOff: unlimited, PlainPubSub: plain}), rdb: c.Client(t), name: redistest.Name(t)}
				m := b.Mutex(b.name, byCall)
				if fenced {
					m = b.FencedMutex(b.name)
				}
				handOffs := func() int64 { return redistest.Commands(t, b.rdb)["hset"] }
				token := int64(0)
				inside := 0
				var wg sync.WaitGroup
				stop := make(chan struct{})
				for range 6 {
					wg.Go(func() {
						for {
							select {
							case <-stop:
								return
							default:
							}
							err := m.Do(context.Background(), func(ctx context.Context) error {
								inside++
								if fenced {
									got, _ := rlock.FencingToken(ctx, b.name)
									assert.Greater(t, got, token)
									token = got
								}
								return nil
							})
							assert.NoError(t, err)
						}
					})
				}
				awaitMore := func(why string) {
					t.Helper()
					before := handOffs()
					redistest.Eventually(t, testTimeout, func() bool { return handOffs() > before+50 }, why)
				}
				awaitMore("hand-offs at the first node")
				slot := c.Slot(t, b.name)
				for _, to := range c.Nodes() {
					if from := c.Owner(t, slot); from != to {
						c.MigrateSlot(t, slot, from, to)
						awaitMore("hand-offs at the next node")
					}
				}
				close(stop)
				wg.Wait()
				redistest.Eventually(t, testTimeout, func() bool { return !b.exists(t, b.name) }, "free")
				require.Positive(t, inside)
			})
		}
	}
}

// The moment in which the lock's key has moved and the counter's has not: a script with both keys is told to
// try again, one with the lock's key alone is sent on.
func TestHandOffBetweenTheNodes(t *testing.T) {
	redistest.Parallel(t)
	c := redistest.StartCluster(t, 3, 0)
	b := fixture{Client: newClient(t, c.Client(t), rlock.Options{HandOff: unlimited}), rdb: c.Client(t), name: redistest.Name(t)}
	m := b.FencedMutex(b.name)
	var a lockResult
	a.ctx, a.unlock, a.err = m.Lock(context.Background())
	require.NoError(t, a.err)
	waiter := lockAsync(t, m)
	redistest.Eventually(t, testTimeout, func() bool { return waiting(t) == 1 }, "it waits")

	slot := c.Slot(t, b.name)
	from, to := c.BeginMove(t, slot, b.name)

	unlocked := async(a.unlock)
	require.NoError(t, within(t, unlocked, testTimeout), "released")
	c.MigrateSlot(t, slot, from, to) // goes on from there
	got := waiter.get(t, testTimeout)
	require.NoError(t, got.err)
	first, _ := rlock.FencingToken(a.ctx, b.name)
	token, _ := rlock.FencingToken(got.ctx, b.name)
	require.Greater(t, token, first)
	require.NoError(t, got.unlock())
	redistest.Eventually(t, testTimeout, func() bool { return !b.exists(t, b.name) }, "free")
}
