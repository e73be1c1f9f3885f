package rlock_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

func TestLocalWaitersAreServedInOrder(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		m := b.Mutex(b.name)
		_, unlock, err := m.Lock(context.Background())
		require.NoError(t, err)
		const n = 20
		order := make(chan int, n)
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				assert.NoError(t, m.Do(context.Background(), func(context.Context) error {
					order <- i
					return nil
				}))
			})
			redistest.Eventually(t, 10*time.Second, func() bool { return waiting(t) == i+1 }, "it waits")
		}
		require.NoError(t, unlock())
		wg.Wait()
		for i := range n {
			require.Equal(t, i, <-order)
		}
	})
}

// The unlock is published before the waiter's SUBSCRIBE takes effect.
func TestUnlockBeforeTheSubscriptionStands(t *testing.T) {
	for _, resp2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("resp2=%v", resp2), func(t *testing.T) {
			b := newFixture(t)
			proxy := redistest.StartProxy(t, redistest.Shared(t))
			proxy.OnRequest(redistest.Nth(1, "SUBSCRIBE", redistest.Hold))
			_, unlock, err := b.Mutex(b.name).Lock(context.Background())
			require.NoError(t, err)

			waiter := lockAsync(t, newClient(t, redistest.Dial(t, proxy.Addr(), protocol(resp2))).Mutex(b.name))
			redistest.Eventually(t, 10*time.Second, func() bool { return proxy.Held() > 0 }, "SUBSCRIBE is held back")
			require.NoError(t, unlock())
			waiter.stillWaits(t)
			proxy.Release()
			waiter.getAndUnlock(t, 2*time.Second)
		})
	}
}

func TestManyWaitersManyUnlocks(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		const clients, each = 4, 25
		var wg sync.WaitGroup
		for range clients {
			m := newClient(t, b.rdb).Mutex(b.name)
			for range each {
				wg.Go(func() {
					ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second) // shorter than the lease
					defer cancel()
					assert.NoError(t, m.Do(ctx, func(context.Context) error { return nil }))
				})
			}
		}
		wg.Wait()
		require.False(t, b.exists(t, b.name))
		b.awaitSubscribers(t, b.name, 0)
	})
}

// A waiter cancelled at the moment of its wake-up passes the wake-up on.
func TestCancelAtTheMomentOfTheWakeUp(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		m := newClient(t, b.rdb).Mutex(b.name)
		for range 100 {
			_, unlock, err := b.Mutex(b.name).Lock(context.Background())
			require.NoError(t, err)
			first := lockAsync(t, m)
			redistest.Eventually(t, 5*time.Second, func() bool { return waiting(t) == 1 }, "the first waits")
			second := lockAsync(t, m)
			redistest.Eventually(t, 5*time.Second, func() bool { return waiting(t) == 2 }, "the second waits")
			go func() {
				for range rand.N(2000) {
					_ = time.Now()
				}
				first.cancel()
			}()
			require.NoError(t, unlock())
			one := first.get(t, 5*time.Second)
			if one.err == nil {
				require.NoError(t, one.unlock())
			}
			second.getAndUnlock(t, 5*time.Second)
		}
	})
}

// G5: whenever a wait is cancelled, nothing is left of it.
func cancelledWaitsLeaveNothing(t *testing.T) {
	t.Helper()
	for deployment, start := range map[string]func() rueidis.Client{
		"server":  func() rueidis.Client { return redistest.Start(t).Client(t) },
		"cluster": func() rueidis.Client { return redistest.StartCluster(t, 3, 0).Client(t) },
	} {
		t.Run(deployment, func(t *testing.T) {
			const names = 2_000
			rdb := start()
			c := newClient(t, rdb)
			name := func(i int) string { return fmt.Sprintf("cancelled:%d", i) }
			held := func(build func(key string) rueidis.Completed) { // every other name is held by another owner
				t.Helper()
				var cmds rueidis.Commands
				for i := 0; i < names; i += 2 {
					cmds = append(cmds, build(name(i)))
				}
				for _, r := range rdb.DoMulti(context.Background(), cmds...) {
					require.NoError(t, r.Error())
				}
			}
			held(func(key string) rueidis.Completed {
				return rdb.B().Hset().Key(key).FieldValue().FieldValue(foreignOwner, "1").Build()
			})
			before := ourGoroutinesIn(withoutHub...)
			var subscribed atomic.Int64
			inParallel(names, func(i int) {
				ctx, cancel := context.WithTimeout(context.Background(), rand.N(20*time.Millisecond))
				defer cancel()
				began := time.Now()
				_, unlock, err := c.Mutex(name(i)).Lock(ctx)
				switch {
				case err == nil:
					assert.NoError(t, unlock())
				case i%2 == 0 && time.Since(began) > 5*time.Millisecond:
					subscribed.Add(1)
				}
			})
			require.Greater(t, subscribed.Load(), int64(names/10), "waits that got as far as subscribing")
			held(func(key string) rueidis.Completed { return rdb.B().Del().Key(key).Build() })
			redistest.Eventually(t, 20*time.Second, func() bool {
				for _, node := range rdb.Nodes() {
					for _, cmd := range [][]string{{"KEYS", "*"}, {"PUBSUB", "CHANNELS"}, {"PUBSUB", "SHARDCHANNELS"}} {
						left, err := node.Do(context.Background(), node.B().Arbitrary(cmd...).Build()).AsStrSlice()
						if _, refused := rueidis.IsRedisErr(err); refused { // no SHARDCHANNELS before Redis 7
							continue
						}
						if err != nil || len(left) > 0 {
							return false
						}
					}
				}
				return ourGoroutinesIn(withoutHub...) <= before
			}, "no keys, no channels, no goroutines")
		})
	}
}

func TestIdleWaitersSendNothing(t *testing.T) {
	redistest.OnlyVirtual(t, "it waits for long", func(t *testing.T) {
		s := redistest.Start(t)
		watch := s.Client(t)
		holder, waiters := newClient(t, s.Client(t)), newClient(t, s.Client(t))
		_, unlock, err := holder.Mutex("idle", rlock.WithLease(testTimeout)).Lock(context.Background()) // not renewed
		require.NoError(t, err)
		asked := redistest.Commands(t, watch)["evalsha"]

		const n = 1000
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		m := waiters.Mutex("idle")
		var wg sync.WaitGroup
		for range n {
			wg.Go(func() {
				if _, unlock, err := m.Lock(ctx); err == nil {
					assert.NoError(t, unlock())
				}
			})
		}
		redistest.Eventually(t, 20*time.Second, func() bool { return waiting(t) == n }, "all wait")
		redistest.Settle(t)
		require.Equal(t, asked+2, redistest.Commands(t, watch)["evalsha"], "the first has asked again when it had subscribed")
		commands := redistest.Commands(t, watch)
		sleep(10 * time.Second)
		after := redistest.Commands(t, watch)
		for name := range after {
			if name != "info" && name != "ping" && name != "pubsub|numsub" { // ping: rueidis' own, one a second and connection
				require.Equal(t, commands[name], after[name], name)
			}
		}
		cancel()
		wg.Wait()
		require.NoError(t, unlock())
	})
}

// Waiters use a connection of rueidis' blocking pool. It is given back after 5 s without a waiter.
func TestConnectionOfWaitersIsGivenBack(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		rdb := s.Client(t, func(o *rueidis.ClientOption) { o.BlockingPoolSize = 1 })
		b := fixture{Client: newClient(t, rdb), rdb: s.Client(t), name: "pool"}
		require.NoError(t, b.do(t, "HSET", b.name, foreignOwner, "1").Error())
		for range 2 { // the second round has to take a new connection
			waiter := lockAsync(t, b.Mutex(b.name))
			b.awaitSubscribers(t, b.name, 1)
			waiter.cancel()
			require.ErrorIs(t, waiter.get(t, 5*time.Second).err, rlock.ErrNotAcquired)
			dedicated := async(func() error {
				conn, giveBack := rdb.Dedicate()
				defer giveBack()
				return conn.Do(context.Background(), conn.B().Ping().Build()).Error()
			})
			require.NoError(t, within(t, dedicated, 5*time.Second+soon))
		}
	})
}

// A waiter behind a crashed holder waits until its lease ends, and not much longer.
func TestCrashedHolder(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		b.do(t, "HSET", b.name, "00000000-0000-0000-0000-000000000000:1", "1")
		const lease = 2 * time.Second // long enough for one attempt
		began := time.Now()
		require.NoError(t, b.do(t, "PEXPIRE", b.name, strconv.FormatInt(lease.Milliseconds(), 10)).Error())
		got := lockAsync(t, b.Mutex(b.name)).get(t, lease+5*time.Second)
		require.NoError(t, got.err)
		require.GreaterOrEqual(t, got.at.Sub(began), lease-10*time.Millisecond) // by the wall clock of Redis
		require.Less(t, got.at.Sub(began), lease+soon)
		require.NoError(t, got.unlock())
	})
}

func TestWaiterSurvivesALostSubscription(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		proxy := redistest.StartProxy(t, s.Addr())
		b := fixture{Client: newClient(t, redistest.Dial(t, proxy.Addr())), rdb: s.Client(t), name: "cut"}
		for range 5 {
			_, unlock, err := newClient(t, b.rdb).Mutex(b.name).Lock(context.Background())
			require.NoError(t, err)
			waiter := lockAsync(t, b.Mutex(b.name))
			b.awaitSubscribers(t, b.name, 1)
			proxy.CutAll()
			require.NoError(t, unlock())
			waiter.getAndUnlock(t, 10*time.Second)
		}
	})
}
