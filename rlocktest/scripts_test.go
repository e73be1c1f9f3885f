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

// On the in-memory server, the scripts return the holder of a lock, and recognize other keys.
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
			require.NoError(t, rdb.Do(t.Context(), rdb.B().Pexpire().Key("lock").Milliseconds(lease.Milliseconds()).Build()).Error())
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

// It keeps the queue of processes as well: an unlock hands the lock to the head.
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

// The semaphore scripts run on it, too.
func TestSemaphoreScripts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := New(t)
		rdb, request := locks.Redis(), int64(0)
		semaphore := func(client string) lua.SemaphoreArgs {
			request++
			return lua.SemaphoreArgs{
				Semaphore: lua.Semaphore{
					Name: "s", Requests: "requests", Queue: "queue", Publish: lua.Publish{Name: "channel"}, Client: client, Keep: 2 * time.Second,
				},
				Request: request,
			}
		}
		use := func(a lua.SemaphoreArgs) lua.SemaphoreReply {
			r, err := lua.UseSemaphore(t.Context(), rdb, a)
			require.NoError(t, err)
			return r
		}
		a := semaphore("a")
		a.Change, a.N = lua.TrySet, 3
		require.Equal(t, lua.SemaphoreReply{Free: 3, Done: 1}, use(a))
		a = semaphore("a")
		a.Wants, a.Waits = []int64{2, 1, 1}, true
		require.Equal(t, lua.SemaphoreReply{Done: 1, Granted: []int{0, 1}, Again: time.Minute}, use(a))
		require.Equal(t, []int{0, 1}, use(a).Granted)
		require.Zero(t, use(a).Free)
		b := semaphore("b")
		b.Wants, b.Waits = []int64{1}, true
		require.Empty(t, use(b).Granted)
		b = semaphore("c")
		b.N = 2
		require.Equal(t, int64(2), use(b).Free) // queued processes do not listen
		places, err := rdb.Do(t.Context(), rdb.B().Exists().Key("queue").Build()).AsInt64()
		require.NoError(t, err)
		require.Zero(t, places)
		a.Cancel = true
		require.Equal(t, int64(5), use(a).Free)

		permits := func() lua.PermitsArgs {
			p := lua.PermitsArgs{SemaphoreArgs: semaphore("a"), Timeouts: "timeouts", Slots: "slots", Lease: time.Minute}
			p.Name = "p"
			return p
		}
		take := func(p lua.PermitsArgs) lua.PermitsReply {
			r, err := lua.UsePermits(t.Context(), rdb, p)
			require.NoError(t, err)
			return r
		}
		p := permits()
		p.Change, p.N = lua.SetTotal, 2
		require.Equal(t, int64(2), take(p).Free)
		first, second, third := lua.PermitID{1}, lua.PermitID{2}, lua.PermitID{3, 255}
		p = permits()
		p.Wants, p.IDs = []int64{1, 1}, []lua.PermitID{first, second}
		require.Equal(t, []int64{0, 1}, take(p).Slots)
		require.NoError(t, rdb.Do(t.Context(), rdb.B().Zrem().Key("timeouts").Member(string(first[:])).Build()).Error())
		require.NoError(t, rdb.Do(t.Context(), rdb.B().Incr().Key("p").Build()).Error())
		p = permits()
		p.Wants, p.IDs = []int64{1, 1}, []lua.PermitID{third, {4}}
		r := take(p)
		require.Equal(t, []int64{0}, r.Slots)
		require.Equal(t, time.Minute, r.Again.Round(time.Second))
		named := lua.PermitSemaphore{Semaphore: p.Semaphore, Timeouts: p.Timeouts, Slots: p.Slots}
		verdicts, err := lua.RenewPermits(t.Context(), rdb, time.Hour, []lua.PermitsToRenew{{Timeouts: "timeouts", IDs: []lua.PermitID{first, second}}})
		require.NoError(t, err)
		require.Equal(t, []lua.Renewal{lua.Gone, lua.Renewed}, verdicts)
		held, err := lua.SetPermitLease(t.Context(), rdb, named, third, lua.Forever)
		require.NoError(t, err)
		require.True(t, held)
		info, err := lua.LookPermits(t.Context(), rdb, named, &third)
		require.NoError(t, err)
		require.Equal(t, lua.PermitsInfo{Exists: true, Held: 2, Left: lua.Forever, Found: true}, info)
		p = permits()
		p.Release = []lua.PermitID{first, second, third}
		require.Equal(t, []lua.Given{lua.PermitUnknown, lua.PermitReleased, lua.PermitReleased}, take(p).Released)
		locks.server.FlushAll()
	})
}
