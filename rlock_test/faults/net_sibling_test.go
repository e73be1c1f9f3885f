package faults

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// Here two goroutines are inside one hold, by its ctx. The call of one is slow, so the other's Lock waits for it (I1).

// behind starts a Lock under the ctx of the hold, and returns when it waits.
func (b *netFixture) behind(t *testing.T, hold context.Context) waiter {
	t.Helper()
	waits := make(chan struct{})
	sibling := startLock(waitedFor{hold, sync.OnceFunc(func() { close(waits) })}, b.forLonger())
	select {
	case <-waits:
	case <-time.After(netSlack):
		require.FailNow(t, "it does not wait behind")
	}
	sibling.waits(t)
	return sibling
}

// waitedFor is a ctx that says when somebody waits for its end.
type waitedFor struct {
	context.Context

	waits func()
}

func (c waitedFor) Done() <-chan struct{} {
	c.waits()
	return c.Context.Done()
}

// lasts proves that the hold has so many levels, and keeps them for longer than the first pauses of whatever sweeps.
func (b *netFixture) lasts(t *testing.T, hold context.Context, levels int64) {
	t.Helper()
	b.counts(t, hold, levels)
	for end := time.Now().Add(2500 * time.Millisecond); time.Now().Before(end); sleep(50 * time.Millisecond) {
		require.Equal(t, map[string]int64{rlock.Owner(hold): levels}, b.fields(t))
		b.excluded(t)
		require.NoError(t, hold.Err())
	}
}

// Fault 1, G1, G6: the slow call is a re-entry for longer, which is answered late. Whoever needs no longer lease is in at once, and out.
func TestNetSiblingBesideASlowReentry(t *testing.T) {
	b := newNetFixture(t, rlock.Options{})
	m := b.lock.Mutex(b.name)
	hold, unlock, err := m.Lock(context.Background())
	require.NoError(t, err)
	b.proxy.OnReply(redistest.Nth(1, netScript("acquire"), redistest.Hold))
	first := startLock(hold, b.forLonger())
	redistest.Eventually(t, netSlack, func() bool { return b.proxy.Held() == 1 }, "the re-entry is under way")
	sibling := b.behind(t, hold)
	_, unlockInner, err := m.Lock(hold)
	require.NoError(t, err)
	require.NoError(t, unlockInner())
	first.waits(t)
	b.proxy.Release()
	slow, got := first.gets(t, netSlack, "its answer"), sibling.gets(t, netSlack, "its turn")
	b.lasts(t, hold, 3)
	require.NoError(t, unlock(), "others are inside")
	require.NoError(t, slow.unlock())
	b.lasts(t, context.WithoutCancel(got.ctx), 1)
	require.NoError(t, got.unlock())
	require.True(t, b.free(t))
}

// Fault 1, G1, G5, G6: the slow call is a re-entry that is given up, and reaches Redis later still, when the other's level
// is unlocked. It adds a level that nobody has, until a change puts the count right, and never outlives the hold.
func TestNetSiblingBehindAnAbandonedReentry(t *testing.T) {
	for name, over := range map[string]bool{"the hold lasts": false, "the hold is over": true} {
		t.Run(name, func(t *testing.T) {
			b := newNetFixture(t, rlock.Options{})
			m := b.lock.Mutex(b.name)
			hold, unlock, err := m.Lock(context.Background())
			require.NoError(t, err)
			b.proxy.OnRequest(redistest.Nth(1, netScript("acquire"), redistest.Hold))
			ctx, cancel := context.WithCancel(hold)
			first := startLock(ctx, b.forLonger())
			redistest.Eventually(t, netSlack, func() bool { return b.proxy.Held() == 1 }, "the re-entry is under way")
			sibling := b.behind(t, hold)
			cancel()
			require.ErrorIs(t, first.within(t, netSlack).err, rlock.ErrNotAcquired)
			b.conns.close() // the request is still on its way
			got := sibling.gets(t, netSlack, "its turn")
			b.lasts(t, hold, 2)
			require.NoError(t, got.unlock())
			b.counts(t, hold, 1)
			if over {
				require.NoError(t, unlock())
				b.deliver(t)
				require.True(t, b.free(t))
				b.becomesFree(t, 0)
				return
			}
			b.deliver(t)
			require.Equal(t, map[string]int64{rlock.Owner(hold): 2}, b.fields(t), "nobody's level")
			_, unlockInner, err := m.Lock(hold)
			require.NoError(t, err)
			sleep(500 * time.Millisecond) // the count follows a change, if that lasts
			require.NoError(t, unlockInner())
			b.lasts(t, hold, 1)
			require.NoError(t, unlock())
			require.True(t, b.free(t))
		})
	}
}
