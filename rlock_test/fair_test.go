package rlock_test

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// The order is that in which waiters queued, over all processes.
func TestFairOrderOverProcesses(t *testing.T) {
	for name, o := range map[string]rlock.Options{"grants": {}, "no grants": {HandOff: rlock.HandOff{Most: -1}}} {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			b, _ := fairStandalone(t, 3, o)
			unlock := b.lock(0)
			var want []string
			for i := range 30 {
				id := strconv.Itoa(i)
				b.wait(context.Background(), i*i%3, id)
				want = append(want, id)
			}
			_, times := b.keys()
			n, err := b.do("ZCARD", times).AsInt64()
			require.NoError(t, err)
			require.EqualValues(t, 30, n)
			require.NoError(t, unlock())
			b.requireOrder(want...)
		})
	}
}

// countedScripts is a client that counts its calls of scripts.
type countedScripts struct {
	rueidis.Client
	calls atomic.Int64
}

func (c *countedScripts) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	if isScript(cmd.Commands()) {
		c.calls.Add(1)
	}
	return c.Client.Do(ctx, cmd)
}

// Each waiter of a process joins with one call, and leaves with one. Besides, the first asks before it listens. What a call costs Redis is
// tested in package lua; the cost to keep places depends on the waiting time, and is not counted.
func TestFairCommands(t *testing.T) {
	const n = 50
	redistest.OnlyVirtual(t, "nobody asks because of a time that passes", func(t *testing.T) {
		b := newFixture(t)
		rdb := &countedScripts{Client: b.rdb}
		m := newClient(t, rdb).FairMutex(b.name)
		lockAndUnlock(t, m) // loads the scripts
		_, unlock, err := m.Lock(context.Background())
		require.NoError(t, err)
		before := rdb.calls.Load()
		in := make(chan int, n)
		for i := range n {
			go func() { // ends with its section
				assert.NoError(t, m.Do(context.Background(), func(context.Context) error {
					in <- i
					return nil
				}))
			}()
			redistest.Settle(t)
		}
		require.NoError(t, unlock())
		redistest.Settle(t)
		require.Len(t, in, n)
		for i := range n {
			require.Equal(t, i, <-in)
		}
		require.EqualValues(t, 1+2*n+1, rdb.calls.Load()-before)
	})
}

// Idle waiters of a process keep their places with one common call, and send nothing else.
func TestFairIdleWaiters(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b, _ := fairStandalone(t, 1, rlock.Options{})
		b.do("HSET", b.name, foreignOwner, "1")
		b.do("PEXPIRE", b.name, "60000")
		ctx, cancel := context.WithCancel(context.Background())
		for i := range 50 {
			b.wait(ctx, 0, strconv.Itoa(i))
		}
		var before map[string]int64
		redistest.Eventually(t, testTimeout, func() bool { // until one call refreshes all of them
			before = redistest.Commands(t, b.rdb)
			began := time.Now()
			redistest.Eventually(t, 20*time.Second, func() bool {
				return redistest.Commands(t, b.rdb)["evalsha"] >= before["evalsha"]+3
			}, "the waiters refresh their places")
			return time.Since(began) > 2*1500*time.Millisecond
		}, "one call per refresh: 3 calls take at least twice a third of 5 s, less 5 %")
		after := redistest.Commands(t, b.rdb)
		require.Equal(t, before["lpos"], after["lpos"], "no waiter asks for the lock")
		require.Equal(t, before["subscribe"], after["subscribe"])
		require.Len(t, b.queue(), 50, "all keep their places")
		cancel()
		b.running.Wait()
		b.do("DEL", b.name)
		b.requireNothingLeft()
	})
}

// Three hundred waiters of killed processes, whose holder died with them, delay a live waiter by no more than the holder's lease.
// Waiters of stopped processes delay it no longer, because their places expire.
func TestFairDeadWaiters(t *testing.T) {
	const watchdog = 2 * time.Second
	for _, stopped := range []bool{false, true} {
		redistest.RunVirtual(t, map[bool]string{false: "killed", true: "stopped"}[stopped], func(t *testing.T) {
			b, s := fairStandalone(t, 2, rlock.Options{WatchdogTimeout: watchdog})
			list, times := b.keys()
			if stopped {
				listener := s.Client(t)
				ctx, cancel := context.WithCancel(context.Background())
				t.Cleanup(cancel)
				b.running.Go(func() { // ends with the test
					pattern := "redisson_lock__channel:{" + b.name + "}:*"
					_ = listener.Receive(ctx, listener.B().Psubscribe().Pattern(pattern).Build(), func(rueidis.PubSubMessage) {})
				})
				redistest.Eventually(t, testTimeout, func() bool {
					n, _ := b.rdb.Do(ctx, b.rdb.B().PubsubNumpat().Build()).AsInt64()
					return n == 1
				}, "the subscription stands")
				defer func() { cancel(); b.running.Wait() }()
			}
			until := strconv.FormatInt(time.Now().Add(watchdog).UnixMilli(), 10)
			places, expiries := []string{"RPUSH", list}, []string{"ZADD", times}
			for i := range 300 {
				id := fmt.Sprintf("%08x-0000-4000-8000-000000000000", i/3)
				owner := id + ":0" + strconv.Itoa(i+1)
				places, expiries = append(places, owner), append(expiries, until, owner)
			}
			b.do(places...) // in one command: they expire soon
			b.do(expiries...)
			b.do("HSET", b.name, foreignOwner, "1")
			b.do("PEXPIRE", b.name, strconv.FormatInt(watchdog.Milliseconds(), 10))
			b.expected = 300
			began := time.Now()
			b.wait(context.Background(), 0, "a")
			b.wait(context.Background(), 1, "b")
			require.Equal(t, "a", <-b.in)
			took := time.Since(began)
			t.Logf("in after %v", took)
			require.Less(t, took, watchdog+soon)
			require.Equal(t, "b", <-b.in)
		})
	}
}

// A waiter that gives up leaves the queue at once, wherever it stands, and the order of the others stays.
func TestFairGiveUp(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b, _ := fairStandalone(t, 3, rlock.Options{})
		unlock := b.lock(0)
		cancels := make(map[int]context.CancelFunc)
		for i := range 9 {
			ctx, cancel := context.WithCancel(context.Background())
			cancels[i] = cancel
			b.wait(ctx, i%3, strconv.Itoa(i))
		}
		began := time.Now()
		for _, i := range []int{0, 4, 8} { // the first, a middle and the last waiter
			cancels[i]()
		}
		b.awaitQueue(6)
		require.Less(t, time.Since(began), 3*time.Second, "an abandoned place would last longer")

		_, _, err := b.processes[1].FairMutex(b.name).TryLock(context.Background(), 50*time.Millisecond)
		require.ErrorIs(t, err, rlock.ErrNotAcquired)
		_, _, err = b.processes[1].FairMutex(b.name).TryLock(context.Background(), 0)
		require.ErrorIs(t, err, rlock.ErrNotAcquired)
		b.awaitQueue(6)
		require.NoError(t, unlock())
		b.requireOrder("1", "2", "3", "5", "6", "7")
		for _, cancel := range cancels {
			cancel()
		}
	})
}

// Close removes the waiters of a process from the queue.
func TestFairClose(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b, _ := fairStandalone(t, 2, rlock.Options{})
		unlock := b.lock(0)
		for range 5 {
			b.running.Go(func() {
				_, _, err := b.processes[1].FairMutex(b.name).Lock(context.Background())
				assert.ErrorIs(t, err, rlock.ErrClosed)
			})
		}
		b.awaitQueue(5)
		b.processes[1].Close()
		require.Empty(t, b.queue())
		require.NoError(t, unlock())
		b.requireNothingLeft()
	})
}

// Waiters find out on their own that the lock or their queue was deleted, although no message reports it.
func TestFairKeysDeleted(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b, _ := fairStandalone(t, 2, rlock.Options{})
		list, times := b.keys()
		b.do("HSET", b.name, foreignOwner, "1")
		b.do("PEXPIRE", b.name, "60000")
		b.wait(context.Background(), 0, "0")
		b.wait(context.Background(), 1, "1")
		b.wait(context.Background(), 0, "2")
		before := b.queue()
		b.do("DEL", list, times)
		b.awaitQueue(3)
		for _, owner := range b.queue() {
			require.NotContains(t, before, owner, "a waiter joins again with a new owner")
		}
		began := time.Now()
		b.do("DEL", b.name)
		<-b.in
		<-b.in
		<-b.in
		require.Less(t, time.Since(began), 3*time.Second, "a third of 5 s, plus time for a busy machine")
		b.requireNothingLeft()
	})
}

// A forced unlock passes the lock to the first waiter and cancels the ctx of the previous holder.
func TestFairForceUnlock(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b, _ := fairStandalone(t, 2, rlock.Options{WatchdogTimeout: 3 * time.Second})
		m := b.processes[0].FairMutex(b.name)
		ctx, unlock, err := m.Lock(context.Background())
		require.NoError(t, err)
		b.wait(context.Background(), 1, "1")
		b.wait(context.Background(), 0, "2")
		forced, err := m.ForceUnlock(context.Background())
		require.NoError(t, err)
		require.True(t, forced)
		b.requireOrder("1", "2")
		<-ctx.Done()
		require.ErrorIs(t, context.Cause(ctx), rlock.ErrLost)
		require.ErrorIs(t, unlock(), rlock.ErrLost)
		forced, err = m.ForceUnlock(context.Background())
		require.NoError(t, err)
		require.False(t, forced)
	})
}

// Re-entry, leases and hand-overs work as with any lock: a waiter with a fixed lease gets all of it, and a hold without one is
// renewed.
func TestFairHolds(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b, _ := fairStandalone(t, 2, rlock.Options{WatchdogTimeout: 2 * time.Second})
		m := b.processes[0].FairMutex(b.name)
		err := m.Do(context.Background(), func(ctx context.Context) error {
			inner, unlock, err := m.Lock(ctx)
			require.NoError(t, err)
			require.Equal(t, rlock.Owner(ctx), rlock.Owner(inner))
			n, err := m.HoldCount(inner)
			require.NoError(t, err)
			require.Equal(t, 2, n)
			require.NoError(t, unlock())
			b.running.Go(func() {
				ctx, unlock, err := b.processes[1].FairMutex(b.name, rlock.WithLease(time.Minute)).Lock(context.Background())
				if assert.NoError(t, err) {
					ttl, err := m.TTL(ctx)
					assert.NoError(t, err)
					assert.Greater(t, ttl, 50*time.Second)
					assert.NoError(t, unlock())
				}
			})
			b.awaitQueue(1)
			b.running.Go(func() {
				ctx, unlock, err := b.processes[1].FairMutex(b.name).Lock(context.Background())
				if assert.NoError(t, err) {
					select {
					case <-ctx.Done():
						assert.NoError(t, context.Cause(ctx))
					case <-time.After(5 * time.Second): // more than two leases
					}
					assert.NoError(t, unlock())
				}
			})
			b.awaitQueue(2)
			return nil
		})
		require.NoError(t, err)
		b.running.Wait()
		b.requireNothingLeft()
	})
}

// A fair lock and a plain Mutex of the same name exclude each other, and the unlock of either wakes the waiters of the other.
func TestFairBesidePlain(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b, _ := fairStandalone(t, 2, rlock.Options{})
		plain := b.processes[1].Mutex(b.name)
		fastest := time.Hour
		for range 5 {
			b.expected = 0
			_, unlock, err := plain.Lock(context.Background())
			require.NoError(t, err)
			b.wait(context.Background(), 0, "fair 0")
			b.wait(context.Background(), 1, "fair 1")
			began := time.Now()
			require.NoError(t, unlock())
			b.requireEntered("fair 0", "fair 1")
			fastest = min(fastest, time.Since(began))
			b.requireNothingLeft()
		}
		require.Less(t, fastest, 500*time.Millisecond, "waiters are woken; on their own they poll every third of 5 s")

		fair := b.lock(0)
		got := make(chan error)
		b.running.Go(func() {
			_, unlock, err := plain.Lock(context.Background())
			if err == nil {
				err = unlock()
			}
			got <- err
		})
		redistest.Eventually(t, testTimeout, func() bool {
			n, _ := b.do("ZCARD", "rlock_queue:{"+b.name+"}").AsInt64()
			return n == 1
		}, "the plain Mutex waits")
		began := time.Now()
		require.NoError(t, fair())
		require.NoError(t, <-got)
		require.Less(t, time.Since(began), rlock.DefaultWatchdogTimeout/3, "the waiter is woken well before the lease ends")
	})
}
