package rlocktest

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/rlock"
)

// watched are handles with options for locks called "x"; excluding is a handle that each of them excludes.
var watched = map[string]struct {
	held, excluding func(c *rlock.Client, o ...rlock.Option) rlock.Locker
}{
	"mutex":       {mutex, mutex},
	"fenced":      {fenced, mutex},
	"fair":        {fair, fair},
	"write":       {write, write},
	"read":        {read, write},
	"upgradeable": {upgradeable, write},
	"several":     {several, several},
}

func mutex(c *rlock.Client, o ...rlock.Option) rlock.Locker  { return c.Mutex("x", o...) }
func fenced(c *rlock.Client, o ...rlock.Option) rlock.Locker { return c.FencedMutex("x", o...) }
func fair(c *rlock.Client, o ...rlock.Option) rlock.Locker   { return c.FairMutex("x", o...) }
func write(c *rlock.Client, o ...rlock.Option) rlock.Locker  { return c.RWMutex("x", o...).Write() }
func read(c *rlock.Client, o ...rlock.Option) rlock.Locker   { return c.RWMutex("x", o...).Read() }

func upgradeable(c *rlock.Client, o ...rlock.Option) rlock.Locker {
	return c.RWMutex("x", o...).Upgradeable()
}

func several(c *rlock.Client, o ...rlock.Option) rlock.Locker {
	return rlock.All(c.Mutex("x", o...), c.FencedMutex("y", o...))
}

// do runs f in a section of l.
func do(ctx context.Context, l rlock.Locker, f func(context.Context) error) error {
	ctx, unlock, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	return errors.Join(f(ctx), unlock())
}

// left returns a key's time to live.
func (c *Client) left(key string) time.Duration {
	n, err := c.Redis().Do(context.Background(), c.Redis().B().Pttl().Key(key).Build()).AsInt64()
	require.NoError(c.t, err)
	return time.Duration(n) * time.Millisecond
}

// requireRenewed requires that Redis keeps a key for several periods, renewed every third of the watchdog time d.
func (c *Client) requireRenewed(key string, d time.Duration) {
	c.t.Helper()
	const periods = 6
	renewals, last := 0, c.left(key)
	for began := time.Now(); time.Since(began) < periods*d/3; {
		time.Sleep(d / 12)
		left := c.left(key)
		require.LessOrEqual(c.t, left, d)
		require.Greater(c.t, left, d*58/100)
		if left > last {
			renewals++
		}
		last = left
	}
	require.InDelta(c.t, periods, renewals, 1.5)
}

// A hold is renewed every third of its handle's watchdog time, for that time, shorter or longer than the Client's. When Redis is silent, its ctx
// is cancelled before another process can take the lock, which it can within that time.
func TestWatchdogOfAHandle(t *testing.T) {
	for name, k := range watched {
		for _, d := range []time.Duration{rlock.MinWatchdogTimeout, 3 * time.Second, 2 * time.Minute} {
			t.Run(name+"/"+d.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					locks := New(t)
					other := k.excluding(locks.Elsewhere())
					ctx, unlock, err := k.held(locks.Client, rlock.WithWatchdog(d)).Lock(t.Context())
					require.NoError(t, err)
					keys := slices.DeleteFunc(locks.server.Keys(), func(key string) bool { return locks.left(key) < 0 }) // tokens have no expiry
					require.NotEmpty(t, keys)
					for _, key := range keys {
						locks.requireRenewed(key, d)
					}
					require.NoError(t, ctx.Err())
					restore := locks.FailRedis()
					began := time.Now()
					lost := context.AfterFunc(ctx, func() {})
					_, unlockNext, err := other.Lock(t.Context())
					in := time.Since(began)
					require.NoError(t, err)
					require.False(t, lost(), "the ctx was cancelled first")
					require.ErrorIs(t, context.Cause(ctx), rlock.ErrLost)
					require.Greater(t, in, d*58/100)
					require.Less(t, in, d+time.Second)
					restore()
					require.ErrorIs(t, unlock(), rlock.ErrLost)
					require.NoError(t, unlockNext())
				})
			})
		}
	}
}

// After a crash others wait for the crashed handle's watchdog time, not for their own.
func TestCrashWithAWatchdogOfTheHandle(t *testing.T) {
	for name, k := range watched {
		for _, d := range []time.Duration{500 * time.Millisecond, 2 * time.Minute} {
			t.Run(name+"/"+d.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					locks := New(t)
					elsewhere := locks.Elsewhere()
					_, _, err := k.held(elsewhere, rlock.WithWatchdog(d)).Lock(t.Context())
					require.NoError(t, err)
					in := make(chan time.Time, 1)
					go func() { // ends itself
						_, unlock, err := k.excluding(locks.Client).Lock(t.Context())
						in <- time.Now()
						if err == nil {
							err = unlock()
						}
						if err != nil {
							t.Error(err)
						}
					}()
					time.Sleep(2 * d)
					require.Empty(t, in)
					crashed := time.Now()
					locks.Crash(elsewhere)
					waited := (<-in).Sub(crashed)
					require.Greater(t, waited, d*58/100)
					require.Less(t, waited, d+300*time.Millisecond)
				})
			})
		}
	}
}

// A hold lasts as long as the longest watchdog time of its levels. No lease is shortened.
func TestReentryWithAnotherWatchdogTime(t *testing.T) {
	const short, long = 3 * time.Second, 2 * time.Minute
	for name, k := range watched {
		if name == "several" {
			continue // each Lock of them is a re-entry of each
		}
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				locks := New(t)
				lock := func(ctx context.Context, o ...rlock.Option) (context.Context, rlock.UnlockFunc) {
					ctx, unlock, err := k.held(locks.Client, o...).Lock(ctx)
					require.NoError(t, err)
					return ctx, unlock
				}
				ctx, unlock := lock(t.Context(), rlock.WithWatchdog(short))
				_, inner := lock(ctx, rlock.WithWatchdog(long))
				require.Greater(t, locks.left("x"), long-time.Second, "asked for by the re-entry")
				locks.requireRenewed("x", long)
				require.NoError(t, inner())
				left := locks.left("x")
				time.Sleep(left - short/2)
				locks.requireRenewed("x", short)
				inners := make([]rlock.UnlockFunc, 3)
				for i := range inners {
					_, inners[i] = lock(ctx, rlock.WithWatchdog(short-time.Duration(i)*time.Second))
				}
				locks.requireRenewed("x", short)
				for _, inner := range inners {
					require.NoError(t, inner())
				}
				require.NoError(t, unlock())

				ctx, unlock = lock(t.Context(), rlock.WithLease(10*time.Second))
				_, inner = lock(ctx, rlock.WithWatchdog(short))
				require.Greater(t, locks.left("x"), 9*time.Second, "not shortened")
				time.Sleep(time.Minute)
				locks.requireRenewed("x", short)
				require.NoError(t, inner())
				<-ctx.Done()
				require.ErrorIs(t, unlock(), rlock.ErrLost)
			})
		})
	}
}

// Locks taken together each have their own handle's watchdog time.
func TestSeveralLocksWithTheirOwnWatchdogTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := New(t)
		times := map[string]time.Duration{"a": time.Second, "b": 0, "c": time.Minute}
		var all []rlock.Locker
		for name, d := range times {
			if d == 0 {
				times[name] = rlock.DefaultWatchdogTimeout
				all = append(all, locks.FencedMutex(name))
			} else {
				all = append(all, locks.Mutex(name, rlock.WithWatchdog(d)))
			}
		}
		require.NoError(t, rlock.All(all...).Do(t.Context(), func(context.Context) error {
			for _, name := range slices.Sorted(maps.Keys(times)) {
				locks.requireRenewed(name, times[name])
			}
			return nil
		}))
	})
}

// Other time options count from the handle's watchdog time.
func TestWatchdogBesideOtherOptions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const d = 3 * time.Second
		locks := New(t)
		ctx, unlock, err := locks.Mutex("x", rlock.WithWatchdog(d), rlock.WithGrace(time.Minute)).Lock(t.Context())
		require.NoError(t, err)
		time.Sleep(10 * time.Minute)
		require.LessOrEqual(t, locks.left("x"), d+time.Minute)
		require.Greater(t, locks.left("x"), d/2+time.Minute)
		require.NoError(t, ctx.Err())
		require.NoError(t, unlock())

		began := time.Now()
		ctx, unlock, err = locks.Mutex("x", rlock.WithWatchdog(d), rlock.WithMaxHold(10*time.Second)).Lock(t.Context())
		require.NoError(t, err)
		<-ctx.Done()
		var lost *rlock.LostError
		require.ErrorAs(t, context.Cause(ctx), &lost)
		require.Equal(t, rlock.LostMaxHold, lost.Reason)
		require.Equal(t, 10*time.Second, time.Since(began))
		require.ErrorIs(t, unlock(), rlock.ErrLost)

		ctx, _, err = locks.Mutex("x", rlock.WithWatchdog(d)).Lock(t.Context())
		require.NoError(t, err)
		ticket, err := rlock.Export(ctx)
		require.NoError(t, err)
		require.Greater(t, locks.left("x"), rlock.DefaultWatchdogTimeout-time.Second, "a ticket is no hold")
		_, unlock, err = locks.Elsewhere().Adopt(t.Context(), ticket, rlock.WithWatchdog(d))
		require.NoError(t, err)
		locks.requireRenewed("x", d)
		require.NoError(t, unlock())

		for _, options := range [][]rlock.Option{{rlock.WithWatchdog(rlock.MinWatchdogTimeout - 1)}, {rlock.WithWatchdog(0)}, {rlock.WithWatchdog(d), rlock.WithLease(d)}} {
			_, _, err := locks.Mutex("x", options...).Lock(t.Context())
			require.ErrorContains(t, err, "WithWatchdog")
		}
	})
}
