//go:build unix

package memory_test

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// The cost of a level does not depend on how many are open, of one hold or of all the readers that share what their process has in Redis.
func TestCostOfManyOpenLevels(t *testing.T) {
	for name, of := range map[string]func(*rlock.Client, string) *rlock.Mutex{
		"of one hold": func(c *rlock.Client, name string) *rlock.Mutex { return c.Mutex(name) },
		"of readers":  func(c *rlock.Client, name string) *rlock.Mutex { return c.RWMutex(name).Read() },
	} {
		t.Run(name, func(t *testing.T) {
			const few, many = 2_000, 40_000
			c, err := rlock.New(start(t).Client(t, counted, single), rlock.Options{WatchdogTimeout: long, HandOff: rlock.HandOff{For: long}})
			require.NoError(t, err)
			t.Cleanup(c.Close)
			m := of(c, redistest.Name(t))
			levels := func(n int) time.Duration {
				under := context.Background()
				ctx, unlock, err := m.Lock(under)
				require.NoError(t, err)
				if name == "of one hold" {
					under = ctx
				}
				unlocks, began := []rlock.UnlockFunc{unlock}, cpu(t)
				for range n {
					_, unlock, err := m.Lock(under)
					require.NoError(t, err)
					unlocks = append(unlocks, unlock)
				}
				for _, unlock := range unlocks {
					require.NoError(t, unlock())
				}
				return (cpu(t) - began) / time.Duration(n)
			}
			levels(few) // the first ones pay for what is made once
			one, each := levels(few), levels(many)
			t.Logf("a level of %d takes %v of CPU, of %d %v", few, one, many, each)
			require.Less(t, each, 4*one, "20, if it grew with their number")
			require.EqualValues(t, 3, c.Stats().Acquired-c.Stats().Shared, "all share one lease")
		})
	}
}

// cpu returns the CPU time of this process. It goes on at the same pace, however busy the machine is.
func cpu(t *testing.T) time.Duration {
	t.Helper()
	var used syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
