package rlock_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
)

// A writer in another process has the lock as soon as it is unlocked. Only now and then it lets listeners out of line go first, such as
// Redisson, which nothing but their unlocks shows.
func TestWriterWakesAtOnce(t *testing.T) {
	redistest.OnlyVirtual(t, "it counts moments of 10 ms", func(t *testing.T) {
		b := newFixture(t)
		other := newClient(t, redistest.Dial(t, redistest.Shared(t)))
		late, longest := 0, time.Duration(0)
		for range 60 {
			_, unlock := enter(t, context.Background(), b.RWMutex(b.name).Write())
			waiter := lockAsync(t, other.RWMutex(b.name).Write())
			sleep(time.Second)
			began := time.Now()
			require.NoError(t, unlock())
			got := waiter.get(t, soon)
			require.NoError(t, got.err)
			require.NoError(t, got.unlock())
			if took := got.at.Sub(began); took > 0 {
				late, longest = late+1, max(longest, took)
			}
		}
		require.Equal(t, 12, late, "in the first four seconds, after 2, 4 and 8 s more, then each 8 s")
		require.LessOrEqual(t, longest, 20*time.Millisecond)
	})
}
