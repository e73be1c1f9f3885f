package rlock_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// overlap counts how many goroutines are in a section at once.
type overlap struct{ now, most atomic.Int32 }

func (o *overlap) enter() {
	n := o.now.Add(1)
	for {
		most := o.most.Load()
		if n <= most || o.most.CompareAndSwap(most, n) {
			return
		}
	}
}

func (o *overlap) leave() { o.now.Add(-1) }

// fanOut locks in 8 goroutines under ctx and returns how many were inside at once. Those that share the lock stay inside
// until all have arrived.
func fanOut(t *testing.T, ctx context.Context, m *rlock.Mutex, share bool) int32 {
	t.Helper()
	const n = 8
	var o overlap
	var wg, inside sync.WaitGroup
	inside.Add(n)
	for range n {
		wg.Go(func() {
			err := m.Do(ctx, func(ctx context.Context) error {
				o.enter()
				defer o.leave()
				if share {
					inside.Done()
					inside.Wait()
				}
				count, err := m.HoldCount(ctx) // a round trip, in which others could get in
				assert.Positive(t, count)
				return err
			})
			assert.NoError(t, err)
		})
	}
	wg.Wait()
	return o.most.Load()
}

func TestGoroutinesThatFanOutBeforeLockExcludeEachOther(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		require.EqualValues(t, 1, fanOut(t, context.Background(), b.Mutex(b.name), false))
		require.False(t, b.exists(t, b.name))
	})
}

func TestGoroutinesThatFanOutInsideShareTheHold(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		m := b.Mutex(b.name)
		err := m.Do(context.Background(), func(ctx context.Context) error {
			assert.EqualValues(t, 8, fanOut(t, ctx, m, true))
			assert.Equal(t, map[string]int64{rlock.Owner(ctx): 1}, b.fields(t, b.name))
			return nil
		})
		require.NoError(t, err)
		require.False(t, b.exists(t, b.name))
	})
}

func TestDetachedGoroutinesCompete(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		m := b.Mutex(b.name)
		ctx, unlock, err := m.Lock(context.Background())
		require.NoError(t, err)

		detached := rlock.Detach(ctx)
		require.Empty(t, rlock.Owner(detached))
		_, _, err = m.TryLock(detached, 0)
		require.ErrorIs(t, err, rlock.ErrNotAcquired)

		waiting := context.WithoutCancel(detached)
		done := make(chan int32)
		go func() { done <- fanOut(t, waiting, m, false) }()
		require.NoError(t, unlock())
		require.EqualValues(t, 1, <-done)
		require.ErrorIs(t, detached.Err(), context.Canceled, "a detached ctx still ends with the section")
	})
}

// Each hold has its own owner. Lock re-enters the hold of its lock in ctx, through any handle and under any locks taken in between.
func TestEachHoldHasItsOwner(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		other := b.name + ":other"
		ctx, unlock, err := b.Mutex(b.name).Lock(context.Background())
		require.NoError(t, err)
		ctx2, unlock2, err := b.Mutex(other).Lock(ctx)
		require.NoError(t, err)
		ctx3, unlock3, err := b.Mutex(b.name).Lock(ctx2)
		require.NoError(t, err)
		require.NotEqual(t, rlock.Owner(ctx), rlock.Owner(ctx2))
		require.Equal(t, rlock.Owner(ctx), rlock.Owner(ctx3))
		b.awaitFields(t, b.name, map[string]int64{rlock.Owner(ctx): 2})
		require.Equal(t, map[string]int64{rlock.Owner(ctx2): 1}, b.fields(t, other))
		require.NoError(t, unlock3())
		require.NoError(t, unlock2())
		require.NoError(t, unlock())
	})
}

// Goroutines of one section, for example in an errgroup, exclude each other on all other locks, although their ctx carries a
// hold.
func TestGoroutinesInsideExcludeEachOtherOnOtherLocks(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		err := b.Mutex(b.name).Do(context.Background(), func(ctx context.Context) error {
			assert.EqualValues(t, 1, fanOut(t, ctx, b.Mutex(b.name+":item"), false))
			return nil
		})
		require.NoError(t, err)
	})
}

// Locks of the same name at two Clients are different locks, even in the same Redis: one Client does not re-enter the other's hold.
func TestHoldsOfTwoClients(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		second := newClient(t, b.rdb)
		ctx, unlock, err := b.Mutex(b.name).Lock(context.Background())
		require.NoError(t, err)
		_, _, err = second.Mutex(b.name).TryLock(ctx, 0)
		require.ErrorIs(t, err, rlock.ErrNotAcquired)
		n, err := second.Mutex(b.name).HoldCount(ctx)
		require.NoError(t, err)
		require.Zero(t, n, "HoldCount distinguishes the Clients as well")
		require.NoError(t, unlock())
	})
}

// Hand-over-hand locking: a lock taken with the ctx from before the first lock outlives the first. Taken with the ctx of the first
// section, it ends with that section.
func TestHandOverHand(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		before := context.Background()
		first, unlockFirst, err := b.Mutex(b.name + ":1").Lock(before)
		require.NoError(t, err)
		second, unlockSecond, err := b.Mutex(b.name + ":2").Lock(before)
		require.NoError(t, err)
		inner, unlockInner, err := b.Mutex(b.name + ":3").Lock(first)
		require.NoError(t, err)
		require.NoError(t, unlockFirst())
		require.NoError(t, second.Err())
		require.ErrorIs(t, inner.Err(), context.Canceled)
		require.NoError(t, unlockSecond())
		require.NoError(t, unlockInner(), "the hold itself has not ended")
		require.False(t, b.exists(t, b.name+":3"))
	})
}

// A loss is sticky until unlock: Lock under the ctx of a lost level returns ErrLost until that level is unlocked, even through
// context.WithoutCancel. After the unlock it competes.
func TestLossIsStickyUntilUnlock(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		m := b.Mutex(b.name)
		ctx, unlock, err := m.Lock(context.Background())
		require.NoError(t, err)
		owner := rlock.Owner(ctx)
		b.loseLock(t, ctx, m)
		require.Empty(t, rlock.Owner(ctx))
		escaped := context.WithoutCancel(ctx)
		for range 2 {
			_, _, err = m.Lock(escaped)
			require.ErrorIs(t, err, rlock.ErrLost)
			require.NotErrorIs(t, err, rlock.ErrNotAcquired)
			_, _, err = m.TryLock(escaped, 0)
			require.ErrorIs(t, err, rlock.ErrLost)
		}
		var loss *rlock.LostError
		require.ErrorAs(t, err, &loss)
		require.Equal(t, b.name, loss.Name)
		require.Equal(t, owner, loss.Owner)
		require.Equal(t, rlock.LostGone, loss.Reason)
		require.WithinDuration(t, time.Now(), loss.Since, testTimeout)
		require.ErrorIs(t, unlock(), rlock.ErrLost)
		again, unlock, err := m.Lock(escaped)
		require.NoError(t, err, "after the unlock, Lock competes")
		require.NotEqual(t, owner, rlock.Owner(again))
		require.NoError(t, unlock())
	})
}

// Lock under the ctx of an unlocked level competes, even while another level of the hold is open.
func TestUnlockedLevelOfALiveHoldCompetes(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		m := b.Mutex(b.name)
		outer, unlockOuter, err := m.Lock(context.Background())
		require.NoError(t, err)
		_, unlockInner, err := m.Lock(context.WithoutCancel(outer))
		require.NoError(t, err)
		require.NoError(t, unlockOuter())
		require.NotEmpty(t, rlock.Owner(outer), "the hold is still open")
		_, _, err = m.TryLock(context.WithoutCancel(outer), 0)
		require.ErrorIs(t, err, rlock.ErrNotAcquired)
		_, _, err = m.Lock(outer) //rlockvet:ignore it has to fail
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorContains(t, err, "unlocked", "the error says why ctx is done")
		require.NoError(t, unlockInner())
		require.Empty(t, rlock.Owner(outer))
	})
}

func TestInnerDoubleUnlockLeavesTheOuterHold(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		m := b.Mutex(b.name)
		ctx, unlock, err := m.Lock(context.Background())
		require.NoError(t, err)
		inner, unlockInner, err := m.Lock(ctx)
		require.NoError(t, err)

		require.NoError(t, unlockInner())
		require.ErrorIs(t, unlockInner(), rlock.ErrNotHeld)
		require.ErrorIs(t, inner.Err(), context.Canceled)
		require.NoError(t, ctx.Err())
		require.Equal(t, map[string]int64{rlock.Owner(ctx): 1}, b.fields(t, b.name))

		require.NoError(t, unlock())
		require.False(t, b.exists(t, b.name))
		err = unlock()
		require.ErrorIs(t, err, rlock.ErrNotHeld)
		require.NotErrorIs(t, err, rlock.ErrLost)
		require.ErrorContains(t, err, b.name)
	})
}

func TestUnlockAfterCancel(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		parent, cancel := context.WithCancel(context.Background())
		ctx, unlock, err := b.Mutex(b.name).Lock(parent)
		require.NoError(t, err)
		cancel()
		<-ctx.Done()
		require.True(t, b.exists(t, b.name), "cancellation alone does not unlock")
		require.NoError(t, unlock())
		require.False(t, b.exists(t, b.name))
	})
}

func TestEscapedContextsExcludeEachOther(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		m := b.Mutex(b.name)
		ctx, unlock, err := m.Lock(context.Background())
		require.NoError(t, err)
		escaped := context.WithoutCancel(ctx)
		owner := rlock.Owner(ctx)
		require.NoError(t, unlock())

		require.EqualValues(t, 1, fanOut(t, escaped, m, false))
		again, unlock, err := m.Lock(escaped)
		require.NoError(t, err)
		require.NotEqual(t, owner, rlock.Owner(again), "each field belongs to one hold")
		require.NoError(t, unlock())
	})
}

func TestTryLockWaitDoesNotBoundTheSection(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		const wait = 2 * time.Second // bounds the acquisition only
		ctx, unlock, err := b.Mutex(b.name).TryLock(context.Background(), wait)
		require.NoError(t, err)
		_, hasDeadline := ctx.Deadline()
		require.False(t, hasDeadline)
		select {
		case <-ctx.Done():
			t.Fatal(context.Cause(ctx))
		case <-time.After(wait + wait/10):
		}
		require.NoError(t, unlock())
	})
}

func TestKeyDeletedInTheSection(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		const watchdog = 2 * shortWatchdog
		b := newFixture(t, rlock.Options{WatchdogTimeout: watchdog})
		began := time.Now()
		err := b.Mutex(b.name).Do(context.Background(), func(ctx context.Context) error {
			require.NoError(t, b.do(t, "DEL", b.name).Error())
			<-ctx.Done()
			assert.ErrorIs(t, context.Cause(ctx), rlock.ErrLost)
			assert.ErrorContains(t, context.Cause(ctx), b.name)
			return nil
		})
		require.ErrorIs(t, err, rlock.ErrLost)
		require.ErrorIs(t, err, rlock.ErrNotHeld)
		require.Less(t, time.Since(began), watchdog*5/6, "the renewal detects the loss, before the lease ends")
	})
}

func TestKeyDeletedAndUnlockedBeforeARenewal(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		m := b.Mutex(b.name)
		outer, unlock, err := m.Lock(context.Background())
		require.NoError(t, err)
		_, unlockInner, err := m.Lock(outer)
		require.NoError(t, err)
		require.NoError(t, b.do(t, "DEL", b.name).Error())
		require.NoError(t, unlockInner(), "an inner unlock does not ask Redis")
		b.loseLock(t, outer, m)
		require.ErrorIs(t, context.Cause(outer), rlock.ErrLost)
		_, _, err = m.Lock(outer)
		require.ErrorIs(t, err, rlock.ErrLost)
		require.ErrorIs(t, unlock(), rlock.ErrLost)
		require.False(t, b.exists(t, b.name))
	})
}

func TestReentryIntoALostHold(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		m := b.Mutex(b.name)
		ctx, unlock, err := m.Lock(context.Background())
		require.NoError(t, err)
		b.loseLock(t, ctx, m)
		back, noop, err := m.Lock(ctx)
		require.ErrorIs(t, err, rlock.ErrLost)
		require.Equal(t, ctx, back)
		require.ErrorIs(t, noop(), rlock.ErrNotHeld)
		require.ErrorIs(t, context.Cause(ctx), rlock.ErrLost)
		require.ErrorIs(t, unlock(), rlock.ErrLost)
		require.False(t, b.exists(t, b.name), "a re-entry must not start a new hold")
	})
}

func TestPanicReleasesAndGoesOn(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		require.PanicsWithValue(t, "boom", func() {
			_ = b.Mutex(b.name).Do(context.Background(), func(context.Context) error { panic("boom") })
		})
		require.False(t, b.exists(t, b.name))
	})
}

func TestDoJoinsErrors(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		boom := errors.New("boom")
		err := b.Mutex(b.name).Do(context.Background(), func(context.Context) error { return boom })
		require.ErrorIs(t, err, boom)
		err = b.Mutex(b.name).Do(context.Background(), func(context.Context) error {
			b.do(t, "DEL", b.name)
			return boom
		})
		require.ErrorIs(t, err, boom)
		require.ErrorIs(t, err, rlock.ErrLost)
	})
}

// Three layers each lock the same three locks, and unlock in random order. The counts are right after every step, and those in
// Redis follow.
func TestLayersUnlockedInAnyOrder(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		for i := range 20 {
			names := []string{b.name + ":a", b.name + ":b", b.name + ":c"}
			type level struct {
				name   string
				unlock rlock.UnlockFunc
			}
			var levels []level
			ctx, want, owners := context.Background(), map[string]int64{}, map[string]string{}
			check := func() {
				t.Helper()
				for _, name := range names {
					if want[name] == 0 {
						require.False(t, b.exists(t, name))
						continue
					}
					if i == 0 {
						b.awaitFields(t, name, map[string]int64{owners[name]: want[name]})
					}
					require.Contains(t, b.fields(t, name), owners[name])
					n, err := b.Mutex(name).HoldCount(context.WithoutCancel(ctx))
					require.NoError(t, err)
					require.EqualValues(t, want[name], n)
				}
			}
			for range 3 {
				for _, name := range names {
					inner, unlock, err := b.Mutex(name).Lock(ctx)
					require.NoError(t, err)
					ctx = inner
					want[name]++
					owners[name] = rlock.Owner(ctx)
					levels = append(levels, level{name, unlock})
					check()
				}
			}
			rand.Shuffle(len(levels), func(i, j int) { levels[i], levels[j] = levels[j], levels[i] })
			for _, l := range levels {
				require.NoError(t, l.unlock())
				want[l.name]--
				check()
			}
		}
	})
}

func TestOwnerAndToken(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		require.Empty(t, rlock.Owner(context.Background()))
		_, ok := rlock.FencingToken(context.Background(), b.name)
		require.False(t, ok)

		var last int64
		for range 3 {
			ctx, unlock, err := b.FencedMutex(b.name).Lock(context.Background())
			require.NoError(t, err)
			token, ok := rlock.FencingToken(ctx, b.name)
			require.True(t, ok)
			require.Greater(t, token, last)
			inner, unlockInner, err := b.FencedMutex(b.name).Lock(ctx)
			require.NoError(t, err)
			again, _ := rlock.FencingToken(inner, b.name)
			require.Equal(t, token, again, "a re-entry has the token of its hold")
			plain, unlockPlain, err := b.Mutex(b.name).Lock(inner)
			require.NoError(t, err, "a plain handle on the same name is the same lock")
			inPlain, _ := b.Mutex(b.name).FencingToken(plain)
			require.Equal(t, again, inPlain)
			_, ok = rlock.FencingToken(ctx, b.name+"x")
			require.False(t, ok)
			for _, u := range []rlock.UnlockFunc{unlockPlain, unlockInner, unlock} {
				require.NoError(t, u())
			}
			last = token
		}
		n, err := b.do(t, "GET", "redisson_lock_token:{"+b.name+"}").AsInt64()
		require.NoError(t, err)
		require.Equal(t, last, n)
	})
}

// The innermost hold of a name counts, in whichever Redis it is.
func TestFencingTokensOfTwoServers(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		a, b := newFixture(t), fixture{rdb: redistest.Start(t).Client(t)}
		b.Client, b.name = newClient(t, b.rdb), a.name
		inA, unlockA, err := a.FencedMutex(a.name).Lock(context.Background())
		require.NoError(t, err)
		fromA, ok := rlock.FencingToken(inA, a.name)
		require.True(t, ok)
		inB, unlockB, err := b.Mutex(a.name).Lock(inA)
		require.NoError(t, err)
		_, ok = rlock.FencingToken(inB, a.name)
		require.False(t, ok, "a plain hold has no token, and takes none from another Redis")
		token, ok := a.Mutex(a.name).FencingToken(inB)
		require.True(t, ok)
		require.Equal(t, fromA, token)
		_, ok = b.Mutex(a.name).FencingToken(inB)
		require.False(t, ok)
		require.NoError(t, unlockB())
		require.NoError(t, unlockA())
	})
}
