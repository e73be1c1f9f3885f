package main

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

func TestUnlock(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		c := newLocks(t, s.Client(t))
		for name, m := range map[string]*rlock.Mutex{
			"mutex": c.Mutex("mutex"), "fenced": c.FencedMutex("fenced"), "fair": c.FairMutex("fair"),
			"read": c.RWMutex("read").Read(), "write": c.RWMutex("write").Write(),
		} {
			require.Equal(t, result{1, "", "rlock: \"" + name + "\": not held\n"}, call(t, s.Addr(), "unlock", "-force", "-yes", name))
			ctx, unlock := lock(t.Context(), t, m)
			waiter := newLocks(t, s.Client(t))
			var got <-chan context.Context
			if name == "mutex" {
				got = waitFor(t, waiter, waiter.Mutex(name))
			}

			r := call(t, s.Addr(), "unlock", name)
			require.Equal(t, exitUsage, r.code)
			require.Contains(t, r.err, "use -force")
			r = call(t, s.Addr(), "unlock", "-force", name) // stdin is no terminal
			require.Equal(t, exitUsage, r.code)
			require.Contains(t, r.err, "use -yes")
			held, err := m.IsLocked(t.Context())
			require.NoError(t, err)
			require.True(t, held)

			r = call(t, s.Addr(), "unlock", "-force", "-yes", name)
			require.Zero(t, r.code, r.err)
			require.Contains(t, r.out, rlock.Owner(ctx), "the holder is shown")
			require.Contains(t, r.out, "freed\n")
			require.ErrorIs(t, unlock(), rlock.ErrLost)
			if got != nil {
				require.Equal(t, waiter.ID(), clientID(rlock.Owner(<-got)), "the next one is woken")
			}
		}
	})
}

// Whoever takes the lock after its holder was shown keeps it, however late the command arrives.
func TestUnlockSparesTheNext(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		s := redistest.Start(t)
		m := newLocks(t, s.Client(t)).Mutex("job")
		shown, unlock := lock(t.Context(), t, m)
		proxy := redistest.StartProxy(t, s.Addr())
		asked, freed := make(chan struct{}), make(chan error)
		var once sync.Once
		proxy.OnRequest(func(cmd []string) redistest.Action {
			action := redistest.Pass
			if slices.Contains(cmd, rlock.Owner(shown)) {
				once.Do(func() {
					close(asked)
					action = redistest.Hold
				})
			}
			return action
		})
		var next context.Context
		var unlockNext rlock.UnlockFunc
		go func() { // ends with the command
			<-asked
			synctest.Wait() // until it is held back
			err := unlock()
			var err2 error
			next, unlockNext, err2 = m.Lock(t.Context())
			proxy.Release()
			freed <- errors.Join(err, err2)
		}()
		r := call(t, proxy.Addr(), "unlock", "-force", "-yes", "job")
		require.NoError(t, <-freed)
		require.Equal(t, exitFree, r.code)
		require.Contains(t, r.err, "left alone: now held by "+rlock.Owner(next))
		require.NoError(t, next.Err())
		require.NoError(t, unlockNext())
	})
}
