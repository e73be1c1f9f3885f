package rlocktest

import (
	"cmp"
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
	const periods = 9
	renewals, last := 0, c.left(key)
	for began := time.Now(); time.Since(began) < periods*d/3; {
		time.Sleep(d / 100)
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
					require.False(t, lost(), "the holder was told before")
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
		for _, d := range []time.Duration{500 * time.Millisecond, 5 * time.Second, 2 * time.Minute} {
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
					time.Sleep(5 * d)
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

// passing passes the lock through waiting handles with those watchdog times, in order, and returns their owners. Each holds it for long enough
// to be renewed.
func (c *Client) passing(of func(i int) *rlock.Client, kind func(*rlock.Client, ...rlock.Option) rlock.Locker, all ...time.Duration) (owners []string) {
	_, first, err := kind(of(0), rlock.WithWatchdog(all[0])).Lock(c.t.Context())
	require.NoError(c.t, err)
	done := make(chan struct{})
	for i, d := range all {
		l := kind(of(i), rlock.WithWatchdog(d))
		go func() { // ends itself
			defer func() { done <- struct{}{} }()
			if err := do(context.Background(), l, func(ctx context.Context) error {
				owners = append(owners, rlock.Owner(ctx)) // they exclude each other
				if left := c.left("x"); left > d {
					c.t.Errorf("%v: %v at first", d, left)
				}
				time.Sleep(2 * time.Second) // if it was granted, its first renewal is over
				for range 50 {
					time.Sleep(d / 25)
					if left := c.left("x"); left > d || left < d/2 {
						c.t.Errorf("%v: %v later", d, left)
					}
				}
				return ctx.Err()
			}); err != nil {
				c.t.Error(err)
			}
		}()
		time.Sleep(100 * time.Millisecond)
	}
	require.NoError(c.t, first())
	for range all {
		<-done
	}
	return owners
}

// A lock passed between handles has each handle's watchdog time, within a process and across processes.
func TestPassingBetweenWatchdogTimes(t *testing.T) {
	const short, long = 900 * time.Millisecond, time.Minute
	times := []time.Duration{5 * time.Second, short, short, long, long, rlock.DefaultWatchdogTimeout, short, 5 * time.Second}
	for name, kind := range map[string]func(*rlock.Client, ...rlock.Option) rlock.Locker{"mutex": mutex, "fenced": fenced, "fair": fair, "write": write} {
		for _, handOff := range []rlock.HandOff{{For: time.Hour}, {Most: -1}} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					locks := NewWith(t, rlock.Options{HandOff: handOff})
					owners := locks.passing(func(int) *rlock.Client { return locks.Client }, kind, times...)
					require.Len(t, owners, len(times))
					elsewhere := locks.Elsewhere()
					locks.passing(func(i int) *rlock.Client { return []*rlock.Client{locks.Client, elsewhere}[i%2] }, kind, times...)
				})
			})
		}
	}
}

// A hold passes between goroutines in memory, as one owner in Redis, if their watchdog times are equal, however they are set.
func TestPassingInMemoryNeedsOneWatchdogTime(t *testing.T) {
	for name, kind := range map[string]func(*rlock.Client, ...rlock.Option) rlock.Locker{"mutex": mutex, "fenced": fenced} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				locks := NewWith(t, rlock.Options{HandOff: rlock.HandOff{For: time.Hour}})
				var owners []string
				var done []chan struct{}
				_, unlock, err := kind(locks.Client).Lock(t.Context())
				require.NoError(t, err)
				for _, options := range [][]rlock.Option{
					nil, {rlock.WithWatchdog(rlock.DefaultWatchdogTimeout)}, {rlock.WithWatchdog(9 * time.Second)}, {rlock.WithWatchdog(9 * time.Second)}, nil,
				} {
					ended := make(chan struct{})
					done = append(done, ended)
					go func() { // ends itself
						defer close(ended)
						if err := do(t.Context(), kind(locks.Client, options...), func(ctx context.Context) error {
							owners = append(owners, rlock.Owner(ctx))
							return nil
						}); err != nil {
							t.Error(err)
						}
					}()
					synctest.Wait()
				}
				require.NoError(t, unlock())
				for _, ended := range done {
					<-ended
				}
				same := func(a, b int) bool { return owners[a] == owners[b] }
				require.Equal(t, []bool{true, false, true, false}, []bool{same(0, 1), same(1, 2), same(2, 3), same(3, 4)}, "%v", owners)
			})
		})
	}
}

// The next goroutine gets only its own watchdog time, even if the previous hold had more left.
func TestPassingAfterALongerReentry(t *testing.T) {
	for name, options := range map[string][]rlock.Option{"watchdog": {rlock.WithWatchdog(time.Hour)}, "lease": {rlock.WithLease(time.Hour)}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const d = 3 * time.Second
				locks := New(t)
				l := mutex(locks.Client, rlock.WithWatchdog(d))
				ctx, unlock, err := l.Lock(t.Context())
				require.NoError(t, err)
				_, inner, err := mutex(locks.Client, options...).Lock(ctx)
				require.NoError(t, err)
				require.NoError(t, inner())
				require.Greater(t, locks.left("x"), time.Minute)
				next := make(chan error)
				go func() { // ends itself
					next <- do(t.Context(), l, func(context.Context) error {
						locks.requireRenewed("x", d)
						return nil
					})
				}()
				synctest.Wait()
				require.NoError(t, unlock())
				require.NoError(t, <-next)
			})
		})
	}
}

// Readers admitted together share a hold, too, if their watchdog times are equal.
func TestReadersLetInTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := NewWith(t, rlock.Options{HandOff: rlock.HandOff{For: time.Hour}})
		_, unlock, err := write(locks.Client).Lock(t.Context())
		require.NoError(t, err)
		type reader struct {
			d     time.Duration
			owner string
		}
		in, leave := make(chan reader), make(chan struct{})
		times := []time.Duration{20 * time.Second, 20 * time.Second, 3 * time.Second, 3 * time.Second}
		for _, d := range times {
			go func() { // ends itself
				if err := do(context.Background(), read(locks.Client, rlock.WithWatchdog(d)), func(ctx context.Context) error {
					in <- reader{d, rlock.Owner(ctx)}
					<-leave
					return ctx.Err()
				}); err != nil {
					t.Error(err)
				}
			}()
			synctest.Wait()
		}
		require.NoError(t, unlock())
		of := make(map[string]time.Duration)
		for range times {
			r := <-in
			require.Equal(t, r.d, cmp.Or(of[r.owner], r.d), "%s", r.owner)
			of[r.owner] = r.d
		}
		require.Less(t, len(of), len(times), "%v", of)
		for owner, d := range of {
			locks.requireRenewed("{x}:"+owner+":rwlock_timeout:1", d)
		}
		close(leave)
		synctest.Wait()
		require.Empty(t, locks.server.Keys())
	})
}

// Readers of one process with equal watchdog times share a hold in Redis. Readers with different ones have separate holds.
func TestReadersOfDifferentWatchdogTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := NewWith(t, rlock.Options{HandOff: rlock.HandOff{For: time.Hour}})
		var unlocks []rlock.UnlockFunc
		lock := func(d time.Duration) string {
			ctx, unlock, err := read(locks.Client, rlock.WithWatchdog(d)).Lock(t.Context())
			require.NoError(t, err)
			unlocks = append(unlocks, unlock)
			return rlock.Owner(ctx)
		}
		const short, long = 3 * time.Second, 20 * time.Second
		first := lock(long)
		require.Equal(t, first, lock(long))
		other := lock(short)
		require.NotEqual(t, first, other)
		require.Equal(t, other, lock(short))
		require.NotEqual(t, other, lock(long))
		time.Sleep(time.Minute)
		left := locks.left("{x}:" + other + ":rwlock_timeout:1")
		require.Greater(t, left, short/2)
		require.LessOrEqual(t, left, short)
		locks.requireRenewed("{x}:"+first+":rwlock_timeout:1", long)
		for _, unlock := range unlocks {
			require.NoError(t, unlock())
		}
		require.Empty(t, locks.server.Keys())
	})
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

// A quorum has its members' watchdog time, which must be equal.
func TestWatchdogOfAQuorum(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const d, long = 3 * time.Second, 40 * time.Second
		servers := []*Client{New(t), New(t), NewWith(t, rlock.Options{WatchdogTimeout: time.Minute})}
		of := func(times ...time.Duration) *rlock.QuorumMutex {
			var members []rlock.Locker
			for i, s := range servers {
				members = append(members, s.Mutex("x", rlock.WithWatchdog(times[i%len(times)])))
			}
			return rlock.Quorum(members...)
		}
		_, _, err := of(d, d, long).Lock(t.Context())
		require.ErrorContains(t, err, "differs from the first in WithWatchdog")

		ctx, unlock, err := of(d).Lock(t.Context())
		require.NoError(t, err)
		for _, s := range servers {
			s.requireRenewed("x", d)
		}
		_, inner, err := of(long).Lock(ctx)
		require.NoError(t, err)
		time.Sleep(d)
		for _, s := range servers {
			s.requireRenewed("x", long)
		}
		require.NoError(t, inner())
		time.Sleep(long)
		for _, s := range servers {
			s.requireRenewed("x", d)
		}
		restored := []func(){servers[0].FailRedis(), servers[1].FailRedis()}
		began := time.Now()
		<-ctx.Done()
		require.Less(t, time.Since(began), d)
		require.ErrorIs(t, context.Cause(ctx), rlock.ErrLost)
		for _, restore := range restored {
			restore()
		}
		require.ErrorIs(t, unlock(), rlock.ErrLost)
		time.Sleep(time.Minute)
	})
}

// The loss of a hold on a majority of servers, one after the other, is noticed even if a level renews for longer than its Lock asked for.
func TestQuorumForgetsALongerWatchdogTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const d, long = 3 * time.Second, 40 * time.Second
		servers := []*Client{New(t), New(t), New(t)}
		of := func(d time.Duration) *rlock.QuorumMutex {
			var members []rlock.Locker
			for _, s := range servers {
				members = append(members, s.Mutex("x", rlock.WithWatchdog(d)))
			}
			return rlock.Quorum(members...)
		}
		ctx, unlock, err := of(d).Lock(t.Context())
		require.NoError(t, err)
		_, inner, err := of(long).Lock(ctx)
		require.NoError(t, err)
		time.Sleep(long)
		for ctx.Err() == nil {
			servers[0].server.Del("x")
			for servers[0].left("x") < 0 { // until a renewal notices, and the hold is released
				time.Sleep(10 * time.Millisecond)
			}
			if servers[1].left("x") < long-time.Second { // it was renewed before that
				servers[1].server.Del("x")
				time.Sleep(long / 2)
				require.ErrorIs(t, context.Cause(ctx), rlock.ErrLost)
			} else {
				time.Sleep(long)
			}
		}
		require.ErrorIs(t, inner(), rlock.ErrLost)
		require.ErrorIs(t, unlock(), rlock.ErrLost)
		time.Sleep(time.Minute)
	})
}

// A crashed process's permits come back within its handle's watchdog time.
func TestWatchdogOfPermits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const d = 3 * time.Second
		locks := New(t)
		elsewhere := locks.Elsewhere()
		set, err := locks.PermitSemaphore("s").TrySetPermits(t.Context(), 1)
		require.NoError(t, err)
		require.True(t, set)
		_, p, err := elsewhere.PermitSemaphore("s", rlock.WithWatchdog(d)).Acquire(t.Context())
		require.NoError(t, err)
		for range 100 {
			time.Sleep(d / 10)
			left, err := locks.PermitSemaphore("s").LeaseTime(t.Context(), p.ID())
			require.NoError(t, err)
			require.LessOrEqual(t, left, d)
			require.Greater(t, left, d/2)
		}
		locks.Crash(elsewhere)
		crashed := time.Now()
		_, next, err := locks.PermitSemaphore("s").Acquire(t.Context())
		require.NoError(t, err)
		require.LessOrEqual(t, time.Since(crashed), d+100*time.Millisecond)
		require.NoError(t, next.Release())
	})
}

// A kept lock is renewed with its handle's watchdog time, passes to handles with the same time, and is free within it after a crash.
func TestWatchdogOfAKeptLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const d = 3 * time.Second
		locks := New(t)
		elsewhere := locks.Elsewhere()
		use := func(options ...rlock.Option) (owner string) {
			require.NoError(t, elsewhere.Mutex("x", append(options, rlock.WithLinger(time.Hour))...).Do(t.Context(), func(ctx context.Context) error {
				owner = rlock.Owner(ctx)
				return nil
			}))
			return owner
		}
		use(rlock.WithWatchdog(d))
		time.Sleep(time.Second) // it listens
		first := use(rlock.WithWatchdog(d))
		time.Sleep(time.Second)
		require.Equal(t, first, use(rlock.WithWatchdog(d)))
		locks.requireRenewed("x", d)
		require.NotEqual(t, first, use())
		time.Sleep(time.Second)
		locks.requireRenewed("x", rlock.DefaultWatchdogTimeout)
		use(rlock.WithWatchdog(d))
		locks.requireRenewed("x", d)
		require.Equal(t, 1, elsewhere.Stats().Idle)
		locks.Crash(elsewhere)
		crashed := time.Now()
		require.NoError(t, locks.Mutex("x").Do(t.Context(), func(context.Context) error { return nil }))
		require.LessOrEqual(t, time.Since(crashed), d+100*time.Millisecond)
	})
}

// Other time options count from the handle's watchdog time.
func TestWatchdogBesideOtherOptions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const d = 3 * time.Second
		locks := New(t)
		ctx, unlock, err := locks.Mutex("x", rlock.WithWatchdog(d), rlock.WithGrace(time.Minute)).Lock(t.Context())
		require.NoError(t, err)
		time.Sleep(time.Hour)
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
