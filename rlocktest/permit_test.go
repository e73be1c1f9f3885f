package rlocktest

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/rlock"
)

// On the in-memory server, expiring permits are renewed while their section runs, and a fixed lease ends to the millisecond.
func TestPermitsInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(t)
		s := c.PermitSemaphore("workers")
		require.NoError(t, s.SetPermits(t.Context(), 2))
		ctx, p := holds(t, s)
		fixed, last, err := c.PermitSemaphore("workers", rlock.WithLease(10*time.Second)).Acquire(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, last.Slot())
		waits := make(chan *rlock.Permit)
		go func() { // ends with its permit; a failed Acquire has none
			_, next, _ := s.Acquire(t.Context())
			waits <- next
		}()
		began := time.Now()
		<-fixed.Done()
		require.ErrorIs(t, context.Cause(fixed), rlock.ErrLost)
		next := <-waits
		require.InDelta(t, 10, time.Since(began).Seconds(), 0.01)
		require.Equal(t, 1, next.Slot())
		require.ErrorIs(t, last.Release(), rlock.ErrLost)
		time.Sleep(10 * time.Minute)
		require.NoError(t, ctx.Err())
		left, err := s.LeaseTime(t.Context(), p.ID())
		require.NoError(t, err)
		require.Greater(t, left, rlock.DefaultWatchdogTimeout/2)
		require.NoError(t, next.Release())
		require.NoError(t, p.Release())
	})
}

// holds takes permits until the end of the test.
func holds(t *testing.T, s *rlock.PermitSemaphore) (context.Context, *rlock.Permit) {
	t.Helper()
	ctx, p, err := s.Acquire(t.Context())
	require.NoError(t, err)
	return ctx, p
}

func TestHoldExpiringPermitsElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{TB: t}
		c := New(r)
		s := c.PermitSemaphore("workers")
		require.NoError(t, s.SetPermits(t.Context(), 3))
		other := c.HoldExpiringPermitsElsewhere("workers", 3)
		require.Equal(t, []int{0, 1, 2}, other.Slots())
		var at int
		waits := make(chan *rlock.Permit)
		go func() { // ends with its permit; a failed Acquire has none
			_, p, _ := s.Acquire(t.Context())
			at = line() - 1
			waits <- p
		}()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		require.Empty(t, waits, "they are renewed")
		require.NoError(t, other.Release())
		p := <-waits
		require.Equal(t, 0, p.Slot())
		require.Equal(t, -1, c.HoldExpiringPermitsElsewhere("workers", 3).Slot())
		c.HoldExpiringPermitsElsewhere("workers", 2) // until the end
		require.Equal(t, []string{
			`rlocktest: HoldExpiringPermitsElsewhere: rlock: "workers": not acquired: 2 free of 3 wanted`,
			`rlocktest: at the end of the test "workers" is still held by permit ` + p.ID() + `, with slot 0, locked in permit_test.go:` + strconv.Itoa(at),
		}, r.end())
	})
}

func TestLosePermit(t *testing.T) {
	for name, prefix := range map[string]string{"workers": "", "{a}:workers": "", "jobs": "shop:"} {
		t.Run(prefix+name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &recorder{TB: t}
				c := NewWith(r, rlock.Options{Prefix: prefix})
				s := c.PermitSemaphore(name)
				require.NoError(t, s.SetPermits(t.Context(), 3))
				other := c.HoldExpiringPermitsElsewhere(name, 1)
				there, left := holds(t, c.Elsewhere().PermitSemaphore(name))
				ctx, p := holds(t, s)
				require.Equal(t, 2, p.Slot())
				waits := make(chan *rlock.Permit)
				go func() { // ends with its permit; a failed Acquire has none
					_, p, _ := s.Acquire(t.Context())
					waits <- p
				}()
				synctest.Wait()
				c.LosePermit(name)
				began := time.Now()
				next := <-waits
				require.Zero(t, time.Since(began), "waiters get it at once")
				require.Equal(t, 2, next.Slot())
				<-ctx.Done()
				require.ErrorIs(t, context.Cause(ctx), rlock.ErrLost)
				require.LessOrEqual(t, time.Since(began), rlock.DefaultWatchdogTimeout/3+time.Second)
				require.ErrorIs(t, p.Release(), rlock.ErrLost)
				require.NoError(t, next.Release())
				c.LosePermit(name) // the held permits are Elsewhere's
				require.NoError(t, there.Err())
				require.NoError(t, left.Release())
				require.NoError(t, other.Release())
				require.Equal(t, []string{fmt.Sprintf("rlocktest: LosePermit: the code under test holds no permit of %q", name)}, r.end())
			})
		})
	}
}

// A lost semaphore loses its held permits, too.
func TestLoseAPermitSemaphore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(t)
		s := c.PermitSemaphore("workers")
		require.NoError(t, s.SetPermits(t.Context(), 2))
		ctx, p := holds(t, s)
		c.Lose("workers")
		all, err := s.Permits(t.Context())
		require.NoError(t, err)
		require.Zero(t, all)
		<-ctx.Done()
		require.ErrorIs(t, p.Release(), rlock.ErrLost)
	})
}

// A crashed process's permits are not reported, and come back when their lease expires.
func TestPermitsOfACrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(t)
		s := c.PermitSemaphore("workers")
		require.NoError(t, s.SetPermits(t.Context(), 2))
		first, second := c.Elsewhere(), c.Elsewhere()
		holds(t, first.PermitSemaphore("workers"))
		holds(t, second.PermitSemaphore("workers"))
		c.Crash(first)
		began := time.Now()
		_, p := holds(t, s)
		require.InDelta(t, rlock.DefaultWatchdogTimeout.Seconds(), time.Since(began).Seconds(), 11)
		require.NoError(t, p.Release())
		c.Crash(second)
	})
}
