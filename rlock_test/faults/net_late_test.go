package faults

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// Fault 1, G1, G2, G5: an acquire is answered after its lease has ended and another client has the lock. Lock returns
// ErrLost, and giving back the late grant leaves the other's hold alone.
func TestNetAcquireAnsweredAfterItsLease(t *testing.T) {
	t.Parallel()
	const lease = 1500 * time.Millisecond
	for name, protocol := range netProtocols {
		for kind, newCtx := range netContexts {
			for _, o := range [][]rlock.Option{nil, {rlock.WithLease(lease)}} {
				t.Run(name+"/"+kind+"/"+map[bool]string{true: "watchdog", false: "lease"}[o == nil], func(t *testing.T) {
					t.Parallel()
					b := newNetFixture(t, rlock.Options{WatchdogTimeout: lease}, protocol)
					b.other = newClient(t, b.direct, rlock.Options{})
					b.proxy.OnReply(redistest.Nth(1, netScript("acquire"), redistest.Hold))
					late := startLock(newCtx(t), b.lock.Mutex(b.name, o...))
					redistest.Eventually(t, netSlack, func() bool { return b.proxy.Held() == 1 }, "granted, not answered")
					ctx, unlock, err := b.other.Mutex(b.name).TryLock(context.Background(), lease+netSlack)
					require.NoError(t, err)
					b.proxy.Release()
					got := late.within(t, netSlack)
					require.ErrorIs(t, got.err, rlock.ErrLost)
					require.ErrorContains(t, got.err, "longer than the lease")
					require.ErrorIs(t, got.unlock(), rlock.ErrNotHeld)
					require.Equal(t, map[string]int64{rlock.Owner(ctx): 1}, b.fields(t))
					require.NoError(t, ctx.Err())
					require.NoError(t, unlock())
					require.True(t, b.free(t))
				})
			}
		}
	}
}

// Fault 1, G2, G5: an acquire reaches Redis later than its lease would have ended, counted from its sending. Lock returns
// ErrLost, and the grant is given back at once.
func TestNetAcquireArrivesAfterItsLease(t *testing.T) {
	t.Parallel()
	const lease = 2 * time.Second
	for name, protocol := range netProtocols {
		for kind, newCtx := range netContexts {
			t.Run(name+"/"+kind, func(t *testing.T) {
				t.Parallel()
				b := newNetFixture(t, rlock.Options{}, protocol)
				b.proxy.OnRequest(redistest.Nth(1, netScript("acquire"), redistest.Hold))
				late := startLock(newCtx(t), b.lock.Mutex(b.name, rlock.WithLease(lease)))
				redistest.Eventually(t, netSlack, func() bool { return b.proxy.Held() == 1 }, "under way")
				sleep(lease)
				late.waits(t)
				require.True(t, b.free(t))
				b.deliver(t)
				got := late.within(t, lease/2)
				require.ErrorIs(t, got.err, rlock.ErrLost)
				require.ErrorContains(t, got.err, "longer than the lease")
				require.ErrorIs(t, got.unlock(), rlock.ErrNotHeld)
				b.becomesFree(t, lease/2)
			})
		}
	}
}

// Fault 1, G5: an acquire is answered after its lease, and then Redis falls silent. Once the caller's ctx is done, Lock
// returns without waiting for the grant to be given back.
func TestNetLateGrantGivenBackInSilence(t *testing.T) {
	const lease = 300 * time.Millisecond
	b := newNetFixture(t, rlock.Options{})
	b.proxy.OnReply(redistest.Nth(1, netScript("acquire"), redistest.Hold))
	givenBack, drop := make(chan struct{}), redistest.Nth(1, netScript("release"), redistest.Drop)
	b.proxy.OnRequest(func(cmd []string) redistest.Action {
		action := drop(cmd)
		if action == redistest.Drop {
			close(givenBack)
		}
		return action
	})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	late := startLock(ctx, b.lock.Mutex(b.name, rlock.WithLease(lease)))
	redistest.Eventually(t, netSlack, func() bool { return b.proxy.Held() == 1 }, "granted, not answered")
	sleep(lease)
	b.proxy.Release()
	select {
	case <-givenBack:
	case <-time.After(netSlack):
		require.FailNow(t, "the grant was not given back")
	}
	late.waits(t)
	cancel()
	require.ErrorIs(t, late.within(t, time.Second).err, rlock.ErrLost)
	b.becomesFree(t, netSlack)
}

// Fault 1, G5: a re-entry is answered after its caller has left. Its level is removed, and the outer hold stays.
func TestNetReentryAnsweredAfterItsCallerHasGone(t *testing.T) {
	t.Parallel()
	for name, protocol := range netProtocols {
		for _, lost := range []bool{false, true} {
			t.Run(name+"/"+map[bool]string{true: "lost", false: "late"}[lost], func(t *testing.T) {
				t.Parallel()
				b := newNetFixture(t, rlock.Options{}, protocol)
				m := b.lock.Mutex(b.name)
				ctx, unlock, err := m.Lock(context.Background())
				require.NoError(t, err)
				b.proxy.OnReply(redistest.Nth(1, netScript("acquire"), redistest.Hold))
				short, cancel := context.WithCancel(ctx)
				inner := startLock(short, b.forLonger())
				redistest.Eventually(t, netSlack, func() bool { return b.proxy.Held() == 1 }, "counted, not answered")
				require.Equal(t, map[string]int64{rlock.Owner(ctx): 2}, b.fields(t))
				cancel()
				got := inner.within(t, netSlack)
				require.ErrorIs(t, got.err, rlock.ErrNotAcquired)
				require.ErrorIs(t, got.err, context.Canceled)
				require.NoError(t, ctx.Err())
				if lost {
					b.proxy.CutAll()
				} else {
					b.proxy.Release()
					redistest.Eventually(t, netSlack, func() bool { return b.fields(t)[rlock.Owner(ctx)] == 1 }, "the level must be removed")
				}
				b.excluded(t)
				again, unlockAgain, err := m.Lock(ctx)
				require.NoError(t, err)
				b.counts(t, again, 2)
				require.NoError(t, unlockAgain())
				b.counts(t, ctx, 1)
				require.NoError(t, unlock())
				require.True(t, b.free(t))
			})
		}
	}
}

// Fault 1, G2, G7, G8: all renewals reach Redis after the lease. The holder's ctx is cancelled when its trusted time
// ends. The late renewals affect neither the old hold nor the next one.
func TestNetRenewalDelayedPastTheLease(t *testing.T) {
	t.Parallel()
	const watchdog = 4500 * time.Millisecond
	const short = watchdog * 2 / 3 // the next hold's lease: a renewal for the old hold would prolong it
	for name, protocol := range netProtocols {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newNetFixture(t, rlock.Options{WatchdogTimeout: watchdog}, protocol)
			b.proxy.OnRequest(redistest.Each(netScript("renew"), redistest.Hold))
			ctx, unlock, err := b.lock.Mutex(b.name).Lock(context.Background())
			require.NoError(t, err)
			told, expiry := cancellationOf(ctx), b.expiry(t)
			next, unlockNext, err := b.other.Mutex(b.name, rlock.WithLease(short)).
				TryLock(context.Background(), watchdog+netSlack)
			require.NoError(t, err)
			told.by(t, expiry, tellSlack)
			require.ErrorIs(t, context.Cause(ctx), rlock.ErrLost)
			expiry = b.expiry(t)
			b.deliver(t)
			require.ErrorIs(t, unlock(), rlock.ErrLost)
			for end := time.Now().Add(short / 4); time.Now().Before(end); sleep(short / 40) {
				require.Equal(t, map[string]int64{rlock.Owner(next): 1}, b.fields(t))
				require.Equal(t, expiry, b.expiry(t))
			}
			require.NoError(t, next.Err())
			require.NoError(t, unlockNext())
		})
	}
}

// Fault 1, G2, G8: an unlock is answered after the lease. It returns an error when the trusted time ends, since the
// outcome is unknown. The next hold is not affected.
func TestNetUnlockDelayedPastTheLease(t *testing.T) {
	t.Parallel()
	const lease = time.Second
	for name, protocol := range netProtocols {
		for lost, on := range map[string]func(*redistest.Proxy, redistest.Hook){
			"request": (*redistest.Proxy).OnRequest, "reply": (*redistest.Proxy).OnReply,
		} {
			t.Run(name+"/"+lost, func(t *testing.T) {
				t.Parallel()
				b := newNetFixture(t, rlock.Options{}, protocol)
				m := b.lock.Mutex(b.name, rlock.WithLease(lease))
				on(b.proxy, redistest.Nth(1, netScript("release"), redistest.Hold))
				began := time.Now()
				_, unlock, err := m.Lock(context.Background())
				require.NoError(t, err)
				require.Error(t, returned(t, call(unlock), lease+netSlack), "the outcome is unknown")
				require.GreaterOrEqual(t, time.Since(began), lease)
				ctx, unlockNext, err := b.other.Mutex(b.name).TryLock(context.Background(), netSlack)
				require.NoError(t, err)
				b.proxy.Release()
				for end := time.Now().Add(lease); time.Now().Before(end); sleep(lease / 20) {
					require.Equal(t, map[string]int64{rlock.Owner(ctx): 1}, b.fields(t))
				}
				require.NoError(t, unlockNext())
				require.True(t, b.free(t))
			})
		}
	}
}
