package rlock_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// unlockTimeout is Options.UnlockTimeout in these tests.
const unlockTimeout = time.Second

// Sections of different kinds, one in the other, share one Options.UnlockTimeout on silent servers.
func TestUnlockTimeoutOfNestedKinds(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		var servers [3]*redistest.Server
		var p process
		for i := range p {
			servers[i] = redistest.Start(t)
			p[i] = newClient(t, servers[i].Client(t), rlock.Options{UnlockTimeout: unlockTimeout})
			loadScripts(t, p[i])
		}
		all, ctx := p.lockers(redistest.Name(t)), context.Background()
		var unlocks []rlock.UnlockFunc
		for _, kind := range []string{"quorum", "mutex", "all", "upgradeable", "fair"} {
			inner, unlock, err := all[kind].Lock(ctx)
			require.NoError(t, err, kind)
			ctx, unlocks = inner, append(unlocks, unlock)
		}
		for _, s := range servers {
			s.Pause()
		}
		began := time.Now()
		for _, unlock := range slices.Backward(unlocks) {
			require.ErrorIs(t, unlock(), rlock.ErrUnreachable)
		}
		requireTookAtMost(t, unlockTimeout+500*time.Millisecond, began, time.Now()) // 0.1 s for each further section
		for i, s := range servers {
			s.Resume()
			p[i].Close()
			require.Zero(t, p[i].Stats().Lost)
		}
	})
}

// UnlockTimeout also bounds a hand-off, and the waiter gets the lock when Redis answers.
func TestUnlockTimeoutOfAHandOff(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		for _, pause := range []time.Duration{0, unlockTimeout / 2} { // the unlock is left to the background, or answered in time
			s := redistest.Start(t)
			c := newClient(t, s.Client(t), rlock.Options{UnlockTimeout: 2 * unlockTimeout})
			loadScripts(t, c)
			_, unlock := enter(t, context.Background(), c.Mutex("x", byCall))
			next := lockAsync(t, c.Mutex("x", byCall))
			redistest.Eventually(t, testTimeout, func() bool { return c.Stats().Waiting == 1 }, "it waits")
			s.Pause()
			began := time.Now()
			unlocked := async(unlock)
			if pause == 0 {
				require.ErrorIs(t, within(t, unlocked, testTimeout), rlock.ErrUnreachable)
				requireTook(t, 2*unlockTimeout, began, time.Now())
				s.Resume()
			} else {
				sleep(pause)
				s.Resume()
				require.NoError(t, within(t, unlocked, testTimeout))
			}
			next.getAndUnlock(t, testTimeout)
			c.Close()
		}
	})
}

// Sections that end one right after the other share one UnlockTimeout; a section that ends later has its own.
func TestUnlockTimeoutIsGivenAgain(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		c := newClient(t, s.Client(t), rlock.Options{UnlockTimeout: unlockTimeout})
		loadScripts(t, c)
		outer, unlockOuter := enter(t, t.Context(), c.Mutex("outer"))
		_, unlock := enter(t, outer, c.Mutex("inner"))
		s.Pause()
		defer s.Resume()
		require.ErrorIs(t, unlock(), rlock.ErrUnreachable)
		sleep(1500 * time.Millisecond)
		began := time.Now()
		outlasts := time.AfterFunc(unlockTimeout/2, s.Resume)
		defer outlasts.Stop()
		err := unlockOuter()
		require.NoError(t, err, "answered after %v", time.Since(began))
	})
}

// An unlock returns when the lease ends, if that is before UnlockTimeout.
func TestUnlockTimeoutBeyondTheLease(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		for _, ctx := range []context.Context{t.Context(), context.Background()} {
			s := redistest.Start(t)
			c := newClient(t, s.Client(t), rlock.Options{UnlockTimeout: time.Minute})
			loadScripts(t, c)
			const lease = 700 * time.Millisecond
			began := time.Now()
			_, unlock := enter(t, ctx, c.Mutex("x", rlock.WithLease(lease)))
			s.Pause()
			err := unlock()
			requireTookAtMost(t, lease, began, time.Now())
			s.Resume()
			require.ErrorIs(t, err, rlock.ErrLost)
			require.ErrorIs(t, err, rlock.ErrNotHeld)
		}
	})
}

// G8: an unlock that was left to the background is answered after the end of the lease, when others hold the lock. It changes nothing.
func TestUnlockLeftBeyondTheLease(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		c, proxy, b := behindProxy(t, pipelined, rlock.Options{UnlockTimeout: 100 * time.Millisecond})
		_, unlock := enter(t, context.Background(), c.Mutex(b.name, rlock.WithLease(time.Second)))
		proxy.OnRequest(nthScript(1, redistest.Hold))
		require.ErrorIs(t, unlock(), rlock.ErrUnreachable)
		require.Equal(t, 1, c.Stats().Holds)
		next, unlockNext := enter(t, context.Background(), b.Mutex(b.name))
		proxy.Release()
		redistest.Eventually(t, testTimeout, func() bool { return c.Stats().Holds == 0 }, "answered")
		require.NoError(t, next.Err())
		require.Equal(t, map[string]int64{rlock.Owner(next): 1}, b.fields(t, b.name))
		require.NoError(t, unlockNext())
		require.Zero(t, c.Stats().Lost)
	})
}

// An unlock that Redis answers uses up none of the UnlockTimeout of the sections around it, however far away Redis is.
func TestUnlocksOfAFarRedisCostNoTime(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		c, proxy, b := behindProxy(t, anyWay)
		proxy.Delay(60 * time.Millisecond)
		ctx, unlock := enter(t, context.Background(), c.Mutex(b.name))
		var inside sync.WaitGroup
		for i := range 40 {
			inside.Go(func() {
				assert.NoError(t, c.Mutex(fmt.Sprint(b.name, i)).Do(ctx, func(context.Context) error { return nil }))
			})
		}
		inside.Wait()
		require.NoError(t, unlock())
	})
}
