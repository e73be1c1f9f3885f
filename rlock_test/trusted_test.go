package rlock_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	sections "github.com/go-rlock/rlock/internal/tenure"
	"github.com/go-rlock/rlock/internal/testing/bubble"
	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// TrustedUntil is the end of the shortest lease in ctx.
func TestTrustedUntil(t *testing.T) {
	redistest.OnlyVirtual(t, "exact times", func(t *testing.T) {
		b := newFixture(t)
		ctx, began := context.Background(), time.Now()
		_, ok := rlock.TrustedUntil(ctx)
		require.False(t, ok, "no hold")
		outer, unlock := enter(t, ctx, b.Mutex(b.name))
		until, ok := rlock.TrustedUntil(outer)
		require.True(t, ok)
		require.Equal(t, 30*time.Second, until.Sub(began))
		sleep(15 * time.Second)
		until, _ = rlock.TrustedUntil(outer)
		require.Greater(t, until.Sub(began), 39*time.Second, "renewed")
		renewed := until

		inner, unlockInner := enter(t, outer, b.Mutex(b.name+":2", rlock.WithLease(time.Second)))
		until, _ = rlock.TrustedUntil(inner)
		require.Equal(t, 16*time.Second, until.Sub(began), "the shortest")
		<-inner.Done()
		until, ok = rlock.TrustedUntil(inner)
		require.True(t, ok && until.IsZero(), "lost")
		require.ErrorIs(t, unlockInner(), rlock.ErrLost)
		until, _ = rlock.TrustedUntil(outer)
		require.Equal(t, renewed, until)
		require.NoError(t, unlock())
		_, ok = rlock.TrustedUntil(outer)
		require.False(t, ok, "unlocked")

		s := b.PermitSemaphore(b.name + ":3")
		require.NoError(t, s.SetPermits(ctx, 1))
		held, p, err := s.Acquire(ctx)
		require.NoError(t, err)
		until, ok = rlock.TrustedUntil(held)
		require.True(t, ok)
		require.Equal(t, 30*time.Second, time.Until(until))
		plain := b.Semaphore(b.name + ":4")
		_, err = plain.TrySetPermits(ctx, 1)
		require.NoError(t, err)
		for outer, leased := range map[context.Context]bool{ctx: false, held: true} {
			require.NoError(t, plain.Do(outer, 1, func(ctx context.Context) error {
				end, ok := rlock.TrustedUntil(ctx)
				require.Equal(t, leased, ok, "its permits have no lease")
				require.Equal(t, leased, end.Equal(until))
				return nil
			}))
		}
		require.NoError(t, p.Release())
	})
}

// staleLock is a lock whose lease ends while nothing has cancelled its ctx: what a process sees that was paused and has just resumed.
type staleLock struct {
	rlock.Locker
	sections.Section // for the methods that nobody calls

	until time.Time
}

func (s *staleLock) Lock(ctx context.Context) (context.Context, rlock.UnlockFunc, error) {
	return context.WithValue(ctx, sections.SectionKey{}, sections.Section(s)), func() error { return nil }, nil
}

func (s *staleLock) Name() string                    { return "stale" }
func (s *staleLock) Around() sections.Section        { return nil }
func (s *staleLock) IsOpen() bool                    { return true }
func (s *staleLock) TrustedUntil() (time.Time, bool) { return s.until, true }

// A process that resumes after the end of its lease does not say that it leads, even before its ctx ends.
func TestLeadershipAfterAPause(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var l rlock.Leadership
		lock := &staleLock{until: time.Now().Add(time.Second)}
		err := rlock.Lead(t.Context(), lock, func(ctx context.Context) error {
			require.True(t, l.State().Leading)
			sleep(time.Second)
			require.NoError(t, ctx.Err())
			require.False(t, l.State().Leading)
			return nil
		}, rlock.ReportTo(&l))
		require.NoError(t, err)
	})
}
