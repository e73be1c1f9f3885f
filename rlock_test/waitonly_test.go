package rlock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// foreignLock is a user's Locker around one of ours.
type foreignLock struct{ rlock.Locker }

func stockPermits(t *testing.T, s *twoClients, kind, name string, n int64) {
	t.Helper()
	var err error
	switch kind {
	case "Semaphore":
		_, err = s.Semaphore(name).TrySetPermits(context.Background(), n)
	case "PermitSemaphore":
		_, err = s.PermitSemaphore(name).TrySetPermits(context.Background(), n)
	}
	require.NoError(t, err)
}

// G3: a section locked with a WaitOnly ctx continues when that ctx ends, until its unlock. A Lock inside the section belongs to it. The other
// kinds are tested in internal/testing/conformance.
func TestWaitOnlySection(t *testing.T) {
	type key struct{}
	for kind, lock := range map[string]func(s *twoClients, name string) rlock.Locker{
		"read side":       func(s *twoClients, name string) rlock.Locker { return s.RWMutex(name).Read() },
		"Semaphore":       func(s *twoClients, name string) rlock.Locker { return s.Semaphore(name).Locker(1) },
		"PermitSemaphore": func(s *twoClients, name string) rlock.Locker { return s.PermitSemaphore(name).Locker(1) },
		"somebody else's in an All": func(s *twoClients, name string) rlock.Locker {
			return rlock.All(s.Mutex(name), foreignLock{s.Mutex(name + ":inner")})
		},
		"All of two calls":  leftKinds()["All of two calls"],
		"All with a Quorum": leftKinds()["All with a Quorum"],
	} {
		redistest.RunVirtual(t, kind, func(t *testing.T) {
			s := newTwoClients(t, redistest.Shared(t))
			name := s.name
			stockPermits(t, s, kind, name, 1)
			l := lock(s, name)
			outer, leave := context.WithCancel(context.WithValue(context.Background(), key{}, kind))
			wait, stop := context.WithTimeout(rlock.WaitOnly(outer), testTimeout) // bounds only the wait, like the ctx around it
			section, unlock := enter(t, wait, l)
			stop()
			leave()
			inner, unlockInner := enter(t, section, s.Mutex(name+":inside"))
			for what, ctx := range map[string]context.Context{"the section": section, "that inside": inner} {
				require.NoError(t, ctx.Err(), what)
				require.Equal(t, kind, ctx.Value(key{}), what)
				_, bounded := ctx.Deadline()
				require.False(t, bounded, what)
			}
			require.NoError(t, unlock())
			require.Error(t, section.Err())
			require.Error(t, inner.Err(), "it was a section inside the one that ended")
			require.NoError(t, unlockInner())
		})
	}
}

// G3: all other ways to a section: a re-entry, another lock inside, a downgrade, an upgrade, a ticket.
func TestWaitOnlyOfOtherWays(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		ctx := context.Background()
		m, rw := b.Mutex(b.name), b.RWMutex(b.name+":rw")
		section, unlock := enter(t, ctx, m)
		for name, way := range map[string]func(given context.Context) (context.Context, rlock.UnlockFunc, error){
			"re-entry": m.Lock,
			"inside":   b.Mutex(b.name + ":inside").Lock,
			"upgrade": func(given context.Context) (context.Context, rlock.UnlockFunc, error) {
				u := rw.Upgradeable()
				reader, read := enter(t, given, u)
				writer, written, err := u.Upgrade(rlock.WaitOnly(reader))
				return writer, func() error { return errors.Join(written(), read()) }, err
			},
			"downgrade": func(given context.Context) (context.Context, rlock.UnlockFunc, error) {
				writer, _ := enter(t, given, rw.Write())
				return rw.Downgrade(writer)
			},
			"ticket": func(given context.Context) (context.Context, rlock.UnlockFunc, error) {
				exported, _ := enter(t, ctx, b.Mutex(b.name+":ticket"))
				ticket := answer(rlock.Export(exported)).ok(t)
				return b.Adopt(given, ticket)
			},
		} {
			outer, leave := context.WithCancel(section)
			got, leaveIt, err := way(rlock.WaitOnly(outer))
			require.NoError(t, err, name)
			leave()
			require.NoError(t, got.Err(), name)
			held, err := m.IsHeld(got)
			require.NoError(t, err, name)
			require.True(t, held, name+" carries the holds around it")
			require.NoError(t, leaveIt(), name)
			require.Error(t, got.Err(), name)
		}
		require.NoError(t, unlock())

		// The end of the outer section does not end an inner one that was to outlive its ctx; but a re-entry ends with its hold.
		section, unlock = enter(t, ctx, m)
		inside, unlockInside := enter(t, rlock.WaitOnly(section), b.Mutex(b.name+":inside"))
		require.NoError(t, unlock())
		require.NoError(t, inside.Err())
		require.NoError(t, unlockInside())
		require.Panics(t, func() { rlock.WaitOnly(nil) }) //nolint:staticcheck // what it is about
	})
}

// G3, G4: under WaitOnly, a semaphore's TryDo returns ErrNotAcquired after its wait, and the cancellation once the
// caller has gone. Its section continues without the caller.
func TestWaitOnlyForPermits(t *testing.T) {
	for kind, tryDo := range map[string]func(s *twoClients, ctx context.Context, wait time.Duration, fn func(context.Context) error) error{
		"Semaphore": func(s *twoClients, ctx context.Context, wait time.Duration, fn func(context.Context) error) error {
			return s.Semaphore(s.name).TryDo(ctx, 1, wait, fn)
		},
		"PermitSemaphore": func(s *twoClients, ctx context.Context, wait time.Duration, fn func(context.Context) error) error {
			return s.PermitSemaphore(s.name).TryDo(ctx, wait, func(ctx context.Context, _ *rlock.Permit) error { return fn(ctx) })
		},
	} {
		redistest.RunVirtual(t, kind, func(t *testing.T) {
			s := newTwoClients(t, redistest.Shared(t))
			stockPermits(t, s, kind, s.name, 1)
			request, gone := context.WithCancel(context.Background())
			ran := 0
			require.NoError(t, tryDo(s, rlock.WaitOnly(request), testTimeout, func(ctx context.Context) error {
				ran++
				gone()
				require.NoError(t, ctx.Err())
				busy := tryDo(s, rlock.WaitOnly(context.Background()), 100*time.Millisecond, func(context.Context) error { ran++; return nil })
				require.ErrorIs(t, busy, rlock.ErrNotAcquired)
				require.ErrorIs(t, busy, rlock.ErrNotRun)
				require.NotErrorIs(t, busy, context.DeadlineExceeded)
				return nil
			}))
			require.Equal(t, 1, ran)
			err := tryDo(s, rlock.WaitOnly(request), testTimeout, func(context.Context) error { ran++; return nil })
			require.ErrorIs(t, err, context.Canceled)
			require.ErrorIs(t, err, rlock.ErrNotRun)
			require.Equal(t, 1, ran)
		})
	}
}
