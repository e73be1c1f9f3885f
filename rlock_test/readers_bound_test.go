package rlock_test

import (
	"context"
	"errors"
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
	redistest.Parallel(t)
	for name, writers := range map[string]func(*proxied) *rlock.Client{
		"of this process": func(r *proxied) *rlock.Client { return r.Client }, "of another": func(r *proxied) *rlock.Client { return r.other },
	} {
		t.Run(name, func(t *testing.T) {
			redistest.Parallel(t)
			r := newProxied(t)
			var end atomic.Bool
			var readers sync.WaitGroup
			w := &rwExclusion{t: t}
			var reads atomic.Int64
			for range 32 {
				readers.Go(func() {
					for !end.Load() {
						assert.NoError(t, r.RWMutex(r.name).Read().Do(context.Background(), func(context.Context) error {
							defer w.read()()
							reads.Add(1)
							return nil
						}))
					}
				})
			}
			redistest.Eventually(t, testTimeout, func() bool { return reads.Load() > 1000 }, "they read")
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
// Until the answer other readers may still join, but not after the bound. If the machine stalls and the readers come
// too late, the test retries with a longer bound.
func TestReadersShareForABoundedTime(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		for bound := 4 * time.Second; !readersShareUpTo(t, bound); bound *= 2 {
			require.Less(t, bound, testTimeout)
		}
	})
}

// readersShareUpTo returns false if the machine was too slow for the check to mean anything.
func readersShareUpTo(t *testing.T, bound time.Duration) bool {
	t.Helper()
	r := newProxied(t, rlock.Options{HandOff: rlock.HandOff{For: bound}})
	rw := r.RWMutex(r.name)
	began := time.Now()
	first := locked(t, rw.Read())
	writer := lockAsync(t, r.other.RWMutex(r.name).Write())
	redistest.Eventually(t, testTimeout, func() bool { return r.exists(t, "rlock_writers:{"+r.name+"}") }, "the writer's mark is set")
	joined := []lockResult{first}
	join := func(before time.Duration) (inTime bool) {
		p := lockAsync(t, rw.Read())
		select {
		case a := <-p.result:
			require.NoError(t, a.err)
			joined = append(joined, a)
			require.True(t, rlock.Owner(first.ctx) == rlock.Owner(a.ctx) || time.Since(began) >= before, "it joins")
		case <-time.After(time.Until(began.Add(before))):
			p.cancel()
			if a := p.get(t, testTimeout); a.err == nil {
				joined = append(joined, a)
			}
		}
		return time.Since(began) < before
	}
	leave := func() {
		for _, a := range joined {
			require.NoError(t, a.unlock())
		}
	}
	tooSlow := func(others ...pendingLock) bool {
		leave()
		var all sync.WaitGroup
		for _, p := range append(others, writer) { // in whichever order they get in
			all.Go(func() {
				a := <-p.result
				assert.NoError(t, errors.Join(a.err, a.unlock()))
			})
		}
		all.Wait()
		return false
	}
	if !join(bound / 2) {
		return tooSlow()
	}
	sleep(time.Until(began.Add(bound/2 + 100*time.Millisecond)))
	r.proxy.OnRequest(nthScript(1, redistest.Hold))
	asks := lockAsync(t, rw.Read())
	redistest.Eventually(t, testTimeout, func() bool { return r.proxy.Held() == 1 }, "one asks")
	if !join(bound) {
		r.proxy.Release()
		return tooSlow(asks)
	}
	sleep(time.Until(began.Add(bound + 100*time.Millisecond)))
	late := lockAsync(t, rw.Read())
	redistest.Eventually(t, testTimeout, func() bool { return waiting(t) == 2 }, "the late reader waits for the answer")
	r.proxy.Release()
	redistest.Eventually(t, testTimeout, func() bool { return waiting(t) == 3 }, "both wait behind the writer")
	writer.stillWaits(t)
	leave()
	a := writer.get(t, testTimeout)
	require.NoError(t, a.err)
	asks.stillWaits(t)
	late.stillWaits(t)
	require.NoError(t, a.unlock())
	for _, p := range []pendingLock{asks, late} {
		p.getAndUnlock(t, testTimeout)
	}
	rwNothing(t, r.rdb, r.name)
	return true
}
