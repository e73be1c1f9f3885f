package rlock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// WithMaxWait bounds Lock of every kind as TryLock does. All and Quorum use the shortest bound. TryLock and the section are
// not affected.
func TestMaxWait(t *testing.T) {
	const bound = 100 * time.Millisecond
	most := rlock.WithMaxWait(bound)
	for kind, bounded := range map[string]func(s *twoClients) rlock.Locker{ // and whom it waits for by s.blocker
		"Mutex":       func(s *twoClients) rlock.Locker { return s.Mutex(s.name, most) },
		"FencedMutex": func(s *twoClients) rlock.Locker { return s.FencedMutex(s.name, most) },
		"FairMutex":   func(s *twoClients) rlock.Locker { return s.FairMutex(s.name, most) },
		"read side":   func(s *twoClients) rlock.Locker { return s.RWMutex(s.name, most).Read() },
		"write side":  func(s *twoClients) rlock.Locker { return s.RWMutex(s.name, most).Write() },
		"Upgradeable": func(s *twoClients) rlock.Locker { return s.RWMutex(s.name, most).Upgradeable() },
		"All": func(s *twoClients) rlock.Locker {
			return rlock.All(s.Mutex(s.name+":b", rlock.WithMaxWait(time.Hour)), s.Mutex(s.name, most), s.Mutex(s.name+":c"))
		},
		"an All in an All": func(s *twoClients) rlock.Locker {
			return rlock.All(s.Mutex(s.name+":e"), rlock.All(s.Mutex(s.name, most)))
		},
		"Quorum": func(s *twoClients) rlock.Locker {
			return rlock.Quorum(s.Mutex(s.name), s.third.Mutex(s.name+":third", most), s.other.Mutex(s.name+":other"))
		},
		"PermitSemaphore": func(s *twoClients) rlock.Locker { return s.PermitSemaphore(s.name, most).Locker(1) },
	} {
		redistest.RunVirtual(t, kind, func(t *testing.T) {
			ctx := context.Background()
			s := newTwoClients(t, redistest.Shared(t))
			unlock := s.blocker(t, kind, s.name)
			began, bounded := time.Now(), bounded(s)
			_, none, err := bounded.Lock(ctx)
			require.ErrorIs(t, err, rlock.ErrNotAcquired)
			requireTook(t, bound, began, time.Now())
			require.ErrorIs(t, none(), rlock.ErrNotHeld)
			_, _, err = bounded.TryLock(ctx, 0)
			require.ErrorIs(t, err, rlock.ErrNotAcquired)
			waits := async(func() error {
				_, unlock, err := bounded.TryLock(ctx, testTimeout)
				return errors.Join(err, unlock())
			})
			sleep(bound + bound/2)
			require.NoError(t, unlock())
			require.NoError(t, within(t, waits, testTimeout), "TryLock waits for as long as its own argument says")
		})
	}
}

func TestMaxWaitTooShort(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		require.ErrorContains(t, b.Mutex(b.name, rlock.WithMaxWait(0)).Do(t.Context(), nothingToDo), "WithMaxWait is 0s, want at least 1ms")
	})
}
