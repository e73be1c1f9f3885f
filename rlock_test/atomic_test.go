//go:build servers

package rlock_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// These tests move a cluster slot to another node in a single step. Only the newest servers can do that, so the tests have a
// build tag; make test-servers runs them on such a server.

// carousel returns a function that moves the slot of a key to the next node, round and round.
func carousel(t *testing.T, c *redistest.Cluster, key string) (move func()) {
	slot, nodes := c.Slot(t, key), c.Nodes()
	at := slices.Index(nodes, c.Owner(t, slot))
	return func() {
		t.Helper()
		from := at
		at = (at + 1) % len(nodes)
		c.MoveSlot(t, slot, nodes[from], nodes[at])
	}
}

// G1, G2 and G4: the slot of a lock moves while one process holds it and six goroutines of two other processes wait, and again
// under each new holder. Every hold stays valid, nobody else gets in, every waiter is woken long before a lease ends, and no key is
// left.
func TestAtomicMoveUnderHolderAndWaiters(t *testing.T) {
	redistest.Parallel(t)
	c := redistest.StartCluster(t, 3, 0)
	look := c.Client(t)
	for _, kind := range []string{"plain", "fenced", "fair", "write", "fenced write"} {
		lock := func(c *rlock.Client, name string) *rlock.Mutex { return ofAllKinds(c, name)[kind] }
		for pubsub, o := range map[string]rlock.Options{"sharded": {}, "plain": {PlainPubSub: true}} {
			t.Run(kind+"/"+pubsub, func(t *testing.T) {
				redistest.Parallel(t)
				name := redistest.Name(t)
				move := carousel(t, c, name)
				a := locked(t, lock(newClient(t, c.Client(t), o), name))
				got := make(chan lockResult, 6)
				for side := range 2 {
					m := lock(newClient(t, c.Client(t), o), name)
					for i := range 3 {
						p := lockAsync(t, m)
						go func() { got <- <-p.result }() // ends with the Lock
						redistest.Eventually(t, testTimeout, func() bool { return waiting(t) == 3*side+i+1 }, "the goroutine waits")
					}
				}
				stranger := lock(newClient(t, c.Client(t), o), name)
				token := int64(-1)
				for left := cap(got); ; left-- {
					move()
					var refusal *rlock.NotAcquiredError
					_, _, err := stranger.TryLock(context.Background(), 0)
					require.ErrorAs(t, err, &refusal)
					require.Equal(t, rlock.Owner(a.ctx), refusal.Holder)
					require.Empty(t, got, "a second goroutine has the lock")
					require.NoError(t, a.ctx.Err())
					if next, ok := rlock.FencingToken(a.ctx, name); ok {
						require.Greater(t, next, token)
						token = next
					}
					require.NoError(t, a.unlock())
					if left == 0 {
						break
					}
					a = redistest.Within(t, rlock.DefaultWatchdogTimeout/2, got, "a waiter is woken")
					require.NoError(t, a.err)
				}
				redistest.Eventually(t, soon, func() bool {
					for _, node := range look.Nodes() {
						keys, err := node.Do(context.Background(), node.B().Keys().Pattern("*"+name+"*").Build()).AsStrSlice()
						if err != nil || slices.ContainsFunc(keys, func(key string) bool { return !strings.HasPrefix(key, "redisson_lock_token:") }) {
							return false
						}
					}
					return true
				}, "no key is left")
			})
		}
	}
}

// G1, G2 and G4 under load: a slot moves again and again while goroutines of three processes increment a counter under one of its
// locks, and another of its locks is held for several leases. No update, hold or wake-up is lost.
func TestAtomicMovesUnderLoad(t *testing.T) {
	redistest.Parallel(t)
	c := redistest.StartCluster(t, 3, 0)
	for pubsub, plain := range map[string]bool{"sharded": false, "plain": true} {
		t.Run(pubsub, func(t *testing.T) {
			redistest.Parallel(t)
			name := redistest.Name(t)
			const watchdog = 2 * time.Second
			long := locked(t, newClient(t, c.Client(t), rlock.Options{PlainPubSub: plain, WatchdogTimeout: watchdog}).Mutex("{"+name+"}:long"))
			var over atomic.Bool
			defer over.Store(true)
			// Only the holder writes count, in two steps between which a second holder could interfere.
			var count, sections, longest atomic.Int64
			var wg sync.WaitGroup
			for range 3 {
				m := newClient(t, c.Client(t), rlock.Options{PlainPubSub: plain}).Mutex(name)
				for range 4 {
					wg.Go(func() {
						for !over.Load() {
							began := time.Now()
							assert.NoError(t, m.Do(context.Background(), func(context.Context) error {
								longest.Store(max(longest.Load(), int64(time.Since(began))))
								seen := count.Load()
								sleep(time.Millisecond)
								count.Store(seen + 1)
								sections.Add(1)
								return nil
							}))
						}
					})
				}
			}
			move := carousel(t, c, name)
			moves := 0
			for began := time.Now(); moves < 6 || time.Since(began) < 2*watchdog; moves++ {
				move()
			}
			over.Store(true)
			wg.Wait()
			t.Logf("%d sections, %d moves, longest wait %v", sections.Load(), moves, time.Duration(longest.Load()))
			require.Equal(t, sections.Load(), count.Load())
			require.Less(t, time.Duration(longest.Load()), rlock.DefaultWatchdogTimeout/2, "a goroutine slept through an unlock")
			require.NoError(t, long.ctx.Err())
			require.NoError(t, long.unlock())
		})
	}
}
