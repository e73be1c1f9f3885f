package rlock_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// ofAllKinds are locks of all kinds with the same name.
func ofAllKinds(c *rlock.Client, name string) map[string]*rlock.Mutex {
	rw := c.RWMutex(name)
	return map[string]*rlock.Mutex{
		"plain": c.Mutex(name), "fenced": c.FencedMutex(name), "fair": c.FairMutex(name), "read": rw.Read(), "write": rw.Write(),
		"fenced write": c.FencedRWMutex(name).Write(),
	}
}

// G1: locks of different kinds with the same name in one Client do not mistake each other's holds for their own. Plain, fenced and fair
// locks re-enter each other, and so do writers with and without tokens. A writer lets a reader in, and all others are refused.
func TestKindsOfOneNameNest(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		ctx := context.Background()
		whole := map[string]bool{"plain": true, "fenced": true, "fair": true}
		writes := map[string]bool{"write": true, "fenced write": true}
		for outerName, outer := range ofAllKinds(b.Client, b.name) {
			for innerName, inner := range ofAllKinds(b.Client, b.name) {
				what := innerName + " in " + outerName
				section, unlock := enter(t, ctx, outer)
				enters := whole[outerName] && whole[innerName] || writes[outerName] && writes[innerName] || outerName == innerName
				held := answer(inner.HoldCount(section)).ok(t)
				require.Equal(t, enters, held == 1, what)

				nested, leave, err := inner.TryLock(section, 0)
				switch {
				case enters:
					require.NoError(t, err, what)
					require.Equal(t, rlock.Owner(section), rlock.Owner(nested), what)
					held := answer(outer.HoldCount(nested)).ok(t)
					require.Equal(t, 2, held, what)
				case writes[outerName] && innerName == "read":
					require.NoError(t, err, what)
					require.NotEqual(t, rlock.Owner(section), rlock.Owner(nested))
				case outerName == "read" && writes[innerName]:
					require.ErrorIs(t, err, rlock.ErrUpgrade, what)
				default:
					require.ErrorIs(t, err, rlock.ErrNotAcquired, what)
					require.ErrorContains(t, err, "held under this ctx as "+rlock.Owner(section)+", with ", what)
					require.ErrorContains(t, err, " left, by a lock of another kind", what)
				}
				if err == nil {
					require.NoError(t, leave(), what)
				}
				require.NoError(t, section.Err(), what)
				require.NoError(t, unlock(), what)
				require.False(t, b.exists(t, b.name), what)
			}
		}
	})
}

// G1, G4: goroutines that want locks of different kinds with the same name exclude each other, and each gets its turn. A waiter does not
// hear the unlock of another kind, so it asks again when the remaining lease it was given is over.
func TestKindsOfOneNameExclude(t *testing.T) {
	redistest.OnlyVirtual(t, "a machine may stand still for longer than the leases that are waited for", func(t *testing.T) {
		b := newFixture(t, rlock.Options{WatchdogTimeout: 2 * rlock.MinWatchdogTimeout})
		ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
		defer cancel()
		var inside, readers atomic.Int32
		var wg sync.WaitGroup
		for name, m := range ofAllKinds(b.Client, b.name) {
			for range 2 {
				wg.Go(func() {
					for range 4 {
						assert.NoError(t, m.Do(ctx, func(context.Context) error {
							if name == "read" {
								readers.Add(1)
								defer readers.Add(-1)
								assert.Zero(t, inside.Load())
								return nil
							}
							assert.Equal(t, int32(1), inside.Add(1), name)
							assert.Zero(t, readers.Load(), name)
							sleep(time.Millisecond)
							inside.Add(-1)
							return nil
						}), name)
					}
				})
			}
		}
		wg.Wait()
		b.do(t, "DEL", "redisson_lock_token:{"+b.name+"}") // that counter stays
		rwNothing(t, b.rdb, b.name)
	})
}

// Whoever was seen to hold a lock is forced out; others are not, who may have taken the lock since.
func TestForceUnlockOwners(t *testing.T) {
	for _, kind := range []string{"plain", "fenced", "fair", "read", "write", "fenced write"} {
		runVirtual(t, kind, func(t *testing.T, b fixture) {
			m := ofAllKinds(newClient(t, b.rdb), b.name)[kind]
			hold := locked(t, ofAllKinds(b.Client, b.name)[kind])
			for _, owners := range [][]string{nil, {foreignOwner}} {
				answer(m.ForceUnlockOwners(t.Context(), owners...)).is(t, false)
			}
			require.True(t, b.exists(t, b.name))
			require.NoError(t, hold.ctx.Err())
			answer(m.ForceUnlockOwners(t.Context(), foreignOwner, rlock.Owner(hold.ctx))).is(t, true)
			require.False(t, b.exists(t, b.name))
			require.ErrorIs(t, hold.unlock(), rlock.ErrLost)
		})
	}
	runVirtual(t, "readers", func(t *testing.T, b fixture) {
		rw := b.RWMutex(b.name)
		one, two := locked(t, rw.Read()), locked(t, newClient(t, b.rdb).RWMutex(b.name).Read())
		answer(rw.Read().ForceUnlockOwners(t.Context(), rlock.Owner(one.ctx))).is(t, false, "another reader came")
		answer(rw.Write().ForceUnlockOwners(t.Context(), rlock.Owner(one.ctx), rlock.Owner(two.ctx))).is(t, false, "they do not write")
		answer(b.Mutex(b.name).ForceUnlockOwners(t.Context(), rlock.Owner(one.ctx))).is(t, false, "it is no plain lock any more")
		require.NoError(t, one.ctx.Err())
		answer(rw.Read().ForceUnlockOwners(t.Context(), rlock.Owner(one.ctx), rlock.Owner(two.ctx))).is(t, true)
		require.ErrorIs(t, one.unlock(), rlock.ErrLost)
		require.ErrorIs(t, two.unlock(), rlock.ErrLost)
	})
	runVirtual(t, "kept", func(t *testing.T, b fixture) {
		m := b.Mutex(b.name, rlock.WithLinger(rlock.DefaultWatchdogTimeout))
		keep(t, b.Client, m)
		kept := locked(t, m)
		owner := rlock.Owner(kept.ctx)
		require.NoError(t, kept.unlock())
		answer(m.ForceUnlockOwners(context.Background(), foreignOwner)).is(t, false)
		require.True(t, b.exists(t, b.name), "the process still keeps it")
		answer(m.ForceUnlockOwners(context.Background(), owner)).is(t, true)
		require.False(t, b.exists(t, b.name))
	})
}
