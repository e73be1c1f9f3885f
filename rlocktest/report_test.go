package rlocktest

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/rlock"
)

// A hold still open when the test ends is reported, with its owner, even if its lease is short.
func TestReportOfHolds(t *testing.T) {
	eachKind(t, func(t *testing.T, lock func(*rlock.Client, string) rlock.Locker) {
		r := &recorder{TB: t}
		locks := New(r)
		ctx, _, err := lock(locks.Client, "x").Lock(t.Context())
		require.NoError(t, err)
		short, _, err := locks.Mutex("y", rlock.WithLease(time.Millisecond)).Lock(t.Context())
		require.NoError(t, err)
		owner, shortOwner := rlock.Owner(ctx), rlock.Owner(short)
		said := strings.Join(r.end(), "\n")
		require.Contains(t, said, `rlocktest: at the end of the test "x" is still held by `)
		require.Contains(t, said, `"y" is still held by `+shortOwner+", locked in report_test.go:")
		require.Contains(t, said, owner)
		require.NotContains(t, said, "rlock_upgrade")
		require.NotContains(t, said, "waited for")
		require.ErrorIs(t, context.Cause(ctx), rlock.ErrClosed)
	})
}

// A forgotten unlock is found by the place of its Lock: the inner one of a re-entry, the right one of two readers, any kind, and through
// a helper of the test the line that calls the library. A lock of a Client of the test's own has no place.
func TestReportNamesThePlaceOfTheLock(t *testing.T) {
	eachKind(t, func(t *testing.T, lock func(*rlock.Client, string) rlock.Locker) {
		r := &recorder{TB: t}
		locks := New(r)
		l := lock(locks.Client, "x")
		outer, unlock, err := l.Lock(t.Context())
		require.NoError(t, err)
		_, _, err = l.Lock(outer)
		at := line()
		require.NoError(t, err)
		require.NoError(t, unlock())
		if said := r.end(); len(said) > 0 { // some kinds do not re-enter, but are unlocked then
			require.True(t, strings.HasSuffix(said[0], fmt.Sprintf(", locked in report_test.go:%d", at-1)), said[0])
		}
	})
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{TB: t}
		locks := New(r)
		read := locks.RWMutex("rw").Read()
		var unlocks [3]rlock.UnlockFunc
		var lines, owners [3]string
		for i := range unlocks {
			var ctx context.Context
			var err error
			switch i {
			case 0:
				ctx, unlocks[i], err = read.Lock(t.Context())
				lines[i] = fmt.Sprint("report_test.go:", line()-1)
			case 1:
				ctx, unlocks[i], err = locks.Elsewhere().RWMutex("rw").Read().TryLock(t.Context(), 0)
				lines[i] = fmt.Sprint("report_test.go:", line()-1)
			case 2:
				ctx, unlocks[i], err = rlock.All(locks.Mutex("a"), locks.Mutex("b")).Lock(t.Context())
				lines[i] = fmt.Sprint("report_test.go:", line()-1)
			}
			require.NoError(t, err)
			owners[i] = rlock.Owner(ctx)
		}
		require.NoError(t, unlocks[0]())
		_, err := locks.PermitSemaphore("s").TrySetPermits(t.Context(), 1)
		require.NoError(t, err)
		_, _, err = locks.PermitSemaphore("s").Acquire(t.Context())
		permitLine := fmt.Sprint("report_test.go:", line()-1)
		require.NoError(t, err)
		own, err := rlock.New(locks.Redis(), rlock.Options{})
		require.NoError(t, err)
		_, _, err = own.Mutex("own").Lock(t.Context())
		require.NoError(t, err)
		own.Close()
		said := strings.Join(r.end(), "\n")
		require.Contains(t, said, owners[1]+", locked in "+lines[1])
		require.NotContains(t, said, lines[0])
		require.Equal(t, 2, strings.Count(said, ", locked in "+lines[2]), said)
		require.Regexp(t, `"s" is still held by permit .*, with slot 0, locked in `+permitLine, said)
		require.Regexp(t, `(?m)"own" is still held by [^,]*$`, said)
	})
}

// line returns the line that calls it.
func line() int {
	_, _, line, _ := runtime.Caller(1)
	return line
}

// A Lock still waiting when the test ends is reported, with its future owner if it has a place, and returns.
func TestReportOfWaiters(t *testing.T) {
	for _, o := range []rlock.Options{{}, {Prefix: "{shop}:"}, {HandOff: rlock.HandOff{Most: -1}}} {
		eachKind(t, func(t *testing.T, lock func(*rlock.Client, string) rlock.Locker) {
			r := &recorder{TB: t}
			locks := NewWith(r, o)
			other := locks.Elsewhere()
			_, unlock, err := other.RWMutex("x").Write().Lock(t.Context()) // excludes all others
			require.NoError(t, err)
			got := make(chan error, 1)
			go func() { // ended by the end of the test
				_, _, err := lock(locks.Client, "x").Lock(t.Context())
				got <- err
			}()
			synctest.Wait()
			var id string
			require.NoError(t, locks.Mutex("mine").Do(t.Context(), func(ctx context.Context) error {
				id, _, _ = strings.Cut(rlock.Owner(ctx), ":")
				return nil
			}))
			said := r.end()
			require.ErrorIs(t, <-got, rlock.ErrClosed)
			require.Len(t, said, 2)
			require.Contains(t, said[0], `"x" is still held by `)
			require.Contains(t, said[1], `"x" is still waited for by `)
			require.Contains(t, said[1], id)
			require.Error(t, unlock(), "Redis is gone")
		})
	}
}

// A released hold is not reported, although its traces stay in Redis for a while.
func TestNothingToReport(t *testing.T) {
	eachKind(t, func(t *testing.T, lock func(*rlock.Client, string) rlock.Locker) {
		r := &recorder{TB: t}
		locks := New(r)
		l := lock(locks.Client, "x")
		release := locks.HoldElsewhere("x")
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { // ended by cancel
			defer close(ended)
			_, _, _ = l.Lock(ctx)
		}()
		synctest.Wait()
		cancel()
		<-ended
		_, _, err := l.TryLock(t.Context(), time.Second)
		require.ErrorIs(t, err, rlock.ErrNotAcquired)
		release()
		_, unlock, err := l.Lock(t.Context())
		require.NoError(t, err)
		require.NoError(t, unlock())
		_, unlock, err = locks.Mutex("job", rlock.WithMinHold(time.Hour)).Lock(t.Context())
		require.NoError(t, err)
		require.NoError(t, unlock())
		require.Empty(t, r.end())
	})
}

// A test that waits for a lock that is never unlocked ends, and says why. Several long waits in a row are not reported.
func TestEndlessWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const patience = time.Minute
		r := &recorder{TB: t}
		locks := New(r)
		locks.mu.Lock()
		locks.patience = patience
		locks.clock.Reset(patience)
		locks.mu.Unlock()
		for range 4 {
			time.AfterFunc(patience-time.Second, locks.HoldElsewhere("x"))
			require.NoError(t, locks.Mutex("x").Do(t.Context(), func(context.Context) error { return nil }))
		}
		ctx, _, err := locks.Mutex("x").Lock(t.Context()) // never unlocked
		require.NoError(t, err)
		owner := rlock.Owner(ctx)
		require.Empty(t, r.said)
		_, _, err = locks.Mutex("x").Lock(t.Context())
		require.ErrorIs(t, err, rlock.ErrClosed)
		require.Len(t, r.said, 2)
		require.Contains(t, r.said[0], `rlocktest: after more than 1m0s "x" is still waited for by `)
		require.Contains(t, r.said[1], `rlocktest: after more than 1m0s "x" is still held by `+owner+", locked in report_test.go:")
		r.end()
	})
}

// Outside a bubble everything works the same in real time.
func TestOutsideOfABubble(t *testing.T) {
	locks := NewWith(t, rlock.Options{WatchdogTimeout: 300 * time.Millisecond})
	err := locks.Mutex("x").Do(t.Context(), func(ctx context.Context) error {
		locks.Lose("x")
		<-ctx.Done()
		return nil
	})
	require.ErrorIs(t, err, rlock.ErrLost)
}

// Names are shown as the code under test knows them, with a prefix and with braces.
func TestNamesInReports(t *testing.T) {
	for _, prefix := range []string{"", "shop:", "{shop}:"} {
		for _, name := range []string{"x", "{x}", "a{b}c", ":x", "x:y", "}", "{"} {
			t.Run(prefix+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r := &recorder{TB: t}
					locks := NewWith(r, rlock.Options{Prefix: prefix})
					ctx, _, err := locks.FairMutex(name).Lock(t.Context())
					require.NoError(t, err)
					locks.AssertHeld(ctx, name)
					go func() { // ended by the end of the test
						_, _, _ = locks.Elsewhere().FairMutex(name).Lock(t.Context())
					}()
					synctest.Wait()
					said := r.end()
					require.Len(t, said, 2)
					require.Contains(t, said[0], fmt.Sprintf("%q is still held by %s", name, rlock.Owner(ctx)))
					require.Contains(t, said[1], fmt.Sprintf("%q is still waited for by ", name))
				})
			})
		}
	}
}

// A lock that a Client keeps with nobody inside is given up, and not reported, whichever Client keeps it. Somebody inside is.
func TestReportOfKeptLocks(t *testing.T) {
	for _, o := range []rlock.Options{{}, {Prefix: "{shop}:"}} {
		synctest.Test(t, func(t *testing.T) {
			r := &recorder{TB: t}
			locks := NewWith(r, o)
			own, err := rlock.New(locks.Redis(), rlock.Options{})
			require.NoError(t, err)
			defer own.Close()
			inside := func(c *rlock.Client, name string) *rlock.Mutex {
				m := c.Mutex(name, rlock.WithLinger(time.Hour))
				for range 2 { // from the second on it is kept
					require.NoError(t, m.Do(t.Context(), func(context.Context) error { return nil }))
					time.Sleep(time.Second)
				}
				require.Equal(t, 1, c.Stats().Idle)
				return m
			}
			inside(locks.Elsewhere(), "y")
			inside(own, "z")
			_, _, err = inside(locks.Client, "x").Lock(t.Context())
			require.NoError(t, err)
			locks.FailRedis()
			said := strings.Join(r.end(), "\n")
			require.Contains(t, said, `at the end of the test "x" is still held by `)
			require.NotContains(t, said, `"y"`)
			require.NotContains(t, said, `"z"`)
		})
	}
}
