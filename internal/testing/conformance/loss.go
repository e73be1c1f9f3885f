package conformance

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
	"github.com/go-rlock/rlock/rlock"
)

// lost checks that a hold is lost: its ctx is done, a Lock under that returns ErrLost until the unlock, and so does
// the unlock; after that a Lock competes.
func (p *place) lost(t *testing.T, ctx context.Context, l rlock.Locker, unlock rlock.UnlockFunc) {
	t.Helper()
	select {
	case <-ctx.Done():
	case <-time.After(2 * p.watchdog()):
		t.Fatal("the holder's ctx is not cancelled")
	}
	require.ErrorIs(t, context.Cause(ctx), rlock.ErrLost)
	var loss *rlock.LostError
	require.ErrorAs(t, context.Cause(ctx), &loss)
	require.Contains(t, l.Name(), loss.Name, "of several locks: the lost one")
	escaped := context.WithoutCancel(ctx)
	for range 2 {
		same, none, err := l.Lock(escaped)
		require.ErrorIs(t, err, rlock.ErrLost)
		require.NotErrorIs(t, err, rlock.ErrNotAcquired)
		require.Equal(t, escaped, same)
		require.ErrorIs(t, none(), rlock.ErrNotHeld)
		_, _, err = l.TryLock(escaped, 0)
		require.ErrorIs(t, err, rlock.ErrLost)
	}
	err := unlock()
	require.ErrorIs(t, err, rlock.ErrLost)
	require.ErrorIs(t, err, rlock.ErrNotHeld)
}

// G2, G8: the ctx of a holder whose key was deleted is cancelled, and the next holder keeps the lock.
func keyDeleted(t *testing.T, p *place, a, b rlock.Locker) {
	ctx, unlock, err := a.Lock(p.ctx)
	require.NoError(t, err)
	p.forget(t)
	_, unlockNext, err := b.Lock(p.ctx)
	require.NoError(t, err)
	p.lost(t, ctx, a, unlock)
	p.refused(context.WithoutCancel(ctx), t, a)
	require.NoError(t, unlockNext())
	free(t, a)

	mine := errors.New("mine")
	_, err = rlock.DoValue(p.ctx, a, func(ctx context.Context) (int, error) {
		p.forget(t)
		began := time.Now()
		<-ctx.Done()
		require.LessOrEqual(t, time.Since(began), p.watchdog()*2/3+p.d.Soon, "a renewal finds out, before the lease ends")
		return 0, mine
	})
	require.ErrorIs(t, err, mine)
	require.ErrorIs(t, err, rlock.ErrLost)
	free(t, b)
}

// ForceUnlock, where there is one, frees the lock, wakes the next waiter, and cancels the holder's ctx. A waiter for a read/write lock lets
// other libraries ask first.
func forcedUnlock(t *testing.T, p *place, a, b rlock.Locker) {
	ctx, unlock, err := a.Lock(p.ctx)
	require.NoError(t, err)
	p.allHold(t)
	waiter := p.lockAndWait(t, b)
	l, ok := b.(interface {
		ForceUnlock(context.Context) (bool, error)
	})
	require.True(t, ok)
	was, err := l.ForceUnlock(p.ctx)
	require.NoError(t, err)
	require.True(t, was)
	got := waiter.get(t, courtesy+p.d.Soon)
	require.NoError(t, got.err)
	p.lost(t, ctx, a, unlock)
	p.refused(p.ctx, t, a)
	require.NoError(t, got.unlock())
}

// G2, G3: a holder cut off from Redis loses its ctx when its lease ends, and the next waiter gets in then. The two
// events may be a millisecond apart, and timers of one process see them: which of them is late on a busy machine says
// nothing about the lock.
func connectionLost(t *testing.T, p *place, a, b rlock.Locker) {
	ctx, unlock, err := a.Lock(p.ctx)
	require.NoError(t, err)
	p.allHold(t)
	p.cutOff(true)
	next := lockAsync(t, b)
	got := next.get(t, 3*p.watchdog())
	require.NoError(t, got.err)
	select {
	case <-ctx.Done():
	case <-time.After(p.d.Soon):
		t.Fatal("somebody else is in, and the holder's ctx is not cancelled")
	}
	require.NoError(t, got.unlock())
	p.lost(t, ctx, a, unlock)
	p.cutOff(false)
	redistest.Eventually(t, atMost, func() bool {
		_, unlock, err := a.TryLock(p.ctx, 0)
		return err == nil && unlock() == nil
	}, "it works again")
}

// G5: an unlock that Redis does not answer returns after Options.UnlockTimeout, and acts in the background: the next owner gets the lock long
// before the lease would end, and nobody has lost anything.
func unlockInSilence(t *testing.T, p *place, a, b rlock.Locker) {
	_, unlock, err := a.Lock(p.ctx)
	require.NoError(t, err)
	p.allHold(t)
	next := p.lockAndWait(t, b)
	p.cutOff(true)
	began := time.Now()
	require.ErrorIs(t, unlock(), rlock.ErrUnreachable)
	took := time.Since(began)
	p.cutOff(false)
	require.GreaterOrEqual(t, took, defaultUnlockTimeout)
	require.LessOrEqual(t, took, defaultUnlockTimeout+100*time.Millisecond+p.d.Soon) // in which the server might answer another call
	got := next.get(t, longWatchdog/3)
	require.NoError(t, got.err)
	require.NoError(t, got.unlock())
	redistest.Eventually(t, p.beforeExpiry(), func() bool {
		return !slices.ContainsFunc(p.clients[0], func(c *rlock.Client) bool { return c.Stats().Holds > 0 })
	}, "the unlock has taken effect")
	for _, c := range p.clients[0] {
		require.Zero(t, c.Stats().Lost)
	}
}

// G3: a hold lasts for longer than the watchdog time, and than the wait that TryLock was ready for.
func renewal(t *testing.T, p *place, a, b rlock.Locker) {
	ctx, unlock, err := a.TryLock(p.ctx, p.watchdog())
	require.NoError(t, err)
	<-time.After(p.watchdog() * 4 / 3)
	require.NoError(t, ctx.Err())
	p.refused(p.ctx, t, b)
	require.NoError(t, unlock())
	free(t, b)
}
