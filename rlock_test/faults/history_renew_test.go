package faults

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// A run's log recognizes the renewals of every kind. Otherwise a long hold would look as if it outlived its trust (G2).
func TestHistoryCheckerKnowsRenewals(t *testing.T) {
	t.Parallel()
	for kind, of := range map[string]func(c *rlock.Client, name string) rlock.Locker{
		"plain": func(c *rlock.Client, name string) rlock.Locker { return c.Mutex(name) },
		"fair":  func(c *rlock.Client, name string) rlock.Locker { return c.FairMutex(name) },
		"read":  func(c *rlock.Client, name string) rlock.Locker { return c.RWMutex(name).Read() },
		"write": func(c *rlock.Client, name string) rlock.Locker { return c.RWMutex(name).Write() },
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			log := newHistLog()
			c, err := rlock.New(histRedis{Client: redistest.Dial(t, redistest.Shared(t)), log: log}, rlock.Options{WatchdogTimeout: time.Second})
			require.NoError(t, err)
			t.Cleanup(c.Close)
			for _, names := range []int{1, 2} { // renewed alone, and together
				var keys []histKey
				for range names {
					name := redistest.Name(t)
					ctx, unlock, err := of(c, name).Lock(context.Background())
					require.NoError(t, err)
					t.Cleanup(func() { require.NoError(t, unlock()) })
					keys = append(keys, histKey{name, rlock.Owner(ctx)})
				}
				for _, k := range keys {
					first := log.trusted(k)
					require.NotZero(t, first)
					redistest.Eventually(t, 10*time.Second, func() bool { return log.trusted(k) > first }, "the log must see a renewal")
				}
			}
		})
	}
}
