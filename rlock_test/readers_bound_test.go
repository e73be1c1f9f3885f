package rlock_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// G4: a reader that arrives after half of the bound asks Redis, and so queues behind the mark of a waiting writer.
// Until the answer other readers may still join, but not after the bound.
func TestReadersShareForABoundedTime(t *testing.T) {
	redistest.OnlyVirtual(t, "it is about the very moments", func(t *testing.T) {
		const bound = 4 * time.Second
		r := newProxied(t, rlock.Options{HandOff: rlock.HandOff{For: bound}})
		rw := r.RWMutex(r.name)
		joined := []lockResult{locked(t, rw.Read())}
		joins := func() {
			t.Helper()
			a := locked(t, rw.Read())
			require.Equal(t, rlock.Owner(joined[0].ctx), rlock.Owner(a.ctx), "it joins")
			joined = append(joined, a)
		}
		writer := lockAsync(t, r.other.RWMutex(r.name).Write())
		sleep(bound/2 - 1)
		joins()
		sleep(1)
		r.proxy.OnRequest(nthScript(1, redistest.Hold))
		asks := lockAsync(t, rw.Read())
		redistest.Settle(t)
		require.Equal(t, 1, r.proxy.Held(), "one asks")
		sleep(bound/2 - 1)
		joins()
		sleep(1)
		late := lockAsync(t, rw.Read())
		redistest.Settle(t)
		require.Equal(t, 2, waiting(t), "the late reader waits for the answer")
		r.proxy.Release()
		redistest.Settle(t)
		require.Equal(t, 3, waiting(t), "both wait behind the writer")
		writer.stillWaits(t)
		for _, a := range joined {
			require.NoError(t, a.unlock())
		}
		a := writer.get(t, testTimeout)
		require.NoError(t, a.err)
		asks.stillWaits(t)
		late.stillWaits(t)
		require.NoError(t, a.unlock())
		asks.getAndUnlock(t, testTimeout)
		late.getAndUnlock(t, testTimeout)
		rwNothing(t, r.rdb, r.name)
	})
}
