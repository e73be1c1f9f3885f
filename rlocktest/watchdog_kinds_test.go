package rlocktest

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/rlock"
)

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
		forget := func(all ...*Client) {
			for _, s := range all {
				s.server.Del("x")
			}
			for all[0].left("x") < 0 && ctx.Err() == nil { // until a renewal notices
				time.Sleep(10 * time.Millisecond)
			}
		}
		forget(servers[0])
		forget(servers[1]) // seen after the first had it again
		time.Sleep(long)
		require.NoError(t, ctx.Err())
		forget(servers[:2]...) // seen before that
		time.Sleep(long / 2)
		require.ErrorIs(t, context.Cause(ctx), rlock.ErrLost)
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
