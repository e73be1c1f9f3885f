package rlock_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// WithMaxWait bounds Lock as TryLock does. All and Quorum use the shortest bound. The other kinds are tested in internal/testing/conformance.
func TestMaxWait(t *testing.T) {
	const bound = 100 * time.Millisecond
	most := rlock.WithMaxWait(bound)
	for kind, bounded := range map[string]func(s *twoClients) rlock.Locker{ // and whom it waits for by s.blocker
		"read side": func(s *twoClients) rlock.Locker { return s.RWMutex(s.name, most).Read() },
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
			s := newTwoClients(t, redistest.Shared(t))
			unlock := s.blocker(t, kind, s.name)
			began := time.Now()
			requireLockFails(t, context.Background(), bounded(s), rlock.ErrNotAcquired)
			requireTook(t, bound, began, time.Now())
			require.NoError(t, unlock())
		})
	}
}

func TestMaxWaitTooShort(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		require.ErrorContains(t, b.Mutex(b.name, rlock.WithMaxWait(0)).Do(t.Context(), nothingToDo), "WithMaxWait is 0s, want at least 1ms")
	})
}
