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

// Hand-offs work on a cluster, with both kinds of pub/sub: before, during and after the move of the slot to another node. A fenced
// lock has two keys, and during the move one may be on the new node and the other not. Such a hand-off is refused, but the release
// that follows succeeds.
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
				awaitMore("hand-offs on the first node")
				slot := c.Slot(t, b.name)
				for _, to := range c.Nodes() {
					if from := c.Owner(t, slot); from != to {
						c.MigrateSlot(t, slot, from, to)
						awaitMore("hand-offs on the next node")
					}
				}
				close(stop)
				wg.Wait()
				redistest.Eventually(t, testTimeout, func() bool { return !b.exists(t, b.name) }, "the lock is free")
				require.Positive(t, inside)
			})
		}
	}
}

// The key of the lock has moved to the new node and the fencing counter has not. The server answers a script with both keys with
// "try again", and redirects one with only the key of the lock. The unlock still releases.
func TestHandOffBetweenTheNodes(t *testing.T) {
	redistest.Parallel(t)
	c := redistest.StartCluster(t, 3, 0)
	b := fixture{Client: newClient(t, c.Client(t), rlock.Options{HandOff: unlimited}), rdb: c.Client(t), name: redistest.Name(t)}
	m := b.FencedMutex(b.name)
	var a lockResult
	a.ctx, a.unlock, a.err = m.Lock(context.Background())
	require.NoError(t, a.err)
	waiter := lockAsync(t, m)
	redistest.Eventually(t, testTimeout, func() bool { return waiting(t) == 1 }, "the goroutine waits")

	slot := c.Slot(t, b.name)
	from, to := c.BeginMove(t, slot, b.name)

	unlocked := async(a.unlock)
	require.NoError(t, within(t, unlocked, testTimeout), "the lock is released")
	c.MigrateSlot(t, slot, from, to) // completes the move
	got := waiter.get(t, testTimeout)
	require.NoError(t, got.err)
	first, _ := rlock.FencingToken(a.ctx, b.name)
	token, _ := rlock.FencingToken(got.ctx, b.name)
	require.Greater(t, token, first)
	require.NoError(t, got.unlock())
	redistest.Eventually(t, testTimeout, func() bool { return !b.exists(t, b.name) }, "the lock is free")
}
