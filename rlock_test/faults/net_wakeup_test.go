package faults

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// netWakeUp is within what time a waiter has the lock after an unlock, when its connection had to be
// made anew. The leases here are 30 s, so it is not their end that wakes it.
const netWakeUp = 5 * time.Second

// Fault 1, G4, G6: the acquire that follows a wake-up is lost, request or reply. The waiter has the
// lock all the same, once, and the one behind it gets it next.
func TestNetAcquireAfterTheWakeUpLost(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	for name, protocol := range netProtocols {
		for lost, on := range map[string]func(*redistest.Proxy, redistest.Hook){
			"request": (*redistest.Proxy).OnRequest, "reply": (*redistest.Proxy).OnReply,
		} {
			t.Run(name+"/"+lost, func(t *testing.T) {
				t.Parallel()
				b := netFixtureOn(t, s, rlock.Options{}, protocol)
				_, unlock, err := b.other.Mutex(b.name).Lock(context.Background())
				require.NoError(t, err)
				first := startLock(context.Background(), b.lock.Mutex(b.name))
				b.awaitSubscribers(t, 1)
				second := startLock(context.Background(), b.lock.Mutex(b.name))
				sleep(grantLease * 5 / 8) // its place is too old for it to use the lock before it has asked
				var struck atomic.Bool
				strike := redistest.Nth(1, netScript("acquire"), redistest.Cut)
				on(b.proxy, func(cmd []string) redistest.Action {
					act := strike(cmd)
					if act != redistest.Pass {
						struck.Store(true)
					}
					return act
				})
				require.NoError(t, unlock())
				for range 2 {
					var got granted
					select {
					case got = <-first:
					case got = <-second:
					case <-time.After(netWakeUp):
						require.FailNow(t, "nobody was woken")
					}
					require.NoError(t, got.err)
					require.Equal(t, map[string]int64{rlock.Owner(got.ctx): 1}, b.fields(t))
					b.excluded(t)
					require.NoError(t, got.unlock())
				}
				require.True(t, b.free(t))
				require.True(t, struck.Load())
			})
		}
	}
}

// Fault 1, G4, G5: the same, and the woken waiter is cancelled before it knows. What it got is given
// back, and the one behind it gets the lock.
func TestNetWokenWaiterGoesWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	for _, lost := range []bool{false, true} {
		t.Run(map[bool]string{true: "reply lost", false: "reply late"}[lost], func(t *testing.T) {
			t.Parallel()
			b := newNetFixture(t, rlock.Options{})
			_, unlock, err := b.other.Mutex(b.name).Lock(context.Background())
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			first := startLock(ctx, b.lock.Mutex(b.name))
			b.awaitSubscribers(t, 1)
			sleep(grantLease * 5 / 8) // its place is too old for it to use the lock before it has asked
			b.proxy.OnReply(redistest.Nth(1, netScript("acquire"), redistest.Hold))
			require.NoError(t, unlock())
			redistest.Eventually(t, netWakeUp, func() bool { return b.proxy.Held() == 1 }, "granted, not answered")
			second := startLock(context.Background(), b.lock.Mutex(b.name))
			cancel()
			require.ErrorIs(t, first.within(t, netSlack).err, context.Canceled)
			if lost {
				b.proxy.CutAll()
			} else {
				b.proxy.Release()
			}
			got := second.within(t, netWakeUp)
			require.NoError(t, got.err)
			require.Equal(t, map[string]int64{rlock.Owner(got.ctx): 1}, b.fields(t))
			require.NoError(t, got.unlock())
			b.becomesFree(t, netWakeUp)
			b.awaitSubscribers(t, 0)
		})
	}
}

// Fault 1, G4: SUBSCRIBE or its confirmation is lost, with its connection or without, and the lock is
// unlocked meanwhile. The waiter tries again when a subscription stands.
func TestNetSubscribeLost(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	for name, protocol := range netProtocols {
		for lost, on := range map[string]func(*redistest.Proxy, redistest.Hook){
			"request": (*redistest.Proxy).OnRequest, "confirmation": (*redistest.Proxy).OnReply,
		} {
			for _, fault := range []redistest.Action{redistest.Cut, redistest.Drop} {
				t.Run(name+"/"+lost+"/"+string(fault), func(t *testing.T) {
					t.Parallel()
					b := netFixtureOn(t, s, rlock.Options{}, protocol)
					_, unlock, err := b.other.Mutex(b.name).Lock(context.Background())
					require.NoError(t, err)
					var seen atomic.Bool
					hit := redistest.Nth(1, "SUBSCRIBE", fault)
					on(b.proxy, func(cmd []string) redistest.Action {
						act := hit(cmd)
						if act == fault {
							seen.Store(true)
						}
						return act
					})
					waiter := startLock(context.Background(), b.lock.Mutex(b.name))
					redistest.Eventually(t, netSlack, seen.Load, "it is lost")
					require.NoError(t, unlock())
					got := waiter.within(t, netGivesUp+netWakeUp)
					require.NoError(t, got.err)
					require.NoError(t, got.unlock())
					b.awaitSubscribers(t, 0)
				})
			}
		}
	}
}

// Fault 2, G1, G4: the connection with the subscriptions is killed again and again, at least once while
// each waiter waits. Nobody sleeps through an unlock.
func TestNetPubSubKilledRepeatedly(t *testing.T) {
	t.Parallel()
	b := newNetFixture(t, rlock.Options{})
	ctx, cancel := context.WithCancel(context.Background())
	killed := make(chan struct{})
	var kills atomic.Int64
	go func() {
		defer close(killed)
		for ctx.Err() == nil {
			n, err := do(t, b.direct, "CLIENT", "KILL", "TYPE", "pubsub").AsInt64()
			assert.NoError(t, err)
			kills.Add(n)
			sleep(20 * time.Millisecond)
		}
	}()
	t.Cleanup(func() { cancel(); <-killed })
	for range 10 {
		_, unlock, err := b.other.Mutex(b.name).Lock(context.Background())
		require.NoError(t, err)
		before := kills.Load()
		waiter := startLock(context.Background(), b.lock.Mutex(b.name))
		redistest.Eventually(t, netSlack, func() bool { return kills.Load() > before }, "its connection is killed")
		waiter.waits(t)
		require.NoError(t, unlock())
		got := waiter.within(t, netWakeUp)
		require.NoError(t, got.err)
		require.Equal(t, map[string]int64{rlock.Owner(got.ctx): 1}, b.fields(t))
		require.NoError(t, got.unlock())
	}
	cancel()
	<-killed
	b.awaitSubscribers(t, 0)
}
