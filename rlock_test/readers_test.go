package rlock_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// Readers of one process share one hold in Redis. No test reaches the bound of an hour.
var hour = rlock.Options{HandOff: rlock.HandOff{For: time.Hour}}

// locked takes a lock that is free.
func locked(t testing.TB, l locker) lockResult {
	t.Helper()
	a := lockAsync(t, l).get(t, testTimeout)
	require.NoError(t, a.err)
	return a
}

// owners returns the readers' owners in Redis, with their counts.
func (b fixture) owners(t testing.TB) map[string]int64 {
	t.Helper()
	all := make(map[string]int64)
	for field, value := range b.fieldsOf(t) {
		if field != "mode" {
			n, err := strconv.ParseInt(value, 10, 64)
			require.NoError(t, err)
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
		_, _, err := rw.Read().TryLock(context.Background(), 0)
		require.ErrorIs(t, err, rlock.ErrNotAcquired)
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
		_, _, err := rw.Read().TryLock(context.Background(), 0)
		require.ErrorIs(t, err, rlock.ErrNotAcquired)
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
				a := p.get(t, testTimeout)
				require.NoError(t, a.err)
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
