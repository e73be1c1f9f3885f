//go:build !race

// The race detector knows no more than 8,128 goroutines.

package rlock_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// A Client with a crowd of waiters shuts down, while a section of it goes on, and others are lost. The section is renewed, and its unlock is
// as fast as ever.
func TestShutdownWithACrowd(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		const n = 40_000
		s := redistest.Start(t)
		c := newClient(t, s.Client(t), rlock.Options{WatchdogTimeout: 2 * time.Second})
		peer := newClient(t, s.Client(t), rlock.Options{})
		_, unlockX, err := peer.Mutex("x").Lock(t.Context())
		require.NoError(t, err)
		var all sync.WaitGroup
		for range n {
			all.Go(func() { _, _, _ = c.Mutex("x").Lock(context.Background()) })
		}
		redistest.Eventually(t, time.Minute, func() bool { return c.Stats().Waiting >= n-1 }, "all wait")
		y, unlockY, err := c.Mutex("y").Lock(t.Context())
		require.NoError(t, err)
		var keys []string
		var lost []context.Context
		var unlocks []rlock.UnlockFunc
		for i := range 10 {
			key := fmt.Sprint("z", i)
			z, unlockZ, err := c.Mutex(key).Lock(t.Context())
			require.NoError(t, err)
			keys, lost, unlocks = append(keys, key), append(lost, z), append(unlocks, unlockZ)
		}
		require.NoError(t, y.Err())

		adm := s.Client(t)
		require.NoError(t, adm.Do(t.Context(), adm.B().Del().Key(keys...).Build()).Error())
		began := time.Now()
		ended := make(chan error, 1)
		go func() { ended <- c.Shutdown(t.Context()) }() // ends with the unlocks
		for _, z := range lost {
			select {
			case <-z.Done():
			case <-time.After(5 * time.Second):
				t.Fatal("a lost section is not told")
			}
		}
		all.Wait()
		_, _, err = peer.Mutex("y").TryLock(t.Context(), 3*time.Second)
		require.ErrorIs(t, err, rlock.ErrNotAcquired, "it is renewed")
		require.NoError(t, y.Err())
		at := time.Now()
		require.NoError(t, unlockY())
		require.Less(t, time.Since(at), time.Second)
		for _, unlock := range unlocks {
			require.ErrorIs(t, unlock(), rlock.ErrLost)
		}
		require.NoError(t, <-ended)
		t.Log(n, "waiters; over after", time.Since(began))
		require.NoError(t, unlockX())
	})
}
