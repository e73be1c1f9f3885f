package rlock_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// WithMaxWait bounds Lock of every kind as TryLock does. All and Quorum use the shortest bound. TryLock and the section are
// not affected.
func TestMaxWait(t *testing.T) {
	redistest.Parallel(t)
	b := newFixture(t)
	ctx := context.Background()
	most := rlock.WithMaxWait(100 * time.Millisecond)
	other := newClient(t, b.rdb)
	for name, l := range map[string]struct {
		taken, bounded rlock.Locker
	}{
		"Mutex":  {other.Mutex(b.name + ":m"), b.Mutex(b.name+":m", most)},
		"Fenced": {other.Mutex(b.name + ":n"), b.FencedMutex(b.name+":n", most)},
		"Fair":   {other.FairMutex(b.name + ":f"), b.FairMutex(b.name+":f", most)},
		"read":   {other.RWMutex(b.name + ":r").Write(), b.RWMutex(b.name+":r", most).Read()},
		"write":  {other.RWMutex(b.name + ":w").Read(), b.RWMutex(b.name+":w", most).Write()},
		"Upgradeable": {
			other.RWMutex(b.name + ":u").Write(), b.RWMutex(b.name+":u", most).Upgradeable(),
		},
		"All": {
			other.Mutex(b.name + ":a"),
			rlock.All(b.Mutex(b.name+":b", rlock.WithMaxWait(time.Hour)), b.Mutex(b.name+":a", most), b.Mutex(b.name+":c")),
		},
		"an All in an All": {other.Mutex(b.name + ":d"), rlock.All(b.Mutex(b.name+":e"), rlock.All(b.Mutex(b.name+":d", most)))},
		"Quorum": {
			rlock.All(other.Mutex(b.name+":q"), newClient(t, b.rdb).Mutex(b.name+":q2")),
			rlock.Quorum(b.Mutex(b.name+":q"), newClient(t, b.rdb).Mutex(b.name+":q2", most), newClient(t, b.rdb).Mutex(b.name+":q3")),
		},
		"permits": {nil, b.PermitSemaphore(b.name+":p", most).Locker(1)},
	} {
		t.Run(name, func(t *testing.T) {
			redistest.Parallel(t)
			unlock := func() error { return nil }
			if l.taken != nil {
				var err error
				_, unlock, err = l.taken.Lock(ctx)
				require.NoError(t, err)
			}
			began := time.Now()
			_, none, err := l.bounded.Lock(ctx)
			require.ErrorIs(t, err, rlock.ErrNotAcquired)
			require.GreaterOrEqual(t, time.Since(began), 100*time.Millisecond)
			require.ErrorIs(t, none(), rlock.ErrNotHeld)
			_, _, err = l.bounded.TryLock(ctx, 0)
			require.ErrorIs(t, err, rlock.ErrNotAcquired)
			waits := make(chan error, 1)
			go func() { // ends with its TryLock
				_, unlock, err := l.bounded.TryLock(ctx, testTimeout)
				if err == nil {
					err = unlock()
				}
				waits <- err
			}()
			sleep(150 * time.Millisecond)
			require.NoError(t, unlock())
			if l.taken == nil {
				_, err = b.PermitSemaphore(b.name+":p").TrySetPermits(ctx, 1)
				require.NoError(t, err)
			}
			require.NoError(t, within(t, waits, testTimeout), "TryLock waits for as long as its own argument says")
		})
	}
	require.ErrorContains(t, b.Mutex(b.name, rlock.WithMaxWait(0)).Do(ctx, nothingToDo), "WithMaxWait is 0s, want at least 1ms")
}
