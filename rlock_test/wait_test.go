package rlock_test

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// The unlock is published before the waiter's SUBSCRIBE takes effect.
func TestUnlockBeforeTheSubscriptionStands(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		c, proxy, b := behindProxy(t, anyWay)
		proxy.OnRequest(redistest.Nth(1, "SUBSCRIBE", redistest.Hold))
		_, unlock := enter(t, context.Background(), b.Mutex(b.name))
		waiter := lockAsync(t, c.Mutex(b.name))
		redistest.Eventually(t, testTimeout, func() bool { return proxy.Held() > 0 }, "SUBSCRIBE is held back")
		require.NoError(t, unlock())
		waiter.stillWaits(t)
		began := time.Now()
		proxy.Release()
		got := waiter.gets(t, testTimeout)
		requireTook(t, 0, began, got.at)
		require.NoError(t, got.unlock())
	})
}

// A waiter cancelled at the moment of its wake-up passes the wake-up on.
func TestCancelAtTheMomentOfTheWakeUp(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		m := newClient(t, b.rdb).Mutex(b.name)
		for range 100 {
			_, unlock := enter(t, context.Background(), b.Mutex(b.name))
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
			require.ErrorIs(t, waiter.get(t, testTimeout).err, rlock.ErrNotAcquired)
			dedicated := async(func() error {
				conn, giveBack := rdb.Dedicate()
				defer giveBack()
				return conn.Do(context.Background(), conn.B().Ping().Build()).Error()
			})
			began := time.Now()
			require.NoError(t, within(t, dedicated, testTimeout))
			requireTookAtMost(t, 5*time.Second, began, time.Now())
		}
	})
}

// A waiter behind a crashed holder waits until its lease ends, and not much longer.
func TestCrashedHolder(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		b.do(t, "HSET", b.name, "00000000-0000-0000-0000-000000000000:1", "1")
		const lease = 2 * time.Second // long enough for one attempt
		began := time.Now()
		require.NoError(t, b.do(t, "PEXPIRE", b.name, strconv.FormatInt(lease.Milliseconds(), 10)).Error())
		got := lockAsync(t, b.Mutex(b.name)).gets(t, testTimeout)
		requireTook(t, lease+time.Millisecond, began, got.at) // Redis keeps a key for the whole of its last millisecond
		require.NoError(t, got.unlock())
	})
}

// G4: a Lock that comes right after an unlock which told Redisson does not wait for that with a ctx that ends soon.
func TestNoCourtesyOfAShortCtx(t *testing.T) {
	for side, channel := range map[string]string{"plain": "redisson_lock__channel", "write": "redisson_rwlock"} {
		redistest.RunVirtual(t, side, func(t *testing.T) {
			var waits atomic.Int32
			r := newProxied(t, rlock.Options{Trace: &rlock.Trace{Waiting: func(context.Context, rlock.WaitingInfo) { waits.Add(1) }}})
			m := r.handle()
			if side == "write" {
				m = r.Client.RWMutex(r.name).Write()
			}
			listensOutside(t, r.rdb, channel+":{"+r.name+"}", func() {})
			lockAndUnlock(t, m)
			ctx, cancel := context.WithTimeout(context.Background(), 500*time.Microsecond)
			defer cancel()
			if _, unlock, err := m.Lock(ctx); err == nil { // it may take longer
				require.NoError(t, unlock())
			}
			require.Zero(t, waits.Load(), "nobody has the lock")
		})
	}
}

// WithMaxWait bounds Lock as TryLock does. All and Quorum use the shortest bound. The other kinds are tested in internal/testing/conformance.
func TestMaxWait(t *testing.T) {
	const bound = 100 * time.Millisecond
	most := rlock.WithMaxWait(bound)
	for kind, bounded := range map[string]func(s *twoClients) rlock.Locker{ // and whom it waits for by s.blocker
		"read side": func(s *twoClients) rlock.Locker { return s.RWMutex(s.name, most).Read() },
		"All": func(s *twoClients) rlock.Locker {
			return rlock.All(s.Mutex(s.name+":b", rlock.WithMaxWait(time.Hour)), s.Mutex(s.name, most), s.Mutex(s.name+":c"))
		},
		"an All in an All": func(s *twoClients) rlock.Locker {
			return rlock.All(s.Mutex(s.name+":e"), rlock.All(s.Mutex(s.name, most)))
		},
		"Quorum": func(s *twoClients) rlock.Locker {
			return rlock.Quorum(s.Mutex(s.name), s.third.Mutex(s.name+":third", most), s.other.Mutex(s.name+":other"))
		},
		"PermitSemaphore": func(s *twoClients) rlock.Locker { return s.PermitSemaphore(s.name, most).Locker(1) },
	} {
		redistest.RunVirtual(t, kind, func(t *testing.T) {
			s := newTwoClients(t, redistest.Shared(t))
			unlock := s.blocker(t, kind, s.name)
			began := time.Now()
			requireLockFails(t, context.Background(), bounded(s), rlock.ErrNotAcquired)
			requireTook(t, bound, began, time.Now())
			require.NoError(t, unlock())
		})
	}
}

func TestMaxWaitTooShort(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		require.ErrorContains(t, b.Mutex(b.name, rlock.WithMaxWait(0)).Do(t.Context(), nothingToDo), "WithMaxWait is 0s, want at least 1ms")
	})
}
