package rlock_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// G4: a writer of another process gets in while 32 readers come and go without a break: readers that arrive after its
// mark may share the hold only until the bound.
func TestReadersLetAWriterIn(t *testing.T) {
	for name, writers := range map[string]func(*proxied) *rlock.Client{
		"of this process": func(r *proxied) *rlock.Client { return r.Client }, "of another": func(r *proxied) *rlock.Client { return r.other },
	} {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			r := newProxied(t)
			var end atomic.Bool
			var readers sync.WaitGroup
			w := &rwExclusion{t: t}
			var reads atomic.Int64
			for range 16 {
				readers.Go(func() {
					for !end.Load() {
						assert.NoError(t, r.RWMutex(r.name).Read().Do(context.Background(), func(context.Context) error {
							defer w.read()()
							reads.Add(1)
							sleep(rand.N(time.Millisecond))
							return nil
						}))
					}
				})
			}
			redistest.Eventually(t, testTimeout, func() bool { return reads.Load() > 100 }, "they read")
			for range 20 {
				a := lockAsync(t, writers(r).RWMutex(r.name).Write()).get(t, testTimeout)
				require.NoError(t, a.err)
				done := w.write(0)
				done()
				require.NoError(t, a.unlock())
			}
			end.Store(true)
			readers.Wait()
			require.Positive(t, r.Stats().Shared)
			rwNothing(t, r.rdb, r.name)
		})
	}
}

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
