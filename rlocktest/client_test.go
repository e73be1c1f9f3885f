package rlocktest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/rlock"
)

// recorder is a test that records its errors, and ends on demand.
type recorder struct {
	testing.TB

	mu    sync.Mutex // guards the following
	said  []string
	ended []func()
}

func (r *recorder) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.said = append(r.said, fmt.Sprintf(format, args...))
}

func (r *recorder) Cleanup(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = append(r.ended, f)
}

// end ends the test, and returns its errors so far.
func (r *recorder) end() []string {
	for len(r.ended) > 0 {
		last := len(r.ended) - 1
		f := r.ended[last]
		r.ended = r.ended[:last]
		f()
	}
	return r.said
}

// kinds are locks of one name.
var kinds = map[string]func(c *rlock.Client, name string) rlock.Locker{
	"plain":       func(c *rlock.Client, name string) rlock.Locker { return c.Mutex(name) },
	"fenced":      func(c *rlock.Client, name string) rlock.Locker { return c.FencedMutex(name) },
	"fair":        func(c *rlock.Client, name string) rlock.Locker { return c.FairMutex(name) },
	"reader":      func(c *rlock.Client, name string) rlock.Locker { return c.RWMutex(name).Read() },
	"writer":      func(c *rlock.Client, name string) rlock.Locker { return c.RWMutex(name).Write() },
	"Upgradeable": func(c *rlock.Client, name string) rlock.Locker { return c.RWMutex(name).Upgradeable() },
	"All":         func(c *rlock.Client, name string) rlock.Locker { return rlock.All(c.Mutex(name), c.Mutex("beside")) },
}

// eachKind runs a test for each kind, in its own bubble.
func eachKind(t *testing.T, f func(t *testing.T, lock func(c *rlock.Client, name string) rlock.Locker)) {
	for name, lock := range kinds {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { f(t, lock) })
		})
	}
}

// keepsOut returns the lock of that kind that excludes all others of its name: for a reader, the writer.
func keepsOut(t *testing.T, lock func(*rlock.Client, string) rlock.Locker) func(*rlock.Client, string) rlock.Locker {
	if strings.HasSuffix(t.Name(), "/reader") {
		return kinds["writer"]
	}
	return lock
}

// A disconnected holder's ctx is cancelled when its lease of 30 s expires: before others can enter, and not much earlier. All that takes less
// than a second.
func TestLeaseEnds(t *testing.T) {
	outside := time.Now()
	synctest.Test(t, func(t *testing.T) {
		locks := New(t)
		order := locks.Mutex("order:42")
		err := order.Do(t.Context(), func(ctx context.Context) error {
			time.Sleep(2 * rlock.DefaultWatchdogTimeout) // it is renewed
			locks.AssertHeld(ctx, "order:42")
			began := time.Now()
			restore := locks.FailRedis()
			defer restore()
			next := make(chan time.Time)
			go func() { // ends itself
				other := locks.Elsewhere().Mutex("order:42")
				next <- time.Now()
				_, unlock, err := other.Lock(t.Context())
				next <- time.Now()
				if err == nil {
					err = unlock()
				}
				if err != nil {
					t.Error(err)
				}
			}()
			<-next
			<-ctx.Done()
			told := time.Now()
			require.ErrorIs(t, context.Cause(ctx), rlock.ErrLost)
			require.Greater(t, told.Sub(began), rlock.DefaultWatchdogTimeout/2)
			require.LessOrEqual(t, told.Sub(began), rlock.DefaultWatchdogTimeout)
			require.False(t, (<-next).Before(told))
			return nil
		})
		require.ErrorIs(t, err, rlock.ErrLost)
		require.NoError(t, order.Do(t.Context(), func(context.Context) error { return nil }))
	})
	t.Logf("three leases in %v", time.Since(outside))
	require.Less(t, time.Since(outside), rlock.DefaultWatchdogTimeout/3)
}

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

// Without renewals, a holder gets ErrLost when its lease expires, and others can have the lock before that.
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

// A TryLock that has given up leaves no place in the queue: a later unlock hands the lock to nobody, and the next caller finds it free.
func TestTryLockLeavesNothingInTheLine(t *testing.T) {
	eachKind(t, func(t *testing.T, lock func(*rlock.Client, string) rlock.Locker) {
		locks := New(t)
		a, b, c := keepsOut(t, lock)(locks.Client, "x"), lock(locks.Elsewhere(), "x"), lock(locks.Elsewhere(), "x")
		for i := range 50 {
			_, unlock, err := a.Lock(t.Context())
			require.NoError(t, err)
			began := time.Now()
			wait := time.Duration(i+1) * 10 * time.Millisecond
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

func TestHoldElsewhere(t *testing.T) {
	eachKind(t, func(t *testing.T, lock func(*rlock.Client, string) rlock.Locker) {
		locks := New(t)
		l := lock(locks.Client, "x")
		release := locks.HoldElsewhere("x")
		_, _, err := l.TryLock(t.Context(), 0)
		require.ErrorIs(t, err, rlock.ErrNotAcquired)
		require.NotContains(t, err.Error(), "held by this client")
		got := make(chan error, 1)
		go func() { // ends itself
			_, unlock, err := l.Lock(t.Context())
			got <- errors.Join(err, unlock())
		}()
		time.Sleep(time.Minute)
		require.Empty(t, got, "it waits as long as the other process has the lock")
		release()
		release()
		require.NoError(t, <-got)
		release = locks.HoldElsewhere("x")
		locks.Lose("x")
		release()
		locks.HoldElsewhere("x") // until the test ends
	})
}

// HoldElsewhere of a held lock is a mistake in the test.
func TestHoldElsewhereRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{TB: t}
		locks := New(r)
		_, unlock, err := locks.Mutex("x").Lock(t.Context())
		require.NoError(t, err)
		locks.HoldElsewhere("x")()
		require.NoError(t, unlock())
		said := r.end()
		require.Len(t, said, 1)
		require.Contains(t, said[0], `rlocktest: HoldElsewhere: rlock: "x": not acquired: held by `)
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

func TestAssertHeld(t *testing.T) {
	eachKind(t, func(t *testing.T, lock func(*rlock.Client, string) rlock.Locker) {
		r := &recorder{TB: t}
		locks := New(r)
		ctx, unlock, err := lock(locks.Client, "x").Lock(t.Context())
		require.NoError(t, err)
		inner, unlockInner, err := locks.Mutex("inner").Lock(ctx)
		require.NoError(t, err)
		restore := locks.FailRedis()
		locks.AssertHeld(inner, "x")
		restore()
		locks.AssertHeld(inner, "x")
		done, cancel := context.WithCancel(inner)
		cancel()
		locks.AssertHeld(done, "x")
		require.Empty(t, r.said)

		locks.AssertHeld(t.Context(), "x")
		require.Len(t, r.said, 1)
		require.Contains(t, r.said[0], `rlocktest: the ctx carries no hold of "x": the lock is held by `)
		locks.AssertHeld(rlock.Detach(inner), "x")
		locks.AssertHeld(inner, "y")
		require.Len(t, r.said, 3)
		require.Equal(t, `rlocktest: the ctx carries no hold of "y": the lock is free`, r.said[2])
		require.NoError(t, unlockInner())
		locks.Lose("x")
		locks.AssertHeld(inner, "x") //rlockvet:ignore it has to fail
		require.Equal(t, `rlocktest: the ctx carries no hold of "x": the lock is free`, r.said[3])
		require.ErrorIs(t, unlock(), rlock.ErrLost)
		require.Len(t, r.end(), 4)
	})
}

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
		require.Contains(t, said, `"y" is still held by `+shortOwner)
		require.Contains(t, said, owner)
		require.NotContains(t, said, "rlock_upgrade")
		require.NotContains(t, said, "waited for")
		require.ErrorIs(t, context.Cause(ctx), rlock.ErrClosed)
	})
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
			require.Error(t, unlock(), "there is no Redis any more")
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
		require.Equal(t, `rlocktest: after more than 1m0s "x" is still held by `+owner, r.said[1])
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

func TestReplicasConfirm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := NewWith(t, rlock.Options{Replicas: 2})
		require.NoError(t, locks.Mutex("x").Do(t.Context(), func(context.Context) error { return nil }))
	})
}

// Code with its own Client, or subscriptions, can use the Redis as usual.
func TestRedis(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := New(t)
		rdb := locks.Redis()
		require.Equal(t, rueidis.ClientModeStandalone, rdb.Mode())
		own, err := rlock.New(rdb, rlock.Options{})
		require.NoError(t, err)
		defer own.Close()
		require.NoError(t, own.Mutex("x").Do(t.Context(), func(ctx context.Context) error {
			_, _, err := locks.Mutex("x").TryLock(ctx, 0)
			require.ErrorIs(t, err, rlock.ErrNotAcquired)
			return nil
		}))

		ctx, cancel := context.WithCancel(t.Context())
		heard := make(chan string, 1)
		ended := make(chan struct{})
		go func() { // ended by cancel
			defer close(ended)
			_ = rdb.Receive(ctx, rdb.B().Subscribe().Channel("news").Build(), func(m rueidis.PubSubMessage) { heard <- m.Message })
		}()
		synctest.Wait()
		require.NoError(t, rdb.Do(ctx, rdb.B().Publish().Channel("news").Message("hello").Build()).Error())
		require.Equal(t, "hello", <-heard)
		cancel()
		<-ended
	})
}

// The end of the test copes with a Client that the code under test has closed.
func TestClosedBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := New(t)
		_, unlock, err := locks.Mutex("x").Lock(t.Context())
		require.NoError(t, err)
		locks.Close()
		require.NoError(t, unlock())
		locks.Redis().Close()
	})
}

// Several servers form a quorum, which survives the loss of one.
func TestQuorumOfServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var servers [3]*Client
		var members []rlock.Locker
		for i := range servers {
			servers[i] = New(t)
			members = append(members, servers[i].Mutex("x"))
		}
		servers[1].FailRedis()
		require.NoError(t, rlock.Quorum(members...).Do(t.Context(), func(ctx context.Context) error {
			time.Sleep(time.Minute)
			return ctx.Err()
		}))
	})
}

// Large writes before any read do not block: rueidis does that if ctx cannot be cancelled.
func TestManyCommandsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rdb := New(t).Redis()
		var all rueidis.Commands
		for i := range 1_000 {
			all = append(all, rdb.B().Echo().Message(fmt.Sprintf("%0100d", i)).Build())
		}
		for _, result := range rdb.DoMulti(context.Background(), all...) {
			require.NoError(t, result.Error())
		}
	})
}

func TestNewRefusesOptions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fatal{recorder: recorder{TB: t}}
		require.PanicsWithValue(t, f, func() { NewWith(f, rlock.Options{WatchdogTimeout: 1}) })
		require.Len(t, f.end(), 1)
		require.Contains(t, f.said[0], "rlocktest: rlock: Options.WatchdogTimeout is 1ns")
	})
}

// fatal is a recorder of a test that calls Fatal.
type fatal struct{ recorder }

func (f *fatal) Fatalf(format string, args ...any) {
	f.Errorf(format, args...)
	panic(f)
}
