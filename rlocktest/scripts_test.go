package rlocktest

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/lua"
	"github.com/go-rlock/rlock/rlock"
)

// The server in memory tells the scripts who holds a lock, and what is none.
func TestScripts(t *testing.T) {
	const me, other, lease = "11111111-2222-3333-4444-555555555555:7", "11111111-2222-3333-4444-555555555555:8", time.Minute
	synctest.Test(t, func(t *testing.T) {
		locks := New(t)
		s, rdb := locks.server, locks.Redis()
		acquire := lua.AcquireArgs{Name: "lock", Owner: me, Lease: lease, Count: 1}
		publish := lua.Publish{Name: "channel"}
		for owner, want := range map[string]lua.AcquireReply{
			me:    {Status: lua.Acquired},
			other: {Status: lua.Held, TTL: lease, Holder: other},
		} {
			s.HSet("lock", owner, "1")
			s.SetTTL("lock", lease)
			got, err := lua.Acquire(t.Context(), rdb, acquire)
			require.NoError(t, err)
			require.Equal(t, want, got)
			forced, err := lua.Force(t.Context(), rdb, "lock", publish)
			require.NoError(t, err)
			require.True(t, forced)
		}
		s.HSet("lock", "customer", "17")
		_, err := lua.Acquire(t.Context(), rdb, acquire)
		require.ErrorIs(t, err, lua.ErrForeign)
		require.ErrorContains(t, err, `"customer"`)
		_, err = lua.Force(t.Context(), rdb, "lock", publish)
		require.ErrorIs(t, err, lua.ErrForeign)
		require.Equal(t, "17", s.HGet("lock", "customer"))
		require.NoError(t, s.Set("text", "x"))
		_, err = lua.Release(t.Context(), rdb, lua.ReleaseArgs{Name: "text", Owner: me, Publish: publish})
		require.ErrorIs(t, err, lua.ErrForeign)
		s.FlushAll()
	})
}

// The queue of processes is kept there as well: an unlock hands the lock to the first of them.
func TestGrantInMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		paths := make(chan rlock.Path, 1)
		locks := New(t)
		other, err := rlock.New(locks.Redis(), rlock.Options{Trace: &rlock.Trace{
			Acquired: func(_ context.Context, i rlock.AcquiredInfo) { paths <- i.Path },
		}})
		require.NoError(t, err)
		defer other.Close()
		ended := make(chan error, 1)
		require.NoError(t, locks.Mutex("x").Do(t.Context(), func(context.Context) error {
			go func() { // ends itself
				ended <- other.Mutex("x").Do(t.Context(), func(context.Context) error { return nil })
			}()
			synctest.Wait()
			return nil
		}))
		require.Equal(t, rlock.PathGrant, <-paths)
		require.NoError(t, <-ended)
	})
}
