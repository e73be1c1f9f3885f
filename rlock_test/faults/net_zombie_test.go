package faults

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// Here requests reach Redis late: the proxy holds one back, the client loses its connection and
// goes on, and only then is the request delivered. Such a request is called a zombie.

// strand holds the next call of a script back and ends the client's connections when f, which makes
// it, is stuck. It returns what f returned; the zombie is still to come.
func (b *netFixture) strand(t *testing.T, script string, f func() error) error {
	t.Helper()
	held := b.proxy.Held()
	b.proxy.OnRequest(redistest.Nth(1, netScript(script), redistest.Hold))
	result := call(f)
	redistest.Eventually(t, netSlack, func() bool { return b.proxy.Held() == held+1 }, "the request is on hold")
	b.conns.close()
	return returned(t, result, netGivesUp+netSlack)
}

// deliver lets the zombie go, and returns when Redis has run it.
func (b *netFixture) deliver(t *testing.T) {
	t.Helper()
	before := redistest.Commands(t, b.direct)["evalsha"]
	b.proxy.Release()
	redistest.Eventually(t, netSlack, func() bool {
		return redistest.Commands(t, b.direct)["evalsha"] > before
	}, "the late request ran")
}

// Fault 1, G1, G5, G6: each request in turn reaches Redis after the repeat that made up for it, at
// once, while the lock is held by another, and when nobody holds it.
func TestNetLateRequestAfterItsRepeat(t *testing.T) {
	t.Parallel()
	for name, protocol := range netProtocols {
		for kind, newCtx := range netContexts {
			t.Run(name+"/"+kind, func(t *testing.T) {
				t.Parallel()
				b := newNetFixture(t, rlock.Options{}, protocol)
				m := b.lock.Mutex(b.name)
				var ctx, inner context.Context
				var unlock, unlockInner rlock.UnlockFunc
				lock := func() (err error) { ctx, unlock, err = m.Lock(newCtx(t)); return err }
				reenter := func() (err error) { inner, unlockInner, err = b.forLonger().Lock(ctx); return err }
				has := func(n int64) {
					t.Helper()
					b.counts(t, ctx, n)
					b.excluded(t)
				}

				require.NoError(t, b.strand(t, "acquire", lock))
				has(1)
				require.NoError(t, reenter())
				has(2)
				b.deliver(t) // wants a count of 1
				has(2)
				require.NoError(t, unlockInner())
				has(1)
				require.NoError(t, b.strand(t, "acquire", reenter))
				has(2)
				b.deliver(t)
				require.NoError(t, b.strand(t, "release", unlockInner)) // the count follows
				b.deliver(t)
				has(1)
				require.ErrorIs(t, unlockInner(), rlock.ErrNotHeld)
				has(1)
				require.Error(t, inner.Err())
				require.NoError(t, ctx.Err())
				require.NoError(t, b.strand(t, "release", unlock))
				require.True(t, b.free(t))

				other, unlockOther, err := b.other.Mutex(b.name).Lock(context.Background())
				require.NoError(t, err)
				b.deliver(t) // finds another there
				require.Equal(t, map[string]int64{rlock.Owner(other): 1}, b.fields(t))
				require.NoError(t, unlockOther())
				require.ErrorIs(t, unlock(), rlock.ErrNotHeld)
				require.True(t, b.free(t))
			})
		}
	}
}

// Fault 1, G5: an acquire reaches Redis when its repeat was granted and the lock is unlocked again,
// so it takes the lock for nobody. It is given back, long before the lease ends.
func TestNetLateAcquireAfterTheUnlock(t *testing.T) {
	t.Parallel()
	for kind, newCtx := range netContexts {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			b := newNetFixture(t, rlock.Options{})
			var unlock rlock.UnlockFunc
			require.NoError(t, b.strand(t, "acquire", func() (err error) {
				_, unlock, err = b.lock.Mutex(b.name).Lock(newCtx(t))
				return err
			}))
			require.NoError(t, unlock())
			require.True(t, b.free(t))
			b.deliver(t)
			b.becomesFree(t, 5*time.Second)
			require.ErrorIs(t, unlock(), rlock.ErrNotHeld)
			require.True(t, b.free(t))
		})
	}
}

// Fault 1, G5: an acquire reaches Redis when its caller has gone, once with its connection still
// there, once without.
func TestNetLateAcquireAfterItsCallerHasGone(t *testing.T) {
	t.Parallel()
	for _, cut := range []bool{false, true} {
		t.Run(fmt.Sprintf("cut=%v", cut), func(t *testing.T) {
			t.Parallel()
			b := newNetFixture(t, rlock.Options{})
			b.proxy.OnRequest(redistest.Nth(1, netScript("acquire"), redistest.Hold))
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			p := startLock(ctx, b.lock.Mutex(b.name))
			redistest.Eventually(t, netSlack, func() bool { return b.proxy.Held() == 1 }, "on hold")
			cancel()
			got := p.within(t, netSlack)
			require.ErrorIs(t, got.err, rlock.ErrNotAcquired)
			require.ErrorIs(t, got.err, context.Canceled)
			if cut {
				b.conns.close()
			}
			// The same process is not kept from the lock by its own doubt.
			next := startLock(context.Background(), b.lock.Mutex(b.name))
			if cut {
				got = next.within(t, netSlack)
				require.NoError(t, got.err)
				require.NoError(t, got.unlock())
			}
			b.deliver(t)
			if !cut {
				got = next.within(t, netSlack)
				require.NoError(t, got.err)
				require.NoError(t, got.unlock())
			}
			b.becomesFree(t, 5*time.Second)
		})
	}
}

// Fault 1, G1, G6: the last unlock of a hold reaches Redis after its repeat, when the same goroutine has the lock again. That is a
// hold of its own, which it must not end.
func TestNetLateUnlockSparesTheNextHold(t *testing.T) {
	t.Parallel()
	b := newNetFixture(t, rlock.Options{})
	m := b.lock.Mutex(b.name)
	require.NoError(t, b.lock.Mutex(b.name+":around").Do(context.Background(), func(ctx context.Context) error {
		first, unlock, err := m.Lock(ctx)
		require.NoError(t, err)
		owner := rlock.Owner(first)
		require.NoError(t, b.strand(t, "release", unlock))
		again, unlock, err := m.Lock(ctx)
		require.NoError(t, err)
		require.NotEqual(t, owner, rlock.Owner(again))
		b.deliver(t)
		require.Equal(t, map[string]int64{rlock.Owner(again): 1}, b.fields(t), "still held")
		b.excluded(t)
		return unlock()
	}))
	require.True(t, b.free(t))
}

// Fault 1, G7: a renewal reaches Redis after the unlock. It finds nothing, and another's hold keeps
// its own lease.
func TestNetLateRenewalAfterTheUnlock(t *testing.T) {
	t.Parallel()
	b := newNetFixture(t, rlock.Options{WatchdogTimeout: 2 * time.Second})
	b.proxy.OnRequest(redistest.Nth(1, netScript("renew"), redistest.Hold))
	_, unlock, err := b.lock.Mutex(b.name).Lock(context.Background())
	require.NoError(t, err)
	redistest.Eventually(t, netSlack, func() bool { return b.proxy.Held() == 1 }, "the renewal is on hold")
	b.conns.close()
	require.NoError(t, unlock())
	require.True(t, b.free(t))
	other, unlockOther, err := b.other.Mutex(b.name, rlock.WithLease(time.Second)).Lock(context.Background())
	require.NoError(t, err)
	b.deliver(t)
	left, err := do(t, b.direct, "PTTL", b.name).AsInt64()
	require.NoError(t, err)
	require.LessOrEqual(t, left, int64(1000))
	require.Equal(t, map[string]int64{rlock.Owner(other): 1}, b.fields(t))
	require.NoError(t, unlockOther())
	require.True(t, b.free(t))
}
