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

// In these tests a request reaches Redis late, as a zombie: the proxy holds it back and delivers it after the client has
// lost its connection and gone on.

// strand holds back the next call of a script, which f makes, and then closes the client's connections. It returns f's
// error; the zombie is still undelivered.
func (b *netFixture) strand(t *testing.T, script string, f func() error) error {
	t.Helper()
	held := b.proxy.Held()
	b.proxy.OnRequest(redistest.Nth(1, netScript(script), redistest.Hold))
	result := call(f)
	redistest.Eventually(t, netSlack, func() bool { return b.proxy.Held() == held+1 }, "the request must be held back")
	b.conns.close()
	return returned(t, result, netGivesUp+netSlack)
}

// deliver delivers the zombie, and returns when Redis has run it.
func (b *netFixture) deliver(t *testing.T) {
	t.Helper()
	before := redistest.Commands(t, b.direct)["evalsha"]
	b.proxy.Release()
	redistest.Eventually(t, netSlack, func() bool {
		return redistest.Commands(t, b.direct)["evalsha"] > before
	}, "the late request must run")
}

// Fault 1, G1, G5, G6: each request in turn reaches Redis after its repeat: during the hold, or during another client's.
// It changes nothing.
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
				b.deliver(t) // would set the count to 1
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
				b.deliver(t) // finds another owner
				require.Equal(t, map[string]int64{rlock.Owner(other): 1}, b.fields(t))
				require.NoError(t, unlockOther())
				require.ErrorIs(t, unlock(), rlock.ErrNotHeld)
				require.True(t, b.free(t))
			})
		}
	}
}

// Fault 1, G5: an acquire reaches Redis after its repeat was granted and unlocked, and takes the lock for nobody. The
// lock is given back long before the lease ends.
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

// Fault 1, G5: an acquire reaches Redis after its caller has left, with its connection open or closed. The lock is given
// back.
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
			redistest.Eventually(t, netSlack, func() bool { return b.proxy.Held() == 1 }, "the acquire must be held back")
			cancel()
			got := p.within(t, netSlack)
			require.ErrorIs(t, got.err, rlock.ErrNotAcquired)
			require.ErrorIs(t, got.err, context.Canceled)
			if cut {
				b.conns.close()
			}
			// The process can lock again in spite of its own late acquire.
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

// Fault 1, G1, G6: the last unlock of a hold reaches Redis after its repeat, when the same goroutine has locked again. It
// must not end that new hold.
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
		require.Equal(t, map[string]int64{rlock.Owner(again): 1}, b.fields(t), "must still be held")
		b.excluded(t)
		return unlock()
	}))
	require.True(t, b.free(t))
}

// Fault 1, G7: a renewal reaches Redis after the unlock. It finds nothing, and does not prolong another client's hold.
func TestNetLateRenewalAfterTheUnlock(t *testing.T) {
	t.Parallel()
	b := newNetFixture(t, rlock.Options{WatchdogTimeout: 2 * time.Second})
	b.proxy.OnRequest(redistest.Nth(1, netScript("renew"), redistest.Hold))
	_, unlock, err := b.lock.Mutex(b.name).Lock(context.Background())
	require.NoError(t, err)
	redistest.Eventually(t, netSlack, func() bool { return b.proxy.Held() == 1 }, "the renewal must be held back")
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
