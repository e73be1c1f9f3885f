package rlocktest

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/rlock"
)

// A holder of any kind gets ErrLost; another process can take the lock meanwhile, undisturbed.
func TestLose(t *testing.T) {
	eachKind(t, func(t *testing.T, lock func(*rlock.Client, string) rlock.Locker) {
		locks := New(t)
		l, other := lock(locks.Client, "x"), lock(locks.Elsewhere(), "x")
		ctx, unlock, err := l.Lock(t.Context())
		require.NoError(t, err)
		locks.AssertHeld(ctx, "x")
		locks.Lose("x")
		if _, both := l.(*rlock.MultiMutex); both {
			locks.Lose("beside")
		}
		_, unlockOther, err := other.TryLock(t.Context(), 0)
		require.NoError(t, err)
		began := time.Now()
		<-ctx.Done()
		require.ErrorIs(t, context.Cause(ctx), rlock.ErrLost)
		require.Less(t, time.Since(began), 11*time.Second, "by the next renewal, which is due after a third of 30 s and a twentieth of that")
		require.ErrorIs(t, unlock(), rlock.ErrLost)
		require.NoError(t, unlockOther())
	})
}

// Without renewals, a holder gets ErrLost when its lease expires, and others can get the lock earlier.
func TestLoseOfAFixedLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := New(t)
		began := time.Now()
		err := locks.Mutex("x", rlock.WithLease(time.Hour)).Do(t.Context(), func(ctx context.Context) error {
			locks.Lose("x")
			locks.HoldElsewhere("x")()
			<-ctx.Done()
			return nil
		})
		require.ErrorIs(t, err, rlock.ErrLost)
		require.Equal(t, time.Hour, time.Since(began))
	})
}

// Others get a crashed holder's lock when its lease expires, and not before. The crash takes no time, and its leftovers are not reported.
func TestCrash(t *testing.T) {
	eachKind(t, func(t *testing.T, lock func(*rlock.Client, string) rlock.Locker) {
		r := &recorder{TB: t}
		locks := New(r)
		dead := locks.Elsewhere()
		ctx, unlock, err := lock(dead, "x").Lock(t.Context())
		require.NoError(t, err)
		_, _, err = lock(dead, "y").Lock(ctx) // until the end
		require.NoError(t, err)
		time.Sleep(2 * rlock.DefaultWatchdogTimeout) // it is renewed

		got := make(chan time.Duration, 2)
		began := time.Now()
		wait := func(l rlock.Locker) { // ends itself
			err := l.(interface {
				Do(ctx context.Context, fn func(context.Context) error) error
			}).Do(t.Context(), func(context.Context) error {
				got <- time.Since(began)
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		}
		go wait(keepsOut(t, lock)(locks.Client, "x")) // waits already, in this process
		synctest.Wait()
		locks.Crash(dead)
		require.Equal(t, began, time.Now())
		require.ErrorIs(t, context.Cause(ctx), rlock.ErrClosed)
		require.Error(t, unlock())
		go wait(keepsOut(t, lock)(locks.Elsewhere(), "x")) // comes later, in another one
		for range 2 {
			after := <-got
			require.Greater(t, after, rlock.DefaultWatchdogTimeout/2)
			require.Less(t, after, rlock.DefaultWatchdogTimeout+2*time.Second)
		}
		_, _, err = lock(dead, "x").Lock(t.Context())
		require.ErrorIs(t, err, rlock.ErrClosed)

		locks.Crash(locks.Elsewhere())
		require.Empty(t, r.end())
	})
}

// The leases of crashed processes expire in the end, so none of their holds is left.
func TestCrashOfAFixedLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := New(t)
		dead := locks.Elsewhere()
		began := time.Now()
		_, _, err := dead.Mutex("x", rlock.WithLease(time.Hour)).Lock(t.Context())
		require.NoError(t, err)
		locks.Crash(dead)
		require.NoError(t, locks.Mutex("x").Do(t.Context(), func(context.Context) error { return nil }))
		require.InDelta(t, time.Hour, time.Since(began), float64(time.Second))
	})
}

// A process that crashes while it waits delays others for some seconds at most, and its Lock returns.
func TestCrashOfAWaiter(t *testing.T) {
	eachKind(t, func(t *testing.T, lock func(*rlock.Client, string) rlock.Locker) {
		r := &recorder{TB: t}
		locks := New(r)
		dead := locks.Elsewhere()
		_, unlock, err := keepsOut(t, lock)(locks.Client, "x").Lock(t.Context())
		require.NoError(t, err)
		got := make(chan error)
		for _, c := range []*rlock.Client{dead, locks.Elsewhere()} { // in that order
			go func() { // ends itself
				_, unlock, err := lock(c, "x").Lock(t.Context())
				if err == nil {
					err = unlock()
				}
				got <- err
			}()
			synctest.Wait()
		}
		locks.Crash(dead)
		require.ErrorIs(t, <-got, rlock.ErrClosed)
		began := time.Now()
		require.NoError(t, unlock())
		require.NoError(t, <-got)
		require.Less(t, time.Since(began), 10*time.Second)
		require.Empty(t, r.end())
	})
}

// A TryLock that has given up leaves no place in the queue: a later unlock frees the lock, and the next caller finds it free.
func TestTryLockLeavesNothingInTheLine(t *testing.T) {
	eachKind(t, func(t *testing.T, lock func(*rlock.Client, string) rlock.Locker) {
		locks := New(t)
		a, b, c := keepsOut(t, lock)(locks.Client, "x"), lock(locks.Elsewhere(), "x"), lock(locks.Elsewhere(), "x")
		for i := range 20 {
			_, unlock, err := a.Lock(t.Context())
			require.NoError(t, err)
			began := time.Now()
			wait := time.Duration(i+1) * 25 * time.Millisecond
			_, _, err = b.TryLock(t.Context(), wait)
			require.ErrorIs(t, err, rlock.ErrNotAcquired)
			require.Equal(t, wait, time.Since(began))
			require.NoError(t, unlock())
			_, unlock, err = c.TryLock(t.Context(), 0)
			require.NoError(t, err, "%d: after %v", i, wait)
			require.NoError(t, unlock())
		}
	})
}

// Only another process can crash, and only once.
func TestCrashOfNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{TB: t}
		locks := New(r)
		locks.Crash(locks.Client)
		locks.Crash(New(t).Elsewhere())
		dead := locks.Elsewhere()
		locks.Crash(dead)
		locks.Crash(dead)
		const said = "rlocktest: Crash: the Client is not from Elsewhere"
		require.Equal(t, []string{said, said}, r.end())
	})
}

func TestLoseNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{TB: t}
		New(r).Lose("x")
		require.Equal(t, []string{`rlocktest: Lose: nobody holds "x"`}, r.end())
	})
}

// A disconnected process cannot lock or unlock, but others can. When the network is back, all is as before.
func TestFailRedis(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := New(t)
		x, y := locks.Mutex("x"), locks.Mutex("y")
		for range 3 {
			_, unlock, err := y.Lock(t.Context())
			require.NoError(t, err)
			restore := locks.FailRedis()
			require.ErrorIs(t, unlock(), rlock.ErrUnreachable)
			_, _, err = x.Lock(t.Context())
			require.ErrorIs(t, err, rlock.ErrUnreachable)
			locks.HoldElsewhere("x")()
			restore()
			require.NoError(t, x.Do(t.Context(), func(context.Context) error { return nil }))
			require.NoError(t, y.Do(t.Context(), func(context.Context) error { return nil }), "it was released in the background")
		}
	})
}

// Overlapping failures end with the last restore, in any order, however often each is called.
func TestFailRedisTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := New(t)
		tryLock := func() error {
			return locks.Mutex("x").TryDo(t.Context(), time.Second, func(context.Context) error { return nil })
		}
		first, second := locks.FailRedis(), locks.FailRedis()
		require.ErrorIs(t, tryLock(), rlock.ErrUnreachable)
		first()
		first()
		require.ErrorIs(t, tryLock(), rlock.ErrUnreachable)
		second()
		require.NoError(t, tryLock())
		first()
		third := locks.FailRedis()
		second()
		require.ErrorIs(t, tryLock(), rlock.ErrUnreachable)
		third()
		require.NoError(t, tryLock())
	})
}

// A network failure at the end of the test, with calls in progress, delays nothing.
func TestFailRedisUntilTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{TB: t}
		locks := New(r)
		_, unlock, err := locks.Mutex("x").Lock(t.Context())
		require.NoError(t, err)
		locks.FailRedis()
		require.ErrorIs(t, unlock(), rlock.ErrUnreachable)
		go func() { // ends with the test
			_, unlock, err := locks.Mutex("y").Lock(t.Context())
			if err == nil {
				_ = unlock()
			}
		}()
		synctest.Wait()
		require.Empty(t, r.end())
	})
}
