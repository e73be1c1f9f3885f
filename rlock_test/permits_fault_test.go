package rlock_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// Calls whose replies are lost are repeated, and count once.
func TestPermitsCountOnce(t *testing.T) {
	for _, action := range []redistest.Action{redistest.Cut, redistest.Drop} {
		for _, n := range []int{1, 3} {
			redistest.RunVirtual(t, fmt.Sprint(action, "/", n), func(t *testing.T) {
				b := newFixture(t)
				watch := b.PermitSemaphore(b.name)
				setPermits(t, watch, 5) // also loads the script
				proxy := redistest.StartProxy(t, redistest.Shared(t))
				c := newClient(t, redistest.Dial(t, proxy.Addr(), quickTimeout), rlock.Options{UnlockTimeout: time.Minute})
				s := c.PermitSemaphore(b.name, rlock.WithLease(time.Minute))
				proxy.OnReply(nthScript(1, action))
				proxy.OnReply(nthScript(2, action))
				held := acquire(t, s, n)
				requirePermits(t, watch, 5-int64(n), int64(n))
				proxy.OnReply(nthScript(1, action))
				proxy.OnReply(nthScript(2, action))
				require.NoError(t, within(t, async(held.permit.Release), testTimeout))
				requirePermits(t, watch, 5, 0)
			})
		}
	}
}

// A caller that leaves takes no permits, whether its call or the reply is late. Permits that it releases are released.
func TestPermitCallersLeave(t *testing.T) {
	for _, where := range []string{"request", "reply"} {
		redistest.RunVirtual(t, where, func(t *testing.T) {
			b := newFixture(t)
			watch := b.PermitSemaphore(b.name)
			setPermits(t, watch, 5)
			proxy := redistest.StartProxy(t, redistest.Shared(t))
			c := newClient(t, redistest.Dial(t, proxy.Addr()), rlock.Options{UnlockTimeout: 200 * time.Millisecond})
			s := c.PermitSemaphore(b.name)
			held := acquire(t, s, 2)
			noCalls(t)
			leavesDuring(t, proxy, where, func(ctx context.Context) error { _, _, err := s.AcquireN(ctx, 3); return err })
			requirePermits(t, watch, 3, 2)
			holdScript(proxy, where)
			require.ErrorIs(t, within(t, async(held.permit.Release), wakeTimeout), rlock.ErrUnreachable)
			require.Zero(t, c.Stats().Holds)
			proxy.Release()
			noCalls(t)
			requirePermits(t, watch, 5, 0)
		})
	}
}

// While Redis is down, each call to it fails with ErrUnreachable. Once Redis is back, released permits are free, and no call has
// taken any.
func TestPermitsOutage(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		watch := b.PermitSemaphore(b.name)
		setPermits(t, watch, 2)
		proxy := redistest.StartProxy(t, redistest.Shared(t))
		s := newClient(t, redistest.Dial(t, proxy.Addr())).PermitSemaphore(b.name)
		held := acquire(t, s, 2)
		waits, _ := b.permitAsync(t, s, 1)
		proxy.Refuse(true)
		proxy.CutAll()
		require.ErrorIs(t, within(t, async(held.permit.Release), testTimeout), rlock.ErrUnreachable)
		require.ErrorIs(t, held.permit.Release(), rlock.ErrNotHeld)
		require.ErrorIs(t, within(t, waits, testTimeout), rlock.ErrUnreachable)
		_, _, err := s.TryAcquire(context.Background(), 0)
		require.ErrorIs(t, err, rlock.ErrUnreachable)
		require.ErrorIs(t, s.Release(context.Background(), held.permit.ID()), rlock.ErrUnreachable)
		_, err = s.Available(context.Background())
		require.ErrorIs(t, err, rlock.ErrUnreachable)
		proxy.Refuse(false)
		eventuallyPermits(t, watch, 2, 0)
		noCalls(t) // Redis has run the call before its answer arrives; until then this process refuses permits
		require.NoError(t, acquire(t, s, 2).permit.Release())
	})
}

// Close ends sections and waits. Permits stay taken until their release, or the end of their lease.
func TestPermitsClose(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t, rlock.Options{WatchdogTimeout: 3 * time.Second})
		watch := newClient(t, b.rdb).PermitSemaphore(b.name)
		s := b.PermitSemaphore(b.name)
		setPermits(t, s, 2)
		held, left := acquire(t, s, 1), acquire(t, s, 1)
		waits, _ := b.permitAsync(t, s, 1)
		b.Close()
		require.ErrorIs(t, within(t, waits, wakeTimeout), rlock.ErrClosed)
		require.ErrorIs(t, context.Cause(held.ctx), rlock.ErrClosed)
		require.NotErrorIs(t, context.Cause(held.ctx), rlock.ErrLost)
		requirePermits(t, watch, 0, 2)
		_, _, err := s.Acquire(context.Background())
		require.ErrorIs(t, err, rlock.ErrClosed)
		require.NoError(t, held.permit.Release())
		require.ErrorIs(t, held.permit.Release(), rlock.ErrNotHeld)
		requirePermits(t, watch, 1, 1)
		require.Equal(t, uint64(0), b.Stats().Lost)
		sleep(3 * time.Second) // the lease of the other permit
		eventuallyPermits(t, watch, 2, 0)
		require.ErrorIs(t, left.permit.Release(), rlock.ErrLost)
		require.Zero(t, b.Stats().Holds)
	})
}

// A release during Close frees its permit and returns no error.
func TestPermitReleasesBesideClose(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		watch := b.PermitSemaphore(b.name)
		const n = 50
		setPermits(t, watch, n)
		for range 3 {
			c := newClient(t, b.rdb)
			var releases []<-chan error
			for range n {
				releases = append(releases, async(acquire(t, c.PermitSemaphore(b.name), 1).permit.Release))
			}
			c.Close()
			for _, got := range releases {
				require.NoError(t, within(t, got, wakeTimeout))
			}
			requirePermits(t, watch, n, 0)
		}
	})
}

// Shutdown waits for sections, and refuses new ones.
func TestPermitsShutdown(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		watch := newClient(t, b.rdb).PermitSemaphore(b.name)
		s := b.PermitSemaphore(b.name)
		setPermits(t, s, 1)
		held := acquire(t, s, 1)
		waits, _ := b.permitAsync(t, s, 1)
		shut := async(func() error { return b.Shutdown(context.Background()) })
		require.ErrorIs(t, within(t, waits, wakeTimeout), rlock.ErrClosed)
		_, _, err := s.Acquire(context.Background())
		require.ErrorIs(t, err, rlock.ErrClosed)
		requireStillWaits(t, shut)
		require.NoError(t, held.ctx.Err())
		require.NoError(t, held.permit.Release())
		require.NoError(t, within(t, shut, wakeTimeout))
		requirePermits(t, watch, 1, 0)

		c := newClient(t, b.rdb)
		stuck := acquire(t, c.PermitSemaphore(b.name), 1)
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, c.Shutdown(ctx), context.DeadlineExceeded)
		require.ErrorIs(t, context.Cause(stuck.ctx), rlock.ErrClosed)
		require.NoError(t, stuck.permit.Release())
		requirePermits(t, watch, 1, 0)
	})
}
