package faults

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// Here two goroutines are the same owner, by a lock around both. One's call for an inner
// lock is slow, so the other's Lock waits behind it, and then gets a hold of its own. What the slow
// call leaves behind must not touch that.

// siblings returns a ctx whose owner holds a lock around.
func (b *netBench) siblings(t *testing.T) context.Context {
	t.Helper()
	ctx, unlock, err := b.lock.Mutex(b.name + ":around").Lock(context.Background())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unlock()) })
	return ctx
}

// solid proves that a hold is one: it can be re-entered and left again, and stays.
func (b *netBench) solid(t *testing.T, l granted) {
	t.Helper()
	require.NoError(t, l.err)
	ctx, cancel := context.WithTimeout(l.ctx, netGivesUp)
	defer cancel()
	_, unlock, err := b.lock.Mutex(b.name).Lock(ctx)
	require.NoError(t, err)
	require.Equal(t, map[string]int64{rlock.Owner(l.ctx): 2}, b.fields(t))
	require.NoError(t, unlock())
	require.Equal(t, map[string]int64{rlock.Owner(l.ctx): 1}, b.fields(t))
	// Longer than the longest pause between two tries to release a field in doubt.
	for end := time.Now().Add(2500 * time.Millisecond); time.Now().Before(end); pass(50 * time.Millisecond) {
		require.Equal(t, map[string]int64{rlock.Owner(l.ctx): 1}, b.fields(t))
		b.excluded(t)
	}
	require.NoError(t, l.ctx.Err())
	require.NoError(t, l.unlock())
	require.True(t, b.free(t))
}

// Fault 1, G1, G6: the slow call is an unlock, which is answered late.
func TestNetSiblingBehindASlowUnlock(t *testing.T) {
	b := newNetBench(t, rlock.Options{})
	around := b.siblings(t)
	m := b.lock.Mutex(b.name)
	_, unlock, err := m.Lock(around)
	require.NoError(t, err)
	b.proxy.OnReply(redistest.Nth(1, netScript(t, "release"), redistest.Hold))
	unlocked := call(unlock)
	redistest.Eventually(t, netSlack, func() bool { return b.proxy.Held() == 1 }, "the unlock is under way")
	sibling := startLock(around, m)
	redistest.Eventually(t, netSlack, func() bool { return redistest.Goroutines("rlock.(*locking).begin") == 1 }, "it waits behind")
	b.proxy.Release()
	require.NoError(t, returned(t, unlocked, netSlack))
	b.solid(t, sibling.within(t, netSlack))
}

// Fault 1, G1, G5, G6: the slow call is an acquire that is given up, and reaches Redis later still.
func TestNetSiblingBehindAnAbandonedAcquire(t *testing.T) {
	b := newNetBench(t, rlock.Options{})
	around := b.siblings(t)
	m := b.lock.Mutex(b.name)
	b.proxy.OnRequest(redistest.Nth(1, netScript(t, "acquire"), redistest.Hold))
	ctx, cancel := context.WithCancel(around)
	first := startLock(ctx, m)
	redistest.Eventually(t, netSlack, func() bool { return b.proxy.Held() == 1 }, "the acquire is under way")
	sibling := startLock(around, m)
	redistest.Eventually(t, netSlack, func() bool { return redistest.Goroutines("rlock.(*locking).begin") == 1 }, "it waits behind")
	cancel()
	require.ErrorIs(t, first.within(t, netSlack).err, rlock.ErrNotAcquired)
	b.conns.close() // the request is still on its way
	b.solid(t, sibling.within(t, netSlack))
	b.deliver(t)
	b.becomesFree(t, 5*time.Second)
}
