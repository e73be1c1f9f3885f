package rlock_test

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// Readers of one process share one hold in Redis. No test reaches the bound of an hour.
var hour = rlock.Options{HandOff: rlock.HandOff{For: time.Hour}}

// locked takes a lock that is free.
func locked(t testing.TB, l locker) lockResult {
	t.Helper()
	a := lockAsync(t, l).gets(t, testTimeout)
	return a
}

// owners returns the readers' owners in Redis, with their counts.
func (b fixture) owners(t testing.TB) map[string]int64 {
	t.Helper()
	all := make(map[string]int64)
	for field, value := range b.fieldsOf(t) {
		if field != "mode" {
			n := answer(strconv.ParseInt(value, 10, 64)).ok(t)
			all[field] = n
		}
	}
	return all
}

// G1, G6: further readers of a process cost no commands, in whichever order they leave. Redis sees a single reader,
// whose key lasts until the last of them has left.
func TestReadersShare(t *testing.T) {
	for name, order := range map[string][]int{"first in, first out": {0, 1, 2, 3}, "last in, first out": {3, 2, 1, 0}, "mixed": {2, 0, 3, 1}} {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			r := newProxied(t, hour)
			rw := r.RWMutex(r.name)
			first := locked(t, rw.Read())
			owner := rlock.Owner(first.ctx)
			before := redistest.Commands(t, r.rdb)
			all := []lockResult{first}
			for range 3 {
				all = append(all, locked(t, rw.Read()))
			}
			require.Equal(t, map[string]int64{owner: 1}, r.owners(t))
			for i, n := range order {
				a := all[n]
				require.Equal(t, owner, rlock.Owner(a.ctx))
				require.Equal(t, len(all)-i, r.Stats().Holds)
				if i == len(order)-1 {
					after := redistest.Commands(t, r.rdb)
					for _, name := range []string{"evalsha", "eval", "publish"} {
						require.Equal(t, before[name], after[name], name)
					}
				}
				require.NoError(t, a.unlock())
				require.ErrorIs(t, a.unlock(), rlock.ErrNotHeld)
				require.Error(t, a.ctx.Err())
				for _, n := range order[i+1:] {
					require.NoError(t, all[n].ctx.Err())
				}
			}
			require.EqualValues(t, 4, r.Stats().Acquired)
			require.EqualValues(t, 3, r.Stats().Shared)
			rwNothing(t, r.rdb, r.name)
		})
	}
}

// A reader with different options, another Client or another right than the readers inside gets a hold of its own.
func TestReadersShareTheSame(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		r := newProxied(t, hour)
		first := locked(t, r.RWMutex(r.name).Read())
		for name, l := range map[string]locker{
			"lease":         r.RWMutex(r.name, rlock.WithLease(time.Minute)).Read(),
			"max hold":      r.RWMutex(r.name, rlock.WithMaxHold(time.Hour)).Read(),
			"grace":         r.RWMutex(r.name, rlock.WithGrace(time.Minute)).Read(),
			"upgradeable":   r.RWMutex(r.name).Upgradeable(),
			"another Go":    r.other.RWMutex(r.name).Read(),
			"no hand-offs":  newClient(t, r.rdb, rlock.Options{HandOff: rlock.HandOff{Most: -1}}).RWMutex(r.name).Read(),
			"under the ctx": under{rlock.Detach(first.ctx), r.RWMutex(r.name, rlock.WithLease(time.Minute)).Read()},
		} {
			a := locked(t, l)
			require.NotEqual(t, rlock.Owner(first.ctx), rlock.Owner(a.ctx), name)
			require.Len(t, r.owners(t), 2, name)
			require.NoError(t, a.unlock(), name)
		}
		same := locked(t, under{rlock.Detach(first.ctx), r.RWMutex(r.name).Read()})
		require.Equal(t, rlock.Owner(first.ctx), rlock.Owner(same.ctx))
		require.NoError(t, same.unlock())
		require.NoError(t, first.unlock())
		rwNothing(t, r.rdb, r.name)
	})
}

// G1: nobody shares the hold of a reader inside a writer's section, not even after the writer has downgraded to it.
func TestReadersDoNotJoinTheWriter(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		r := newProxied(t, hour)
		rw := r.RWMutex(r.name)
		writer := locked(t, rw.Write())
		inner := locked(t, under{writer.ctx, rw.Read()})
		refusalOf(t, rw.Read(), 0)
		require.NoError(t, inner.unlock())
		reader, unlock, err := rw.Downgrade(writer.ctx)
		require.NoError(t, err)
		other := locked(t, rw.Read())
		require.NotEqual(t, rlock.Owner(reader), rlock.Owner(other.ctx))
		require.NoError(t, unlock())
		require.NoError(t, other.unlock())
		rwNothing(t, r.rdb, r.name)
	})
}

// G1: a reader that upgraded is alone, although its process had other readers.
func TestReadersShareBesideAnUpgrade(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		r := newProxied(t, hour)
		rw := r.RWMutex(r.name)
		upgradeable := locked(t, rw.Upgradeable())
		readers := []lockResult{locked(t, rw.Read()), locked(t, rw.Read())}
		up := make(chan lockResult, 1)
		go func() {
			var a lockResult
			a.ctx, a.unlock, a.err = rw.Upgradeable().Upgrade(upgradeable.ctx)
			up <- a
		}()
		for _, a := range readers {
			require.Empty(t, up, "it must wait for the other reader")
			require.NoError(t, a.unlock())
		}
		a := <-up
		require.NoError(t, a.err)
		refusalOf(t, rw.Read(), 0)
		require.NoError(t, a.unlock())
		require.NoError(t, upgradeable.unlock())
		rwNothing(t, r.rdb, r.name)
	})
}

// G3: one call admits all readers that arrived while a writer was inside, or while the first of them was asking Redis.
func TestReadersAreLetInTogether(t *testing.T) {
	const many = 20
	for name, wait := range map[string]func(*testing.T, *proxied) (pending []pendingLock, goOn func()){
		"behind a writer": func(t *testing.T, r *proxied) ([]pendingLock, func()) {
			t.Helper()
			writer := locked(t, r.other.RWMutex(r.name).Write())
			var line []pendingLock
			for range many {
				line = append(line, lockAsync(t, r.RWMutex(r.name).Read()))
			}
			redistest.Eventually(t, testTimeout, func() bool { return waiting(t) == many }, "they wait")
			return line, func() { require.NoError(t, writer.unlock()) }
		},
		"while one asks": func(t *testing.T, r *proxied) (line []pendingLock, goOn func()) {
			t.Helper()
			r.proxy.OnRequest(nthScript(1, redistest.Hold))
			line = append(line, lockAsync(t, r.RWMutex(r.name).Read()))
			redistest.Eventually(t, testTimeout, func() bool { return r.proxy.Held() == 1 }, "it asks")
			for range many - 1 {
				line = append(line, lockAsync(t, r.RWMutex(r.name).Read()))
			}
			redistest.Eventually(t, testTimeout, func() bool { return waiting(t) == many-1 }, "the others wait for the first one's answer")
			return line, r.proxy.Release
		},
	} {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			r := newProxied(t, hour)
			r.load(t, "read_acquire")
			r.load(t, "read_release")
			line, goOn := wait(t, r)
			before := redistest.Commands(t, r.rdb)["evalsha"]
			goOn()
			owners := make(map[string]bool)
			var all []lockResult
			for _, p := range line {
				a := p.gets(t, testTimeout)
				owners[rlock.Owner(a.ctx)] = true
				all = append(all, a)
			}
			require.Len(t, owners, 1)
			require.LessOrEqual(t, redistest.Commands(t, r.rdb)["evalsha"]-before, int64(3), "the writer's release, and one or two acquires")
			for _, a := range all {
				require.NoError(t, a.unlock())
			}
			rwNothing(t, r.rdb, r.name)
		})
	}
}

// G2, G7: when the shared lease of several readers is lost, each ctx is cancelled and each unlock returns ErrLost. The
// sweep starts only after the last of them has left.
func TestReadersLoseWhatTheyShare(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		const watchdog = 2 * time.Second
		r := newProxied(t, rlock.Options{HandOff: hour.HandOff, WatchdogTimeout: watchdog})
		rw := r.RWMutex(r.name)
		all := []lockResult{locked(t, rw.Read()), locked(t, rw.Read()), locked(t, rw.Read())}
		before := all[2]
		require.NoError(t, before.unlock())
		all = all[:2]
		r.do(t, "DEL", r.name)
		for _, a := range all {
			select {
			case <-a.ctx.Done():
				require.ErrorIs(t, context.Cause(a.ctx), rlock.ErrLost)
			case <-time.After(watchdog/3 + soon):
				require.Fail(t, "not told")
			}
		}
		require.NotErrorIs(t, context.Cause(before.ctx), rlock.ErrLost)
		after := locked(t, rw.Read())
		require.NotEqual(t, rlock.Owner(before.ctx), rlock.Owner(after.ctx))
		for _, a := range all {
			err := a.unlock()
			require.ErrorIs(t, err, rlock.ErrLost)
			require.ErrorIs(t, err, rlock.ErrNotHeld)
		}
		require.EqualValues(t, 2, r.Stats().Lost)
		require.Equal(t, 1, r.Stats().Holds)
		require.NoError(t, after.unlock())
		rwNothing(t, r.rdb, r.name)
	})
}

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
		answer(rw.Read().HoldCount(second.ctx)).is(t, 3)
		require.NoError(t, longer.unlock())
		require.NoError(t, inner.unlock())
		r.awaitCount(t, owner, 1)
		require.NoError(t, second.unlock())
		rwNothing(t, r.rdb, r.name)
	})
}

// In Redis each level of a reader has a key, which scripts walk past, also those of a writer that asks. So the count there has a bound, and
// the levels beyond are known here alone.
func TestReadersReenterOften(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		const levels, most = 1000, 100
		rw := b.RWMutex(b.name)
		first := locked(t, rw.Read())
		owner := rlock.Owner(first.ctx)
		var all []lockResult
		for range levels {
			all = append(all, locked(t, under{first.ctx, rw.Read()}))
		}
		keys := func() int64 { return answer(b.do(t, "DBSIZE").AsInt64()).ok(t) }
		b.awaitCount(t, owner, most)
		require.EqualValues(t, most+1, keys())
		all = append(all, locked(t, under{first.ctx, b.RWMutex(b.name, rlock.WithLease(time.Hour)).Read()}))
		require.Equal(t, map[string]int64{owner: most}, b.owners(t))
		require.Greater(t, b.pttl(t, b.name), time.Hour-time.Minute)
		answer(rw.Read().HoldCount(first.ctx)).is(t, levels+2)
		for _, inner := range all[most/2:] {
			require.NoError(t, inner.unlock())
		}
		b.awaitCount(t, owner, most/2+1)
		require.EqualValues(t, most/2+2, keys())
		for _, inner := range all[:most/2] {
			require.NoError(t, inner.unlock())
		}
		require.NoError(t, first.ctx.Err())
		require.NoError(t, first.unlock())
		require.Zero(t, keys())
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
			awaitEnd(t, first.ctx)
			if len(others) > 0 {
				require.NoError(t, within(t, unlocked, soon))
			}
			r.proxy.Release()
			a := longer.gets(t, testTimeout)
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
		a := writer.gets(t, testTimeout)
		asks.stillWaits(t)
		late.stillWaits(t)
		require.NoError(t, a.unlock())
		asks.getAndUnlock(t, testTimeout)
		late.getAndUnlock(t, testTimeout)
		rwNothing(t, r.rdb, r.name)
	})
}
