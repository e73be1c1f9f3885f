package rlock_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// Goroutines of one section, for example in an errgroup, share its hold. On all other locks they exclude each other, although their ctx
// carries a hold.
func TestGoroutinesOfASection(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		m, item := b.Mutex(b.name), b.Mutex(b.name+":item")
		require.NoError(t, m.Do(context.Background(), func(ctx context.Context) error {
			const n = 8
			var wg, inside sync.WaitGroup
			inside.Add(n)
			for range n {
				wg.Go(func() {
					assert.NoError(t, m.Do(ctx, func(context.Context) error {
						inside.Done()
						inside.Wait() // for all of them
						return nil
					}))
				})
			}
			wg.Wait()
			assert.Equal(t, map[string]int64{rlock.Owner(ctx): 1}, b.fields(t, b.name))
			return item.Do(ctx, func(context.Context) error {
				assert.ErrorIs(t, item.TryDo(ctx, 0, nothing), rlock.ErrNotAcquired)
				return nil
			})
		}))
		require.False(t, b.exists(t, b.name))
	})
}

// Each hold has its own owner. Lock re-enters the hold of its lock in ctx, through any handle and under any locks taken in between.
func TestEachHoldHasItsOwner(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		other := b.name + ":other"
		ctx, unlock := enter(t, context.Background(), b.Mutex(b.name))
		ctx2, unlock2 := enter(t, ctx, b.Mutex(other))
		ctx3, unlock3 := enter(t, ctx2, b.Mutex(b.name))
		require.NotEqual(t, rlock.Owner(ctx), rlock.Owner(ctx2))
		require.Equal(t, rlock.Owner(ctx), rlock.Owner(ctx3))
		b.awaitFields(t, b.name, map[string]int64{rlock.Owner(ctx): 2})
		require.Equal(t, map[string]int64{rlock.Owner(ctx2): 1}, b.fields(t, other))
		require.NoError(t, unlock3())
		require.NoError(t, unlock2())
		owner := rlock.Owner(ctx)
		b.loseLock(t, ctx, b.Mutex(b.name))
		require.Empty(t, rlock.Owner(ctx))
		var loss *rlock.LostError
		require.ErrorAs(t, unlock(), &loss)
		require.Equal(t, b.name, loss.Name)
		require.Equal(t, owner, loss.Owner)
		require.Equal(t, rlock.LostGone, loss.Reason)
		require.WithinDuration(t, time.Now(), loss.Since, rlock.DefaultWatchdogTimeout)
	})
}

// Hand-over-hand locking: a lock taken with the ctx from before the first lock outlives the first. Taken with the ctx of the first
// section, it ends with that section.
func TestHandOverHand(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		before := context.Background()
		first, unlockFirst := enter(t, before, b.Mutex(b.name+":1"))
		second, unlockSecond := enter(t, before, b.Mutex(b.name+":2"))
		inner, unlockInner := enter(t, first, b.Mutex(b.name+":3"))
		require.NoError(t, unlockFirst())
		require.NoError(t, second.Err())
		require.ErrorIs(t, inner.Err(), context.Canceled)
		require.NoError(t, unlockSecond())
		require.NoError(t, unlockInner(), "the hold itself has not ended")
		require.False(t, b.exists(t, b.name+":3"))
	})
}

// Three layers each lock the same three locks, and unlock in random order. The counts are right after every step, and those in
// Redis follow.
func TestLayersUnlockedInAnyOrder(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
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
					n := answer(b.Mutex(name).HoldCount(context.WithoutCancel(ctx))).ok(t)
					require.EqualValues(t, want[name], n)
				}
			}
			for range 3 {
				for _, name := range names {
					inner, unlock := enter(t, ctx, b.Mutex(name))
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
	virtual(t, func(t *testing.T, b fixture) {
		require.Empty(t, rlock.Owner(context.Background()))
		_, ok := rlock.FencingToken(context.Background(), b.name)
		require.False(t, ok)

		var last int64
		for range 3 {
			ctx, unlock := enter(t, context.Background(), b.FencedMutex(b.name))
			token, ok := rlock.FencingToken(ctx, b.name)
			require.True(t, ok)
			require.Greater(t, token, last)
			inner, unlockInner := enter(t, ctx, b.FencedMutex(b.name))
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
		answer(b.do(t, "GET", "redisson_lock_token:{"+b.name+"}").AsInt64()).is(t, last)
	})
}

// The innermost hold of a name counts, in whichever Redis it is.
func TestFencingTokensOfTwoServers(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		a, b := newFixture(t), fixture{rdb: redistest.Start(t).Client(t)}
		b.Client, b.name = newClient(t, b.rdb), a.name
		inA, unlockA := enter(t, context.Background(), a.FencedMutex(a.name))
		fromA, ok := rlock.FencingToken(inA, a.name)
		require.True(t, ok)
		inB, unlockB := enter(t, inA, b.Mutex(a.name))
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

// WithoutReentry refuses a caller who already holds the lock, through whichever handle. It fails at once and sends no command.
func TestWithoutReentry(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		c, proxy, past := behindProxy(t, anyWay)
		var sent atomic.Int32
		proxy.OnRequest(func(cmd []string) redistest.Action {
			if isScript(cmd) {
				sent.Add(1)
			}
			return redistest.Pass
		})
		m, other := c.Mutex(past.name, rlock.WithoutReentry()), c.Mutex(past.name)
		for _, outer := range []*rlock.Mutex{m, other} {
			ctx, unlock := enter(t, context.Background(), outer)
			before := sent.Load()
			done, cancel := context.WithCancel(ctx)
			cancel()
			for _, ctx := range []context.Context{ctx, done} {
				same, again, err := m.Lock(ctx)
				require.ErrorIs(t, err, rlock.ErrReentry)
				require.EqualError(t, err, `rlock: "`+past.name+`": this ctx holds the lock already, `+
					`and WithoutReentry rules out re-entry (to compete with that hold, use Detach)`)
				require.Equal(t, ctx, same)
				require.ErrorIs(t, again(), rlock.ErrNotHeld)
				_, _, err = m.TryLock(ctx, time.Hour)
				require.ErrorIs(t, err, rlock.ErrReentry)
			}
			require.Equal(t, before, sent.Load())
			require.NoError(t, ctx.Err(), "the hold stays as it is")

			inner, unlockInner, err := other.Lock(ctx)
			require.NoError(t, err, "another handle re-enters")
			requireLockFails(t, inner, m, rlock.ErrReentry)
			require.NoError(t, unlockInner())
			_, _, err = m.TryLock(rlock.Detach(ctx), 0)
			require.ErrorIs(t, err, rlock.ErrNotAcquired, "a detached ctx competes")
			require.NoError(t, unlock())
			require.NoError(t, m.Do(context.WithoutCancel(ctx), func(context.Context) error { return nil }), "so does a ctx whose hold has ended")
		}

		ctx, unlock := enter(t, context.Background(), m)
		past.loseLock(t, ctx, other)
		_, _, err := m.Lock(ctx)
		require.ErrorIs(t, err, rlock.ErrLost, "a known loss takes precedence")
		require.ErrorIs(t, unlock(), rlock.ErrLost)
	})
}
