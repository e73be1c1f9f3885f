package conformance

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/internal/require"
	"github.com/go-rlock/rlock/rlock"
)

// courtesy is how long waiters of read/write locks let other libraries ask first: 10 ms, by a timer that is rounded up.
const courtesy = 11 * time.Millisecond

var properties = []property{
	{name: "exclusion", holds: exclusion},
	{name: refusedNow, holds: refusedAtOnce},
	{name: "refused after a wait", holds: refusedAfterAWait},
	{name: "wake-up", holds: wakeUp},
	{name: "wake-up here", holds: wakeUpHere},
	{name: reenters, holds: reentry},
	{name: refusesReentry, holds: reentryRefused},
	{name: "count", holds: count},
	{name: "loss found by a level", holds: lossFoundByALevel},
	{name: "levels in silence", holds: levelsInSilence, watchdog: shortWatchdog, cuts: true},
	{name: "siblings", holds: siblings},
	{name: "detach", holds: detach},
	{name: "ctx", holds: ctxOfTheSection},
	{name: "second unlock", holds: secondUnlock},
	{name: "cancelled wait", holds: cancelledWait},
	{name: "deadline", holds: deadline},
	{name: "ctx done before", holds: ctxDoneBefore},
	{name: "WithMaxWait", holds: boundedWait, options: []rlock.Option{rlock.WithMaxWait(maxWait)}},
	{name: "WaitOnly", holds: waitOnly, watchdog: shortWatchdog},
	{name: "key deleted", holds: keyDeleted, watchdog: shortWatchdog},
	{name: endsByOtherHand, holds: forcedUnlock, watchdog: shortWatchdog},
	{name: "connection lost", holds: connectionLost, watchdog: shortWatchdog, cuts: true},
	{name: unlockedUnheard, holds: unlockInSilence, cuts: true},
	{name: "renewal", holds: renewal, watchdog: shortWatchdog},
	{name: "Close of waiters", holds: closeOfWaiters},
	{name: "Close of holders", holds: closeOfHolders},
	{name: "Shutdown", holds: shutdown},
	{name: "Shutdown out of time", holds: shutdownOutOfTime},
	{name: "Do", holds: doSections},
	{name: "asked", holds: asked, watchdog: time.Hour, options: []rlock.Option{rlock.WithAsked()}},
	{name: moves, holds: export},
	{name: expires, holds: ticketExpires},
}

// G1, G4: many goroutines of both sides enter one after the other, and each gets in.
func exclusion(t *testing.T, p *place, a, b rlock.Locker) {
	const goroutines, rounds = 4, 5 // of each side
	var witness, in atomic.Int64
	var wg sync.WaitGroup
	began := time.Now()
	for _, l := range []rlock.Locker{a, b} {
		for range goroutines {
			wg.Go(func() {
				for range rounds {
					ctx, unlock, err := l.Lock(p.ctx)
					if err != nil {
						t.Error(err)
						return
					}
					if n := in.Add(1); n != 1 {
						t.Errorf("%d are inside", n)
					}
					n := witness.Load()
					runtime.Gosched()
					witness.Store(n + 1)
					err = ctx.Err()
					in.Add(-1)
					if err = errors.Join(err, unlock()); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	wg.Wait()
	require.EqualValues(t, 2*goroutines*rounds, witness.Load())
	require.Less(t, time.Since(began), rlock.DefaultWatchdogTimeout*2/3, "nobody sleeps until a lease ends")
}

// TryLock(0) is refused at once while the lock is held, by either side, and gets it when it is free.
func refusedAtOnce(t *testing.T, p *place, a, b rlock.Locker) {
	_, _, unlock, err := tryOnce(p.ctx, a)
	require.NoError(t, err)
	p.refused(p.ctx, t, a)
	p.refused(p.ctx, t, b)
	require.NoError(t, unlock())
	_, _, unlock, err = tryOnce(p.ctx, b)
	require.NoError(t, err)
	require.NoError(t, unlock())
}

// TryLock's error names the lock and how long it waited.
func refusedAfterAWait(t *testing.T, p *place, a, b rlock.Locker) {
	_, unlock, err := a.Lock(p.ctx)
	require.NoError(t, err)
	for _, l := range []rlock.Locker{a, b} {
		for _, wait := range []time.Duration{-1, time.Millisecond, 50 * time.Millisecond} {
			began := time.Now()
			_, _, err = l.TryLock(p.ctx, wait)
			require.ErrorIs(t, err, rlock.ErrNotAcquired)
			require.NotErrorIs(t, err, context.DeadlineExceeded, "the caller's ctx is not done")
			var refusal *rlock.NotAcquiredError
			require.ErrorAs(t, err, &refusal)
			require.Contains(t, l.Name(), refusal.Name, "of several locks: the one in the way")
			if wait > time.Millisecond { // which may be too short for an answer
				require.NotErrorIs(t, err, rlock.ErrUnreachable)
			}
			require.GreaterOrEqual(t, refusal.Waited, wait)
			require.LessOrEqual(t, time.Since(began), max(0, wait)+p.soon)
		}
	}
	require.NoError(t, unlock())
	free(t, b)
}

// G4: a waiter gets the lock long before the former holder's lease would have ended.
func wakeUp(t *testing.T, p *place, a, b rlock.Locker) {
	for _, l := range [][2]rlock.Locker{{a, b}, {b, a}} {
		_, unlock, err := l[0].Lock(p.ctx)
		require.NoError(t, err)
		waiter := p.lockAndWait(t, l[1])
		waiter.stillWaits(t)
		require.NoError(t, unlock())
		got := waiter.get(t, rlock.DefaultWatchdogTimeout/3)
		require.NoError(t, got.err)
		require.NoError(t, got.ctx.Err())
		require.NoError(t, got.unlock())
		p.awaitSilence(t, atMost)
	}
}

// The same for a waiter in the holder's own process.
func wakeUpHere(t *testing.T, p *place, a, _ rlock.Locker) {
	_, unlock, err := a.Lock(p.ctx)
	require.NoError(t, err)
	waiters := []pending{p.lockAndWait(t, a), lockAsync(t, a), lockAsync(t, a)}
	require.NoError(t, unlock())
	enterInTurn(t, waiters, rlock.DefaultWatchdogTimeout/3)
}

// G6: a Lock under the ctx of a hold re-enters it, to any depth. The levels may be unlocked in any order, each once, and the last unlock ends
// the hold. A Lock under the ctx of an unlocked level competes.
func reentry(t *testing.T, p *place, a, b rlock.Locker) {
	const depth = 5
	for _, outerFirst := range []bool{false, true} {
		ctx := p.ctx
		var unlocks [depth]rlock.UnlockFunc
		var levels [depth]context.Context
		for i := range unlocks {
			var err error
			if i%2 == 0 {
				ctx, unlocks[i], err = a.Lock(ctx)
			} else {
				ctx, unlocks[i], err = a.TryLock(ctx, 0)
			}
			require.NoError(t, err)
			levels[i] = ctx
		}
		for n := range depth {
			i := n
			if !outerFirst { // otherwise the inner ones, being children, end with the outermost
				i = depth - 1 - n
				require.NoError(t, levels[i].Err())
			}
			p.refused(p.ctx, t, b)
			require.NoError(t, unlocks[i]())
			require.Error(t, levels[i].Err())
			require.ErrorIs(t, unlocks[i](), rlock.ErrNotHeld)
			if n < depth-1 && outerFirst { // otherwise it also has the ctx of the levels around it
				p.refused(context.WithoutCancel(levels[i]), t, a)
			}
		}
		free(t, b)
	}
}

// A Lock under the ctx of a hold returns ErrReentry, and the hold is unchanged.
func reentryRefused(t *testing.T, p *place, a, b rlock.Locker) {
	ctx, unlock, err := a.Lock(p.ctx)
	require.NoError(t, err)
	_, _, err = a.Lock(ctx)
	require.ErrorIs(t, err, rlock.ErrReentry)
	_, again, err := a.TryLock(ctx, time.Hour)
	require.ErrorIs(t, err, rlock.ErrReentry)
	require.ErrorIs(t, again(), rlock.ErrNotHeld)
	require.NoError(t, ctx.Err())
	p.refused(p.ctx, t, b)
	require.NoError(t, unlock())
	free(t, b)
}

// G6: levels that stay open are counted in Redis, and no longer once they are unlocked.
func count(t *testing.T, p *place, a, _ rlock.Locker) {
	ctx, unlock, err := a.Lock(p.ctx)
	require.NoError(t, err)
	var inner [10]rlock.UnlockFunc
	for i := range inner {
		ctx, inner[i], err = a.Lock(ctx)
		require.NoError(t, err)
	}
	p.awaitCount(t, len(inner)+1)
	for _, unlock := range inner {
		require.NoError(t, unlock())
	}
	p.awaitCount(t, 1)
	require.NoError(t, unlock())
}

// G2: the call that counts a level finds that the hold is gone, long before a renewal would.
func lossFoundByALevel(t *testing.T, p *place, a, _ rlock.Locker) {
	ctx, unlock, err := a.Lock(p.ctx)
	require.NoError(t, err)
	p.forget(t)
	began := time.Now()
	_, unlockInner, err := a.Lock(ctx)
	require.NoError(t, err, "it asks nobody")
	lost(t, ctx, a, unlockInner)
	require.LessOrEqual(t, time.Since(began), time.Second+p.soon)
	require.ErrorIs(t, unlock(), rlock.ErrLost)
}

// G2, G6: levels begin and end at once while Redis is silent, until the hold is lost.
func levelsInSilence(t *testing.T, p *place, a, b rlock.Locker) {
	ctx, unlock, err := a.Lock(p.ctx)
	require.NoError(t, err)
	p.cutOff(true)
	began := time.Now()
	inner, unlockInner, err := a.Lock(ctx)
	require.NoError(t, err)
	second, unlockSecond, err := a.TryLock(inner, 0)
	require.NoError(t, err)
	require.NoError(t, unlockSecond())
	require.Error(t, second.Err())
	require.LessOrEqual(t, time.Since(began), p.soon)
	lost(t, ctx, a, unlockInner)
	require.LessOrEqual(t, time.Since(began), shortWatchdog+p.soon)
	require.ErrorIs(t, unlock(), rlock.ErrLost)
	p.cutOff(false)
	free(t, b)
}

// G1: goroutines that start before a Lock compete, though they share a ctx. So does one whose section is over.
func siblings(t *testing.T, p *place, a, b rlock.Locker) {
	parent, cancel := context.WithCancel(p.ctx)
	defer cancel()
	ctx, unlock, err := a.Lock(parent)
	require.NoError(t, err)
	p.refused(parent, t, a)
	p.refused(ctx, t, b) // a hold of another Client is no hold
	require.NoError(t, unlock())
	over := context.WithoutCancel(ctx)
	_, unlock, err = b.Lock(p.ctx)
	require.NoError(t, err)
	p.refused(over, t, a)
	require.NoError(t, unlock())
	freeUnder(over, t, a)
}

// A detached ctx competes with the hold of its parent.
func detach(t *testing.T, p *place, a, _ rlock.Locker) {
	ctx, unlock, err := a.Lock(p.ctx)
	require.NoError(t, err)
	detached := rlock.Detach(ctx)
	require.Equal(t, "", rlock.Owner(detached))
	p.refused(detached, t, a)
	require.NoError(t, unlock())
	require.ErrorIs(t, detached.Err(), context.Canceled, "it ends with the section")
	free(t, a)
}

// The ctx of a section is a child of the caller's, and is cancelled by the unlock before that returns.
func ctxOfTheSection(t *testing.T, p *place, a, _ rlock.Locker) {
	type key struct{}
	ctx, unlock, err := a.Lock(context.WithValue(p.ctx, key{}, 42))
	require.NoError(t, err)
	require.Equal(t, 42, ctx.Value(key{}))
	require.NoError(t, ctx.Err())
	require.NoError(t, context.Cause(ctx))
	require.NoError(t, unlock())
	require.Equal(t, context.Canceled, ctx.Err())
	require.ErrorIs(t, context.Cause(ctx), context.Canceled)
	require.ErrorContains(t, context.Cause(ctx), "unlocked")
	require.NotErrorIs(t, context.Cause(ctx), rlock.ErrLost)

	parent, cancel := context.WithCancelCause(p.ctx)
	ctx, unlock, err = a.Lock(parent)
	require.NoError(t, err)
	mine := errors.New("mine")
	cancel(mine)
	require.ErrorIs(t, context.Cause(ctx), mine)
	p.refused(p.ctx, t, a)
	require.NoError(t, unlock())
	free(t, a)
}

// G6, G8: an unlock acts once, and only on its own hold.
func secondUnlock(t *testing.T, p *place, a, b rlock.Locker) {
	_, unlock, err := a.Lock(p.ctx)
	require.NoError(t, err)
	require.NoError(t, unlock())
	err = unlock()
	require.ErrorIs(t, err, rlock.ErrNotHeld)
	require.NotErrorIs(t, err, rlock.ErrLost)
	_, unlockNext, err := b.Lock(p.ctx)
	require.NoError(t, err)
	require.ErrorIs(t, unlock(), rlock.ErrNotHeld)
	p.refused(p.ctx, t, a)
	require.NoError(t, unlockNext())
}

// G5: a cancelled wait ends at once, and leaves nothing, though the lock is still held.
func cancelledWait(t *testing.T, p *place, a, b rlock.Locker) {
	_, unlock, err := a.Lock(p.ctx)
	require.NoError(t, err)
	var keys []string
	redistest.Eventually(t, p.soon, func() bool {
		keys = p.keys(t)
		return len(keys) == p.kind.keys
	}, "all of it is held: Lock may return when most of it is")
	waiter := p.lockAndWait(t, b)
	waiter.stillWaits(t)
	waiter.cancel()
	got := waiter.get(t, p.soon)
	require.ErrorIs(t, got.err, rlock.ErrNotAcquired)
	require.ErrorIs(t, got.err, context.Canceled)
	require.NotErrorIs(t, got.err, rlock.ErrUnreachable)
	require.ErrorIs(t, got.unlock(), rlock.ErrNotHeld)
	redistest.Eventually(t, p.beforeExpiry(), func() bool {
		return len(p.channels(t)) == 0 && slices.Equal(keys, p.keys(t))
	}, "what the holder has is there, and nothing else")
	require.NoError(t, unlock())
	free(t, b)
}

// The same for a wait whose ctx has a deadline. The error says which of the two it was.
func deadline(t *testing.T, p *place, a, b rlock.Locker) {
	_, unlock, err := a.Lock(p.ctx)
	require.NoError(t, err)
	const wait = 50 * time.Millisecond
	began := time.Now()
	ctx, cancel := context.WithTimeout(p.ctx, wait)
	defer cancel()
	same, _, err := b.Lock(ctx)
	require.ErrorIs(t, err, rlock.ErrNotAcquired)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.LessOrEqual(t, time.Since(began), wait+p.soon)
	require.Equal(t, ctx, same)
	require.NoError(t, unlock())
	free(t, b)
}

// A Lock whose ctx is done gets nothing, even if the lock is free.
func ctxDoneBefore(t *testing.T, p *place, a, _ rlock.Locker) {
	ctx, cancel := context.WithCancelCause(p.ctx)
	mine := errors.New("mine")
	cancel(mine)
	_, _, err := a.Lock(ctx)
	require.ErrorIs(t, err, rlock.ErrNotAcquired)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, mine)
	_, _, err = a.TryLock(ctx, time.Hour)
	require.ErrorIs(t, err, rlock.ErrNotAcquired)
	require.Empty(t, p.keys(t))
	free(t, a)
}

// WithMaxWait bounds Lock as TryLock does. It changes neither TryLock nor the section.
func boundedWait(t *testing.T, p *place, a, b rlock.Locker) {
	_, unlock, err := a.Lock(p.ctx)
	require.NoError(t, err)
	began := time.Now()
	_, none, err := b.Lock(p.ctx)
	require.ErrorIs(t, err, rlock.ErrNotAcquired)
	require.NotErrorIs(t, err, context.DeadlineExceeded)
	require.GreaterOrEqual(t, time.Since(began), maxWait)
	require.LessOrEqual(t, time.Since(began), maxWait+p.soon)
	require.ErrorIs(t, none(), rlock.ErrNotHeld)
	p.refused(p.ctx, t, b)
	waits := lockAsync(t, lockFunc(func(ctx context.Context) (context.Context, rlock.UnlockFunc, error) {
		return b.TryLock(ctx, rlock.DefaultWatchdogTimeout/3)
	}))
	<-time.After(maxWait + maxWait/2)
	require.NoError(t, unlock())
	got := waits.get(t, rlock.DefaultWatchdogTimeout/3)
	require.NoError(t, got.err)
	<-time.After(maxWait + maxWait/2)
	require.NoError(t, got.ctx.Err())
	require.NoError(t, got.unlock())
}

// G3, G4: a ctx inside a WaitOnly ends a wait. A section goes on without it, and without its deadline: to its unlock, or its loss.
func waitOnly(t *testing.T, p *place, a, b rlock.Locker) {
	type key struct{}
	outer, leave := context.WithTimeout(context.WithValue(p.ctx, key{}, 42), atMost)
	defer leave()
	ctx, unlock, err := a.Lock(rlock.WaitOnly(outer))
	require.NoError(t, err)
	leave()
	require.NoError(t, ctx.Err())
	require.Equal(t, 42, ctx.Value(key{}))
	_, bounded := ctx.Deadline()
	require.False(t, bounded)

	given, cancel := context.WithTimeout(p.ctx, 50*time.Millisecond)
	defer cancel()
	given = rlock.WaitOnly(given)
	same, none, err := b.Lock(given)
	require.ErrorIs(t, err, rlock.ErrNotAcquired)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Equal(t, given, same)
	require.ErrorIs(t, none(), rlock.ErrNotHeld)

	require.NoError(t, unlock())
	require.ErrorIs(t, ctx.Err(), context.Canceled)
	outer, leave = context.WithCancel(p.ctx)
	ctx, unlock, err = b.Lock(rlock.WaitOnly(outer))
	require.NoError(t, err)
	leave()
	p.forget(t)
	lost(t, ctx, b, unlock)
	free(t, a)
}

// lost checks that a hold is lost: its ctx is done, a Lock under that returns ErrLost until the unlock, and so does
// the unlock; after that a Lock competes.
func lost(t *testing.T, ctx context.Context, l rlock.Locker, unlock rlock.UnlockFunc) {
	t.Helper()
	select {
	case <-ctx.Done():
	case <-time.After(2 * shortWatchdog):
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
	lost(t, ctx, a, unlock)
	p.refused(context.WithoutCancel(ctx), t, a)
	require.NoError(t, unlockNext())
	free(t, a)

	mine := errors.New("mine")
	_, err = rlock.DoValue(p.ctx, a, func(ctx context.Context) (int, error) {
		p.forget(t)
		began := time.Now()
		<-ctx.Done()
		require.LessOrEqual(t, time.Since(began), shortWatchdog*2/3+p.soon, "a renewal finds out, before the lease ends")
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
	waiter := p.lockAndWait(t, b)
	l, ok := b.(interface {
		ForceUnlock(context.Context) (bool, error)
	})
	require.True(t, ok)
	was, err := l.ForceUnlock(p.ctx)
	require.NoError(t, err)
	require.True(t, was)
	got := waiter.get(t, courtesy+p.soon)
	require.NoError(t, got.err)
	lost(t, ctx, a, unlock)
	p.refused(p.ctx, t, a)
	require.NoError(t, got.unlock())
}

// G2, G3: a holder cut off from Redis loses its ctx when its lease ends, and the next waiter gets in then. The two
// events may be a millisecond apart, and timers of one process see them: which of them is late on a busy machine says
// nothing about the lock.
func connectionLost(t *testing.T, p *place, a, b rlock.Locker) {
	ctx, unlock, err := a.Lock(p.ctx)
	require.NoError(t, err)
	p.cutOff(true)
	next := lockAsync(t, b)
	got := next.get(t, 3*shortWatchdog)
	require.NoError(t, got.err)
	select {
	case <-ctx.Done():
	case <-time.After(p.soon):
		t.Fatal("somebody else is in, and the holder's ctx is not cancelled")
	}
	require.NoError(t, got.unlock())
	lost(t, ctx, a, unlock)
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
	next := p.lockAndWait(t, b)
	p.cutOff(true)
	began := time.Now()
	require.ErrorIs(t, unlock(), rlock.ErrUnreachable)
	took := time.Since(began)
	p.cutOff(false)
	require.GreaterOrEqual(t, took, defaultUnlockTimeout)
	require.LessOrEqual(t, took, defaultUnlockTimeout+100*time.Millisecond+p.soon) // in which the server might answer another call
	got := next.get(t, rlock.DefaultWatchdogTimeout/3)
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
	ctx, unlock, err := a.TryLock(p.ctx, shortWatchdog)
	require.NoError(t, err)
	<-time.After(shortWatchdog + shortWatchdog/3)
	require.NoError(t, ctx.Err())
	p.refused(p.ctx, t, b)
	require.NoError(t, unlock())
	free(t, b)
}

// G9: Close ends waiting calls, and leaves no goroutine: otherwise the bubble of such a Deployment does not end.
func closeOfWaiters(t *testing.T, p *place, a, b rlock.Locker) {
	_, unlock, err := a.Lock(p.ctx)
	require.NoError(t, err)
	waiter := p.lockAndWait(t, b)
	p.closeSide(1)
	got := waiter.get(t, p.soon)
	require.ErrorIs(t, got.err, rlock.ErrClosed)
	require.ErrorIs(t, got.unlock(), rlock.ErrNotHeld)
	_, _, err = b.Lock(p.ctx)
	require.ErrorIs(t, err, rlock.ErrClosed)
	require.NoError(t, unlock())
	p.closeSide(0)
}

// G9: Close cancels the ctx of a section. The hold stays, and its unlock works.
func closeOfHolders(t *testing.T, p *place, a, b rlock.Locker) {
	ctx, unlock, err := a.Lock(p.ctx)
	require.NoError(t, err)
	p.closeSide(0)
	require.Error(t, ctx.Err())
	require.ErrorIs(t, context.Cause(ctx), rlock.ErrClosed)
	require.NotErrorIs(t, context.Cause(ctx), rlock.ErrLost)
	p.refused(p.ctx, t, b)
	require.NoError(t, unlock())
	free(t, b)
}

// Shutdown refuses waiters and new Locks, and lets a section run to its end, with further levels. Then others get the lock.
func shutdown(t *testing.T, p *place, a, b rlock.Locker) {
	ctx, unlock, err := a.Lock(p.ctx)
	require.NoError(t, err)
	waiter := p.lockAndWait(t, b)
	ended := p.shutDown(p.ctx, 1)
	require.ErrorIs(t, waiter.get(t, p.soon).err, rlock.ErrClosed)
	for range p.clients[1] {
		require.NoError(t, <-ended)
	}
	down := p.shutDown(p.ctx, 0)
	redistest.Eventually(t, p.soon, func() bool {
		_, _, err = a.TryLock(p.ctx, 0)
		return errors.Is(err, rlock.ErrClosed)
	}, "a Lock is refused")
	if p.kind.without[refusesReentry] != "" {
		_, inner, err := a.Lock(ctx)
		require.NoError(t, err)
		require.NoError(t, inner())
	}
	require.NoError(t, ctx.Err())
	redistest.Eventually(t, p.soon, func() bool { return len(p.keys(t)) == p.kind.keys }, "all of it is held, as before")
	require.Empty(t, down)
	require.NoError(t, unlock())
	for _, c := range p.clients[0] {
		require.NoError(t, <-down)
		require.Zero(t, c.Stats().Holds)
	}
}

// When its time is over, Shutdown cancels the section, whose unlock works, and no further level opens: nothing would cancel it.
func shutdownOutOfTime(t *testing.T, p *place, a, b rlock.Locker) {
	ctx, unlock, err := a.Lock(p.ctx)
	require.NoError(t, err)
	over, cancel := context.WithCancel(p.ctx)
	cancel()
	down := p.shutDown(over, 0)
	<-ctx.Done()
	require.ErrorIs(t, context.Cause(ctx), rlock.ErrClosed)
	if p.kind.without[refusesReentry] != "" {
		_, _, err = a.Lock(context.WithoutCancel(ctx))
		require.ErrorIs(t, err, rlock.ErrClosed)
	}
	require.NoError(t, unlock())
	for range p.clients[0] {
		require.ErrorIs(t, <-down, context.Canceled)
	}
	free(t, b)
}

// Do, TryDo and DoValue hold the lock while the function runs, however it ends.
func doSections(t *testing.T, p *place, a, b rlock.Locker) {
	l, ok := a.(interface {
		Do(context.Context, func(context.Context) error) error
		TryDo(context.Context, time.Duration, func(context.Context) error) error
	})
	require.True(t, ok)
	ctx, mine := p.ctx, errors.New("mine")
	for _, do := range []func(func(context.Context) error) error{
		func(fn func(context.Context) error) error { return l.Do(ctx, fn) },
		// It waits: one server of a quorum may still have its share of the last hold, and another may be slow.
		func(fn func(context.Context) error) error { return l.TryDo(ctx, rlock.DefaultWatchdogTimeout/3, fn) },
		func(fn func(context.Context) error) error {
			value, err := rlock.DoValue(ctx, a, func(ctx context.Context) (int, error) { return 42, fn(ctx) })
			require.Equal(t, 42, value)
			return err
		},
	} {
		section := func(result error) func(context.Context) error {
			return func(ctx context.Context) error {
				require.NoError(t, ctx.Err())
				p.refused(rlock.Detach(ctx), t, a)
				p.refused(p.ctx, t, b)
				return result
			}
		}
		require.NoError(t, do(section(nil)))
		free(t, b)
		require.Same(t, mine, do(section(mine)))
		free(t, b)
		require.PanicsWithValue(t, "boom", func() {
			_ = do(func(context.Context) error { panic("boom") })
		})
		free(t, b)
		ended := make(chan struct{})
		go func() { // ends itself
			defer close(ended)
			_ = do(func(context.Context) error { runtime.Goexit(); return nil })
		}()
		<-ended
		free(t, b)
	}
	_, unlock, err := b.Lock(ctx)
	require.NoError(t, err)
	require.ErrorIs(t, l.TryDo(ctx, 0, func(context.Context) error { panic("not with the lock") }), rlock.ErrNotAcquired)
	require.NoError(t, unlock())
}

// G3: a hold with WithAsked learns of waiters of both sides, also of those that were there before it began. Its Clients are told: they would
// look for waiters only after a third of an hour.
func asked(t *testing.T, p *place, a, b rlock.Locker) {
	notAsked := func(ctx context.Context) {
		t.Helper()
		select {
		case <-rlock.Asked(ctx):
			t.Fatal("nobody waits")
		default:
		}
	}
	awaitAsked := func(ctx context.Context) {
		t.Helper()
		select {
		case <-rlock.Asked(ctx):
		case <-time.After(atMost):
			t.Fatal("not asked")
		}
	}
	for _, waiters := range [][]rlock.Locker{{a}, {b}, {a, a}, {a, b}, {b, a}} {
		ctx, unlock, err := a.Lock(p.ctx)
		require.NoError(t, err)
		notAsked(ctx)
		result := make(chan attempt, len(waiters))
		for _, l := range waiters {
			waiter := lockAsync(t, l)
			awaitAsked(ctx)
			waiter.stillWaits(t)
			go func() { result <- <-waiter.result }() // ends with the Lock
		}
		<-time.After(10 * time.Millisecond) // the last one is on its way
		require.NoError(t, unlock())
		require.True(t, rlock.Asked(ctx) == nil, "the hold has ended")
		for i := range waiters {
			got := <-result
			require.NoError(t, got.err)
			if i < len(waiters)-1 {
				awaitAsked(got.ctx)
			} else {
				notAsked(got.ctx)
			}
			require.NoError(t, got.unlock())
		}
	}
}

// G1, G4: a hold moves to the other side. Until its unlock there, nobody else gets in; then the waiters of both sides do.
func export(t *testing.T, p *place, a, b rlock.Locker) {
	ctx, unlock, err := a.Lock(p.ctx)
	require.NoError(t, err)
	waiters := []pending{p.lockAndWait(t, b), lockAsync(t, a)}
	<-time.After(100 * time.Millisecond) // they know how long the lease lasts
	ticket, err := rlock.Export(ctx, rlock.WithTicketTime(time.Hour))
	require.NoError(t, err)
	require.ErrorIs(t, context.Cause(ctx), rlock.ErrExported)
	require.NoError(t, unlock())
	p.refused(p.ctx, t, a)
	section, unlock, err := p.clients[1][0].Adopt(p.ctx, ticket)
	require.NoError(t, err)
	for _, c := range []*rlock.Client{p.clients[0][0], p.clients[1][0]} {
		_, again, err := c.Adopt(p.ctx, ticket)
		require.ErrorIs(t, err, rlock.ErrTicket)
		require.ErrorIs(t, again(), rlock.ErrNotHeld)
	}
	p.refused(p.ctx, t, a)
	waiters[0].stillWaits(t)
	waiters[1].stillWaits(t)
	require.NoError(t, section.Err())
	require.NoError(t, unlock())
	enterInTurn(t, waiters, rlock.DefaultWatchdogTimeout/3)
}

// enterInTurn lets waiters get the lock in any order, each in time. It returns when the first one did.
func enterInTurn(t *testing.T, waiters []pending, within time.Duration) (first time.Time) {
	t.Helper()
	result := make(chan attempt)
	for _, w := range waiters {
		go func() { result <- <-w.result }() // ends with the Lock
	}
	for i := range waiters {
		select {
		case got := <-result:
			if i == 0 {
				first = time.Now()
			}
			require.NoError(t, got.err)
			require.NoError(t, got.unlock())
		case <-time.After(within):
			t.Fatal("nobody gets in")
		}
	}
	return first
}

// G4: waiters of both sides learn how long a ticket lasts, and get in when it expires.
func ticketExpires(t *testing.T, p *place, a, b rlock.Locker) {
	const lasts = time.Second
	ctx, unlock, err := a.Lock(p.ctx)
	require.NoError(t, err)
	waiters := []pending{p.lockAndWait(t, b), lockAsync(t, a)}
	<-time.After(100 * time.Millisecond) // they know how long the lease lasts
	began := time.Now()
	ticket, err := rlock.Export(ctx, rlock.WithTicketTime(lasts))
	require.NoError(t, err)
	require.NoError(t, unlock())
	first := enterInTurn(t, waiters, lasts+2*courtesy+p.soon)
	require.GreaterOrEqual(t, first.Sub(began), lasts)
	_, _, err = p.clients[1][0].Adopt(p.ctx, ticket)
	require.ErrorIs(t, err, rlock.ErrTicket)
}
