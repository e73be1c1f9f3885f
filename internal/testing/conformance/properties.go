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

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
	"github.com/go-rlock/rlock/rlock"
)

// courtesy is how long waiters of read/write locks let other libraries ask first: 10 ms, by a timer that is rounded up.
const courtesy = 11 * time.Millisecond

var properties = []property{
	{name: "exclusion", holds: exclusion},
	{name: refusedNow, holds: refusedAtOnce},
	{name: "refused after a wait", holds: refusedAfterAWait},
	{name: "wake-up", holds: wakeUp},
	{name: "wake-up in turn", holds: wakeUpInTurn, timed: true},
	{name: "wake-up here", holds: wakeUpHere},
	{name: reenters, holds: reentry},
	{name: refusesReentry, holds: reentryRefused},
	{name: "count", holds: count},
	{name: "loss found by a level", holds: lossFoundByALevel},
	{name: "levels in silence", holds: levelsInSilence, renewed: true, cuts: true},
	{name: "siblings", holds: siblings},
	{name: "detach", holds: detach},
	{name: "ctx", holds: ctxOfTheSection},
	{name: "second unlock", holds: secondUnlock},
	{name: "cancelled wait", holds: cancelledWait},
	{name: "deadline", holds: deadline},
	{name: "ctx done before", holds: ctxDoneBefore},
	{name: "WithMaxWait", holds: boundedWait, timed: true, options: []rlock.Option{rlock.WithMaxWait(maxWait)}},
	{name: "WaitOnly", holds: waitOnly, renewed: true},
	{name: "Hold", holds: hold, renewed: true, options: []rlock.Option{rlock.WithAsked()}},
	{name: "key deleted", holds: keyDeleted, renewed: true},
	{name: endsByOtherHand, holds: forcedUnlock, renewed: true},
	{name: "connection lost", holds: connectionLost, renewed: true, cuts: true},
	{name: unlockedUnheard, holds: unlockInSilence, timed: true, cuts: true},
	{name: "renewal", holds: renewal, renewed: true},
	{name: "Close of waiters", holds: closeOfWaiters},
	{name: "Close of holders", holds: closeOfHolders},
	{name: "Shutdown", holds: shutdown},
	{name: "Shutdown out of time", holds: shutdownOutOfTime, timed: true},
	{name: "Do", holds: doSections},
	{name: "asked", holds: asked, watchdog: time.Hour, options: []rlock.Option{rlock.WithAsked()}},
	{name: "asked after", holds: askedAfter, timed: true, watchdog: time.Hour, options: []rlock.Option{rlock.WithAskedAfter(askedTerm)}},
	{name: moves, holds: export},
	{name: expires, holds: ticketExpires, timed: true},
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
	require.Less(t, time.Since(began), longWatchdog*2/3, "nobody sleeps until a lease ends")
}

// TryLock(0) is refused at once while the lock is held, by either side, and gets it when it is free.
func refusedAtOnce(t *testing.T, p *place, a, b rlock.Locker) {
	_, unlock, err := a.TryLock(p.ctx, 0)
	require.NoError(t, err)
	p.refused(p.ctx, t, a)
	p.refused(p.ctx, t, b)
	require.NoError(t, unlock())
	_, unlock, err = b.TryLock(p.ctx, 0)
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
			_, _, err := l.TryLock(p.ctx, wait)
			require.ErrorIs(t, err, rlock.ErrNotAcquired)
			require.NotErrorIs(t, err, context.DeadlineExceeded, "the caller's ctx is not done")
			var refusal *rlock.NotAcquiredError
			require.ErrorAs(t, err, &refusal)
			require.Contains(t, l.Name(), refusal.Name, "of several locks: the one in the way")
			if wait > max(time.Millisecond, p.d.Soon) { // otherwise it may be too short for an answer
				require.NotErrorIs(t, err, rlock.ErrUnreachable)
			}
			require.GreaterOrEqual(t, refusal.Waited, wait)
			require.LessOrEqual(t, time.Since(began), max(0, wait)+p.d.Soon)
		}
	}
	require.NoError(t, unlock())
	free(t, b)
}

// G4: a waiter gets the lock long before the former holder's lease would have ended.
func wakeUp(t *testing.T, p *place, a, b rlock.Locker) {
	_, unlock, err := a.Lock(p.ctx)
	require.NoError(t, err)
	waiter := p.lockAndWait(t, b)
	waiter.stillWaits(t)
	require.NoError(t, unlock())
	got := waiter.get(t, longWatchdog/3)
	require.NoError(t, got.err)
	require.NoError(t, got.ctx.Err())
	require.NoError(t, got.unlock())
}

// The same again with the sides exchanged. After each, the subscriptions end by themselves.
func wakeUpInTurn(t *testing.T, p *place, a, b rlock.Locker) {
	for _, l := range [][2]rlock.Locker{{a, b}, {b, a}} {
		wakeUp(t, p, l[0], l[1])
		p.awaitSilence(t, atMost)
	}
}

// The same for a waiter in the holder's own process.
func wakeUpHere(t *testing.T, p *place, a, _ rlock.Locker) {
	_, unlock, err := a.Lock(p.ctx)
	require.NoError(t, err)
	waiters := []pending{p.lockAndWait(t, a), lockAsync(t, a), lockAsync(t, a)}
	require.NoError(t, unlock())
	enterInTurn(t, waiters, longWatchdog/3)
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
	p.lost(t, ctx, a, unlockInner)
	require.LessOrEqual(t, time.Since(began), time.Second+p.d.Soon)
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
	require.LessOrEqual(t, time.Since(began), p.d.Soon)
	p.lost(t, ctx, a, unlockInner)
	require.LessOrEqual(t, time.Since(began), p.watchdog()+p.d.Soon)
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
	keys := p.allHold(t)
	waiter := p.lockAndWait(t, b)
	waiter.stillWaits(t)
	waiter.cancel()
	got := waiter.get(t, p.d.Soon)
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
	require.LessOrEqual(t, time.Since(began), wait+p.d.Soon)
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
	_, unlock, err := a.TryLock(p.ctx, longWatchdog/3) // a Lock has a second for its answer
	require.NoError(t, err)
	began := time.Now()
	_, none, err := b.Lock(p.ctx)
	require.ErrorIs(t, err, rlock.ErrNotAcquired)
	require.NotErrorIs(t, err, context.DeadlineExceeded)
	require.GreaterOrEqual(t, time.Since(began), maxWait)
	require.LessOrEqual(t, time.Since(began), maxWait+p.d.Soon)
	require.ErrorIs(t, none(), rlock.ErrNotHeld)
	p.answered(t, 1)
	p.refused(p.ctx, t, b)
	waits := lockAsync(t, lockFunc(func(ctx context.Context) (context.Context, rlock.UnlockFunc, error) {
		return b.TryLock(ctx, longWatchdog/3)
	}))
	<-time.After(maxWait + maxWait/2)
	require.NoError(t, unlock())
	got := waits.get(t, longWatchdog/3)
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
	p.lost(t, ctx, b, unlock)
	free(t, a)
}
