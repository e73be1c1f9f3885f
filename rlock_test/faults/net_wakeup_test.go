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

// netWakeUp bounds the time from an unlock to a waiter's Lock, with a new connection. The leases here are 30 s, so their
// end cannot wake the waiter.
const netWakeUp = 5 * time.Second

// Fault 1, G4, G6: the acquire after a wake-up is lost, request or reply. The waiter still gets the lock, once, and then
// the next waiter.
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
				sleep(grantLease * 5 / 8) // after such a wait, a granted process asks first
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
						require.FailNow(t, "no waiter was woken")
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

// Fault 1, G4, G5: the same, but the woken waiter is cancelled before the reply. The grant is given back, and the next
// waiter gets the lock.
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
			sleep(grantLease * 5 / 8) // after such a wait, a granted process asks first
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

// Fault 1, G4: SUBSCRIBE or its confirmation is lost, with or without its connection, before the lock is unlocked. The
// waiter asks once it has subscribed again.
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
					redistest.Eventually(t, netSlack, seen.Load, "SUBSCRIBE or its confirmation must be lost")
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

// Fault 2, G1, G4: the subscription connection is killed repeatedly, at least once during each wait. No waiter sleeps
// through an unlock.
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
		redistest.Eventually(t, netSlack, func() bool { return kills.Load() > before }, "the connection must be killed")
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
