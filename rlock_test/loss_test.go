package rlock_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// behindProxy returns a client behind a proxy, and another that bypasses it.
func behindProxy(t *testing.T, way func(*rueidis.ClientOption), o ...rlock.Options) (lock *rlock.Client, proxy *redistest.Proxy, past fixture) {
	t.Helper()
	s := redistest.Start(t)
	proxy = redistest.StartProxy(t, s.Addr())
	past = fixture{rdb: s.Client(t), name: redistest.Name(t)}
	past.Client = newClient(t, past.rdb)
	lock = newClient(t, redistest.Dial(t, proxy.Addr(), way), o...)
	loadScripts(t, lock)
	return lock, proxy, past
}

func anyWay(*rueidis.ClientOption) {}

// Two levels are unlocked at once on a silent Redis, until the lease ends: the last unlock reports the loss.
func TestTwoUnlocksMeetTheLoss(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		c, proxy, _ := behindProxy(t, anyWay)
		m := c.Mutex("x", rlock.WithLease(2*time.Second))
		a := locked(t, m)
		b := locked(t, under{a.ctx, m})
		proxy.BlackHole(true)
		outer, inner := async(a.unlock), async(b.unlock)
		errs := []error{within(t, outer, testTimeout), within(t, inner, testTimeout)}
		if errs[0] == nil { // of whichever is the last
			slices.Reverse(errs)
		}
		require.ErrorIs(t, errs[0], rlock.ErrLost)
		require.NoError(t, errs[1])
		proxy.BlackHole(false)
	})
}

// G7: when a hold was found gone, by the count that follows or by its unlock, nothing is renewed any more, and nothing of it is kept until
// the lease would have ended.
func TestNothingIsRenewedAfterALoss(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		const watchdog = 3 * time.Second
		c, proxy, past := behindProxy(t, anyWay, rlock.Options{WatchdogTimeout: watchdog})
		m := c.Mutex(past.name)
		a := locked(t, m)
		past.loseLock(t, a.ctx, m)
		require.ErrorIs(t, a.unlock(), rlock.ErrLost)
		var renewals atomic.Int32
		proxy.OnRequest(func(cmd []string) redistest.Action {
			if isScript(cmd) && !slices.Contains(cmd, "redisson_lock__channel:{"+past.name+"}") { // but the release of a lost hold
				renewals.Add(1)
			}
			return redistest.Pass
		})
		sleep(watchdog / 2)
		require.Zero(t, renewals.Load())
	})
}

// G5: a re-entry with a long lease is not answered, so Redis has the hold for longer than it is trusted. Its unlock finds nobody. When
// Redis is back, it is released, though the lease of the Lock that took it, and the watchdog time, are long over. So is one whose
// unlock was not answered, before it was lost.
func TestLongestLeaseIsReleased(t *testing.T) {
	for name, lease := range map[string]time.Duration{"lost": 500 * time.Millisecond, "unlocked": 6 * time.Second} {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			c, proxy, past := behindProxy(t, anyWay, rlock.Options{WatchdogTimeout: rlock.MinWatchdogTimeout})
			a := locked(t, c.Mutex(past.name, rlock.WithLease(lease)))
			proxy.OnReply(redistest.Nth(1, "EVALSHA", redistest.Drop))
			gone, leave := context.WithCancel(a.ctx)
			again := lockAsync(t, under{gone, c.Mutex(past.name, rlock.WithLease(time.Hour))})
			redistest.Eventually(t, lease, func() bool { return past.fields(t, past.name)[rlock.Owner(a.ctx)] == 2 }, "it has run")
			leave()
			require.ErrorIs(t, again.get(t, soon).err, context.Canceled)
			proxy.Refuse(true)
			proxy.CutAll()
			if name == "lost" {
				awaitEnd(t, a.ctx)
				require.ErrorIs(t, a.unlock(), rlock.ErrLost)
			} else {
				require.ErrorIs(t, a.unlock(), rlock.ErrUnreachable)
			}
			sleep(lease + 2500*time.Millisecond) // and the longest pause of the sweeper
			require.True(t, past.exists(t, past.name))
			proxy.Refuse(false)
			redistest.Eventually(t, testTimeout, func() bool { return !past.exists(t, past.name) }, "it is released")
		})
	}
}

func TestLostHoldsAreNotKept(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		const n = 50
		var freed atomic.Int32
		type key struct{}
		for range n {
			value := new([1 << 12]byte)
			runtime.AddCleanup(value, func(struct{}) { freed.Add(1) }, struct{}{})
			_, unlock := enter(t, context.WithValue(context.Background(), key{}, value), b.Mutex(b.name, rlock.WithLease(24*time.Hour)))
			b.do(t, "DEL", b.name)
			require.ErrorIs(t, unlock(), rlock.ErrLost)
		}
		redistest.Eventually(t, testTimeout, func() bool {
			runtime.GC()
			return freed.Load() >= n-2 // the last ones may still be on a stack
		}, "what the callers' ctx held is freed")
	})
}

// An unlock whose hold is lost while it is under way is not repeated: it returns when that is known.
func TestUnlockEndsWithTheLoss(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		c, proxy, past := behindProxy(t, func(o *rueidis.ClientOption) { o.AlwaysPipelining = true }, rlock.Options{
			WatchdogTimeout: 6 * time.Second, UnlockTimeout: testTimeout,
		})
		began := time.Now()
		a := locked(t, c.Mutex(past.name, rlock.WithLease(3*time.Second)))
		proxy.OnReply(nthScript(1, redistest.Hold))
		unlocked := async(a.unlock)
		redistest.Eventually(t, testTimeout, func() bool { return proxy.Held() == 1 }, "under way, and not answered")
		require.ErrorIs(t, within(t, unlocked, testTimeout), rlock.ErrLost)
		requireTookAtMost(t, 3*time.Second, began, time.Now())
		proxy.Release()
	})
}

// A failed earlier attempt of a waiter does not show in its present attempt.
func TestEarlierFailureIsForgotten(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		c, proxy, past := behindProxy(t, anyWay)
		past.Client = newClient(t, past.rdb, rlock.Options{HandOff: rlock.HandOff{Most: -1}}) // it frees the lock, for whoever asks
		a := locked(t, past.Mutex(past.name))
		proxy.OnRequest(nthScript(1, redistest.Fail("BUSY running a script")))
		p := lockAsync(t, c.Mutex(past.name))
		past.awaitSubscribers(t, past.name, 1)
		past.awaitWaiters(t, 1)
		proxy.OnReply(nthScript(1, redistest.Hold))
		require.NoError(t, a.unlock())
		redistest.Eventually(t, testTimeout, func() bool { return proxy.Held() == 1 }, "it asks again")
		p.cancel()
		got := p.get(t, soon)
		require.ErrorIs(t, got.err, rlock.ErrNotAcquired)
		require.NotContains(t, got.err.Error(), "BUSY")
		proxy.Release()
	})
}

// One node of a cluster hangs. Callers that leave their Locks there do not keep others from the nodes that are well.
func TestStallOfOneNodeSparesTheOthers(t *testing.T) {
	cl := redistest.SharedCluster(t)
	redistest.Parallel(t)
	bad := cl.Nodes()[0]
	proxy := redistest.StartProxy(t, bad.Addr())
	c := newClient(t, cl.Client(t, redistest.Via(proxy)))
	var onBad []string
	good, prefix := "", redistest.Name(t)
	for i := 0; len(onBad) < 40 || good == ""; i++ {
		name := fmt.Sprint(prefix, i)
		if cl.Owner(t, cl.Slot(t, name)).Addr() == bad.Addr() {
			onBad = append(onBad, name)
		} else {
			good = name
		}
	}
	lockAndUnlock(t, c.Mutex(good))
	proxy.BlackHole(true)
	defer proxy.BlackHole(false)
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	var left []pendingLock
	for _, name := range onBad {
		left = append(left, lockAsync(t, under{ctx, c.Mutex(name)}))
	}
	for _, p := range left {
		require.ErrorIs(t, p.get(t, testTimeout).err, rlock.ErrNotAcquired) // unreachable, too, unless it began to ask too late to say so
	}
	for range 3 {
		sleep(150 * time.Millisecond) // in which nobody was answered
		lockAndUnlock(t, tryFor{c.Mutex(good), soon})
	}
}

// The first call on a cluster that hangs ends with its ctx, and says so.
func TestFirstCallOnASilentClusterEndsWithItsCtx(t *testing.T) {
	cl := redistest.SharedCluster(t)
	redistest.Parallel(t)
	proxies := proxiesOf(t, cl)
	c := newClient(t, cl.Client(t, redistest.Via(proxies...)))
	for _, p := range proxies {
		p.BlackHole(true)
		t.Cleanup(func() { p.BlackHole(false) })
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	_, err := c.Mutex("x").IsLocked(ctx)
	require.Less(t, redistest.Ran(t, began, time.Now()), 5*time.Second) // after eight, rueidis gives up
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NotErrorIs(t, err, rlock.ErrUnreachable)
}

// With ConnLifetime an acquire is taken for repeated if rueidis may have sent it twice, which it does not on a connection of
// its own: nothing is swept after it.
func TestReplicatedAcquireIsNotSwept(t *testing.T) {
	redistest.Parallel(t)
	master, _ := redistest.StartPair(t)
	proxy := redistest.StartProxy(t, master.Addr())
	rdb := redistest.Dial(t, proxy.Addr(), func(o *rueidis.ClientOption) { o.ConnLifetime = time.Hour })
	c := newClient(t, rdb, rlock.Options{Replicas: 1, ReplicaTimeout: 10 * time.Second})
	for range 2 {
		lockAndUnlock(t, c.Mutex("x"))
	}
	var calls atomic.Int32
	proxy.OnRequest(func(cmd []string) redistest.Action {
		if isScript(cmd) {
			calls.Add(1)
		}
		return redistest.Pass
	})
	sleep(time.Second)
	require.Zero(t, calls.Load())
}
