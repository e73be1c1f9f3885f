package rlocktest

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/rlock"
)

// heldBy returns the holder's label in a TryLock's error, and how long the TryLock took.
func heldBy(t *testing.T, m *rlock.Mutex, wait time.Duration) (label string, took time.Duration) {
	t.Helper()
	began := time.Now()
	_, _, err := m.TryLock(t.Context(), wait)
	var not *rlock.NotAcquiredError
	require.ErrorAs(t, err, &not)
	return not.HolderLabel, time.Since(began)
}

// A TryLock that waits has the label, one that does not the next time, and neither waits for it. A Lock made before the label was written
// finds it soon. The clock stands still while anything runs.
func TestLabelInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here := NewWith(t, rlock.Options{Label: "pod-7"})
		key := "rlock_client:{" + here.ID()[:18] + "}"
		_, unlock, err := here.Mutex("job").Lock(t.Context())
		require.NoError(t, err)
		synctest.Wait()
		const wait = 20 * time.Millisecond
		label, took := heldBy(t, here.Elsewhere().Mutex("job"), wait)
		require.Equal(t, "pod-7", label)
		require.Equal(t, wait, took)
		once := here.Elsewhere().Mutex("job")
		for _, want := range []string{"", "pod-7"} {
			label, took := heldBy(t, once, 0)
			require.Equal(t, want, label)
			require.Zero(t, took)
			synctest.Wait()
		}
		time.Sleep(10 * time.Minute)
		require.True(t, here.server.Exists(key), "it is kept")

		here.server.Del(key)
		there := here.Elsewhere().Mutex("job")
		label, _ = heldBy(t, there, 0)
		require.Empty(t, label)
		time.Sleep(50 * time.Millisecond) // between two looks
		require.NoError(t, here.server.Set(key, "pod-7"))
		time.Sleep(200 * time.Millisecond)
		label, _ = heldBy(t, there, 0)
		require.Equal(t, "pod-7", label)

		here.server.Del(key) // before a search that finds nothing
		there = here.Elsewhere().Mutex("job")
		label, _ = heldBy(t, there, 0)
		require.Empty(t, label)
		time.Sleep(2 * time.Second)
		require.NoError(t, here.server.Set(key, "pod-7"))
		label, _ = heldBy(t, there, 0)
		require.Empty(t, label)
		time.Sleep(time.Minute)
		label, _ = heldBy(t, there, 0) // looks again
		require.Empty(t, label)
		synctest.Wait()
		label, _ = heldBy(t, there, 0)
		require.Equal(t, "pod-7", label)
		require.NoError(t, unlock())
	})
}
