package rlock_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// turns returns a lock that one of two alternating goroutines holds, while the other does not wait at the moment. The process still
// listens for unlocks, for another half a second, so the next waiter sends nothing.
func turns(t *testing.T, o rlock.Options) (*proxied, lockResult) {
	t.Helper()
	r := newProxied(t, o)
	a, line := r.line(t, r.Mutex(r.name))
	require.NoError(t, a.unlock())
	a = line[0].get(t, testTimeout)
	require.NoError(t, a.err)
	return r, a
}

// waits starts a Lock while another goroutine of its process holds the lock, and checks that it sends nothing.
func (r *proxied) waits(t *testing.T) pendingLock {
	t.Helper()
	before := r.asked.Load()
	p := lockAsync(t, r.Mutex(r.name))
	redistest.Eventually(t, testTimeout, func() bool { return waiting(t) == 1 }, "the goroutine waits")
	sleep(10 * time.Millisecond)
	require.Equal(t, before, r.asked.Load(), "asked Redis although its own process holds the lock")
	return p
}

// Each section costs one command even if its goroutine begins to wait only after the previous hand-off.
func TestTwoInTurn(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		r, a := turns(t, rlock.Options{HandOff: unlimited})
		before := redistest.Commands(t, r.rdb)
		const n = 20
		for range n {
			p := r.waits(t)
			r.held(t, a, 1)
			require.NoError(t, a.unlock())
			a = p.get(t, testTimeout)
			require.NoError(t, a.err)
		}
		after := redistest.Commands(t, r.rdb)
		require.EqualValues(t, n, after["evalsha"]-before["evalsha"])
		require.EqualValues(t, n, after["hset"]-before["hset"])
		for _, name := range []string{"publish", "subscribe", "unsubscribe"} {
			require.Equal(t, before[name], after[name], name)
		}
		require.NoError(t, a.unlock())
		r.clear(t)
	})
}

// A waiter that has sent nothing is woken at every end of the hold: after an unlock without a hand-off, a forced unlock, a loss
// that the holder notices without any message, a lost connection, and the end of the lease.
func TestWhoDidNotAskIsWoken(t *testing.T) {
	const deletedWatchdog = 6 * time.Second // the next renewal comes after a third of it
	for name, end := range map[string]struct {
		o      rlock.Options
		f      func(t *testing.T, r *proxied, a lockResult)
		within time.Duration // well before the lease ends
	}{
		"unlocked": {o: rlock.Options{HandOff: rlock.HandOff{Most: 1, For: time.Hour}}, within: 10 * time.Second,
			f: func(t *testing.T, _ *proxied, a lockResult) { t.Helper(); require.NoError(t, a.unlock()) }},
		"forced": {o: rlock.Options{HandOff: unlimited}, within: 10 * time.Second,
			f: func(t *testing.T, r *proxied, _ lockResult) {
				t.Helper()
				ok, err := r.other.Mutex(r.name).ForceUnlock(context.Background())
				require.NoError(t, err)
				require.True(t, ok)
			}},
		"deleted": {o: rlock.Options{HandOff: unlimited, WatchdogTimeout: deletedWatchdog}, within: deletedWatchdog / 3,
			f: func(t *testing.T, r *proxied, a lockResult) {
				t.Helper()
				r.do(t, "DEL", r.name)
				<-a.ctx.Done()
				require.ErrorIs(t, context.Cause(a.ctx), rlock.ErrLost)
			}},
		"deaf": {o: rlock.Options{HandOff: rlock.HandOff{Most: 1, For: time.Hour}}, within: 10 * time.Second, // enough to reconnect
			f: func(t *testing.T, r *proxied, a lockResult) {
				t.Helper()
				r.proxy.CutAll()
				require.NoError(t, a.unlock())
			}},
	} {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			r, a := turns(t, end.o)
			p := r.waits(t)
			r.held(t, a, 1)
			end.f(t, r, a)
			next := p.get(t, end.within)
			require.NoError(t, next.err)
			r.held(t, next, 1)
			_ = a.unlock()
			require.NoError(t, next.unlock())
			r.clear(t)
		})
	}

	// The hand-off is slow, so its lease ends later in Redis than the owner's ctx (G2).
	redistest.RunVirtual(t, "the lease ends", func(t *testing.T) {
		const lease, late = 2 * time.Second, time.Second
		r := newProxied(t, rlock.Options{HandOff: unlimited})
		a, line := r.line(t, r.Mutex(r.name, rlock.WithLease(lease)))
		r.proxy.OnRequest(r.nthHandOff(1, redistest.Hold))
		unlocked := r.flying(t, a)
		sleep(late)
		r.proxy.Release()
		require.NoError(t, within(t, unlocked, testTimeout))
		a = line[0].get(t, testTimeout)
		require.NoError(t, a.err)
		next := r.waits(t).get(t, lease+soon)
		require.NoError(t, next.err)
		require.ErrorIs(t, context.Cause(a.ctx), rlock.ErrLost, "the ctx is cancelled before the next holder gets the lock")
		require.NoError(t, next.unlock())
		require.ErrorIs(t, a.unlock(), rlock.ErrNotHeld)
		r.clear(t)
	})
}

// The hold that a waiter is handed is forced open before the waiter gets the reply. The next Lock does not wait for that hold to
// end.
func TestForcedBeforeTheAnswer(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		r, a := turns(t, rlock.Options{HandOff: unlimited})
		p := lockAsync(t, r.Mutex(r.name, rlock.WithLease(time.Hour)))
		redistest.Eventually(t, testTimeout, func() bool { return waiting(t) == 1 }, "the goroutine waits")
		var told atomic.Bool
		r.proxy.OnReply(func(cmd []string) redistest.Action {
			if cmd[0] == "MESSAGE" {
				told.Store(true)
			}
			return r.nthHandOff(1, redistest.Hold)(cmd)
		})
		unlocked := r.flying(t, a)
		ok, err := r.other.Mutex(r.name).ForceUnlock(context.Background())
		require.NoError(t, err)
		require.True(t, ok)
		redistest.Eventually(t, 10*time.Second, told.Load, "the message is on its way")
		sleep(10 * time.Millisecond) // if the message arrives later, the result is the same
		r.proxy.Release()
		require.NoError(t, within(t, unlocked, testTimeout))
		forced := p.get(t, testTimeout)
		require.NoError(t, forced.err)
		require.False(t, r.exists(t, r.name))
		require.NoError(t, lockAsync(t, r.Mutex(r.name)).get(t, soon).unlock())
		require.ErrorIs(t, forced.unlock(), rlock.ErrNotHeld)
		r.clear(t)
	})
}

// The process knows that it has released the lock, so its next Lock asks Redis at once, even if the unlock message never arrives.
func TestAfterAnUnlockOneAsks(t *testing.T) {
	for name, o := range map[string]rlock.HandOff{"a run is over": {Most: 1, For: time.Hour}, "nobody waits": unlimited} {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			r, a := turns(t, rlock.Options{HandOff: o})
			r.proxy.OnReply(redistest.Each("MESSAGE", redistest.Drop))
			require.NoError(t, a.unlock())
			next := lockAsync(t, r.Mutex(r.name)).get(t, soon)
			require.NoError(t, next.err)
			require.NoError(t, next.unlock())
			r.clear(t)
		})
	}
}

// A TryLock without a wait asks Redis even if its own process holds the lock.
func TestOneAttemptAsksThoughItIsOurs(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		r, a := turns(t, rlock.Options{HandOff: unlimited})
		before := redistest.Commands(t, r.rdb)["evalsha"]
		_, _, err := r.Mutex(r.name).TryLock(context.Background(), 0)
		require.ErrorIs(t, err, rlock.ErrNotAcquired)
		require.Equal(t, before+1, redistest.Commands(t, r.rdb)["evalsha"])
		require.NoError(t, a.unlock())
		r.clear(t)
	})
}
