package rlock_test

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// The count in Redis follows the reader with the most levels.
func TestReadersReenter(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		r := newProxied(t, hour)
		rw := r.RWMutex(r.name)
		first, second := locked(t, rw.Read()), locked(t, rw.Read())
		owner := rlock.Owner(first.ctx)
		inner := locked(t, under{second.ctx, rw.Read()})
		r.awaitCount(t, owner, 2)
		longer := locked(t, under{inner.ctx, r.RWMutex(r.name, rlock.WithLease(time.Hour)).Read()})
		require.Equal(t, map[string]int64{owner: 3}, r.owners(t))
		require.NoError(t, first.unlock())
		n, err := rw.Read().HoldCount(second.ctx)
		require.NoError(t, err)
		require.Equal(t, 3, n)
		require.NoError(t, longer.unlock())
		require.NoError(t, inner.unlock())
		r.awaitCount(t, owner, 1)
		require.NoError(t, second.unlock())
		rwNothing(t, r.rdb, r.name)
	})
}

func (b fixture) awaitCount(t testing.TB, owner string, n int64) {
	t.Helper()
	redistest.Eventually(t, testTimeout, func() bool { return b.owners(t)[owner] == n }, "the count is "+strconv.FormatInt(n, 10))
}

// Close cancels every reader of a shared hold, and their unlocks still work.
func TestReadersAndClose(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		r := newProxied(t, hour)
		all := []lockResult{locked(t, r.RWMutex(r.name).Read()), locked(t, r.RWMutex(r.name).Read())}
		r.Close()
		for _, a := range all {
			require.ErrorIs(t, context.Cause(a.ctx), rlock.ErrClosed)
			require.NotEmpty(t, r.owners(t))
			require.NoError(t, a.unlock())
		}
		require.Empty(t, r.owners(t))
	})
}

// G1, G5: readers and writers of three processes come, wait, give up and leave. No writer ever has company, and nothing is left.
func TestReadersInACrowd(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		r := newProxied(t, rlock.Options{})
		clients := []*rlock.Client{r.Client, r.Client, r.Client, r.other}
		w := &rwExclusion{t: t}
		var sections atomic.Int64
		var wg sync.WaitGroup
		var patient int64 // calls that have as long as it takes
		for i := range 16 {
			rw := clients[i%4].RWMutex(r.name)
			const rounds, limits = 20, 20
			patient += rounds / limits
			wg.Go(func() {
				for n := range rounds {
					limit := time.Duration((i*7+n*13)%limits) * time.Millisecond
					ctx, cancel := context.WithTimeout(t.Context(), limit)
					if limit == 0 {
						ctx, cancel = context.WithCancel(t.Context())
					}
					l, begins := rw.Read(), w.read
					if (i/4+n)%6 == 0 {
						l, begins = rw.Write(), func() func() { return w.write(0) }
					}
					wait := time.Hour
					if n%5 == 0 && limit > 0 {
						wait = 0
					}
					inner, unlock, err := l.TryLock(ctx, wait)
					if err == nil {
						done := begins()
						if n%3 == 0 {
							assert.NoError(t, l.Do(context.WithoutCancel(inner), nothing))
						}
						done()
						sections.Add(1)
						assert.NoError(t, unlock())
					} else {
						assert.ErrorIs(t, err, rlock.ErrNotAcquired)
					}
					cancel()
				}
			})
		}
		wg.Wait()
		require.GreaterOrEqual(t, sections.Load(), patient)
		require.Zero(t, r.Stats().Holds)
		rwNothing(t, r.rdb, r.name)
	})
}

// When a re-entry is answered only after its section has ended, it is no longer a level of that section: the Lock
// competes and gets a hold of its own.
func TestReentryAnsweredAfterItsSection(t *testing.T) {
	for name, handles := range map[string]func(*proxied, ...rlock.Option) *rlock.Mutex{
		"a reader beside others": func(r *proxied, o ...rlock.Option) *rlock.Mutex { return r.RWMutex(r.name, o...).Read() },
		"a mutex":                (*proxied).handle,
	} {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			r := newProxied(t, hour)
			first := locked(t, handles(r))
			owner := rlock.Owner(first.ctx)
			var others []lockResult
			if name != "a mutex" {
				others = append(others, locked(t, handles(r)))
			}
			r.proxy.OnRequest(nthScript(1, redistest.Hold))
			longer := lockAsync(t, under{context.WithoutCancel(first.ctx), handles(r, rlock.WithLease(time.Hour))})
			redistest.Eventually(t, testTimeout, func() bool { return r.proxy.Held() == 1 }, "it asks")
			unlocked := async(first.unlock)
			<-first.ctx.Done()
			if len(others) > 0 {
				require.NoError(t, within(t, unlocked, soon))
			}
			r.proxy.Release()
			a := longer.get(t, testTimeout)
			require.NoError(t, a.err)
			require.NotEqual(t, owner, rlock.Owner(a.ctx))
			if len(others) == 0 {
				require.NoError(t, within(t, unlocked, testTimeout))
			}
			for _, other := range others {
				require.NoError(t, other.ctx.Err())
				require.NoError(t, other.unlock())
			}
			require.NoError(t, a.unlock())
			require.Zero(t, r.Stats().Holds)
			redistest.Eventually(t, testTimeout, func() bool { return !r.exists(t, r.name) }, "nothing is left")
		})
	}
}

// G2: after Close no ctx reports the end of a lease, but each unlock does, even if other readers remain.
func TestReadersUnlockAfterCloseAndTheLease(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		const watchdog = time.Second
		r := newProxied(t, rlock.Options{HandOff: hour.HandOff, WatchdogTimeout: watchdog})
		all := []lockResult{locked(t, r.RWMutex(r.name).Read()), locked(t, r.RWMutex(r.name).Read())}
		r.Close()
		sleep(watchdog + 100*time.Millisecond)
		writer := locked(t, r.other.RWMutex(r.name).Write())
		for _, a := range all {
			require.ErrorIs(t, a.unlock(), rlock.ErrLost)
		}
		require.NoError(t, writer.unlock())
	})
}

// An All that is refused gives back its shared reader, while others do the same and a further reader stays inside.
func TestReadersOfAnAllThatIsRefused(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		r := newProxied(t, hour)
		mutex := r.name + ":mutex"
		taken, reader := locked(t, r.other.Mutex(mutex)), locked(t, r.RWMutex(r.name).Read())
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 50 {
					_, _, err := rlock.All(r.RWMutex(r.name).Read(), r.Client.Mutex(mutex)).TryLock(context.Background(), 0)
					assert.ErrorIs(t, err, rlock.ErrNotAcquired)
				}
			})
		}
		wg.Wait()
		require.Equal(t, 1, r.Stats().Holds)
		require.NoError(t, reader.unlock())
		require.NoError(t, taken.unlock())
		rwNothing(t, r.rdb, r.name)
	})
}

// A reader without the time to wait for another reader's answer asks Redis itself, however many others are waiting.
func TestTryReadWhileOthersAsk(t *testing.T) {
	for name, row := range map[string]struct {
		before int
		wait   time.Duration
	}{"no wait": {1, 0}, "no wait, others do": {3, 0}, "a short wait": {1, 20 * time.Millisecond}, "a short wait, others do": {3, 20 * time.Millisecond}} {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			r := newProxied(t, hour)
			r.load(t, "read_acquire")
			r.proxy.OnReply(redistest.Nth(1, "EVALSHA", redistest.Hold))
			line := []pendingLock{lockAsync(t, r.RWMutex(r.name).Read())}
			redistest.Eventually(t, testTimeout, func() bool { return r.proxy.Held() == 1 }, "it asks")
			for range row.before - 1 {
				line = append(line, lockAsync(t, r.RWMutex(r.name).Read()))
			}
			redistest.Eventually(t, testTimeout, func() bool { return waiting(t) == row.before-1 }, "they wait for the answer")
			hasty := lockAsync(t, tryFor{r.RWMutex(r.name).Read(), row.wait})
			sleep(100 * time.Millisecond) // a shared attempt waits up to a second
			r.proxy.Release()
			for _, p := range append(line, hasty) {
				p.getAndUnlock(t, testTimeout)
			}
			require.EqualValues(t, row.before+1, r.Stats().Acquired)
			rwNothing(t, r.rdb, r.name)
		})
	}
}

// Nobody shares a hold that has been asked for a longer lease than the watchdog's, since nobody can know when that ends.
func TestReadersDoNotJoinALongerLease(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		r := newProxied(t, hour)
		first := locked(t, r.RWMutex(r.name).Read())
		inner := locked(t, under{first.ctx, r.RWMutex(r.name, rlock.WithLease(time.Hour)).Read()})
		second := locked(t, r.RWMutex(r.name).Read())
		require.NotEqual(t, rlock.Owner(first.ctx), rlock.Owner(second.ctx))
		for _, a := range []lockResult{inner, first, second} {
			require.NoError(t, a.unlock())
		}
		rwNothing(t, r.rdb, r.name)
	})
}
