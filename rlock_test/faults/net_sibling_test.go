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

// In these tests two goroutines share a hold's ctx. One makes a slow call, so the other's Lock waits for it (I1).

// behind starts a Lock under the hold's ctx, and returns when it waits for the slow call.
func (b *netFixture) behind(t *testing.T, hold context.Context) waiter {
	t.Helper()
	waits := make(chan struct{})
	sibling := startLock(waitedFor{hold, sync.OnceFunc(func() { close(waits) })}, b.forLonger())
	select {
	case <-waits:
	case <-time.After(netSlack):
		require.FailNow(t, "the Lock does not wait for the slow call")
	}
	sibling.waits(t)
	return sibling
}

// waitedFor is a ctx that reports calls of Done.
type waitedFor struct {
	context.Context

	waits func()
}

func (c waitedFor) Done() <-chan struct{} {
	c.waits()
	return c.Context.Done()
}

// lasts requires that the hold keeps the given levels for longer than the first pauses of a sweep.
func (b *netFixture) lasts(t *testing.T, hold context.Context, levels int64) {
	t.Helper()
	b.counts(t, hold, levels)
	for end := time.Now().Add(2500 * time.Millisecond); time.Now().Before(end); sleep(50 * time.Millisecond) {
		require.Equal(t, map[string]int64{rlock.Owner(hold): levels}, b.fields(t))
		b.excluded(t)
		require.NoError(t, hold.Err())
	}
}

// Fault 1, G1, G6: the slow call is a re-entry with a longer lease, answered late. A re-entry without one gets in and out
// at once.
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
	slow, got := first.gets(t, netSlack, "answered"), sibling.gets(t, netSlack, "its turn")
	b.lasts(t, hold, 3)
	require.NoError(t, unlock(), "other levels are open")
	require.NoError(t, slow.unlock())
	b.lasts(t, context.WithoutCancel(got.ctx), 1)
	require.NoError(t, got.unlock())
	require.True(t, b.free(t))
}

// Fault 1, G1, G5, G6: the slow call is a re-entry that is given up, and reaches Redis after the other's level is unlocked.
// Its extra level lasts at most until the next change corrects the count, and never outlives the hold.
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
			b.conns.close() // the request is still under way
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
			require.Equal(t, map[string]int64{rlock.Owner(hold): 2}, b.fields(t), "the late level")
			_, unlockInner, err := m.Lock(hold)
			require.NoError(t, err)
			sleep(500 * time.Millisecond) // a lasting change updates the count
			require.NoError(t, unlockInner())
			b.lasts(t, hold, 1)
			require.NoError(t, unlock())
			require.True(t, b.free(t))
		})
	}
}
