package lua_test

import (
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/internal/require"
	"github.com/go-rlock/rlock/lua"
)

const nobody = "11111111-2222-3333-4444-555555555555:00"

// leaveTaken releases the lock but leaves it taken for the time lease.
func (l lab) leaveTaken() lua.ReleaseArgs {
	return lua.ReleaseArgs{
		Name: l.name, Owner: me, Next: nobody, Taken: time.Now().Add(lease), Publish: lua.Publish{Name: l.channel},
	}
}

func TestReleaseLeavesTheLockTaken(t *testing.T) {
	t.Parallel()
	rdb := redistest.Dial(t, redistest.Shared(t))
	kept := map[string]string{nobody: "1"}
	for _, row := range []struct {
		name   string
		at     state
		held   bool
		err    string
		fields map[string]string
		ttl    time.Duration
	}{
		{name: "absent", at: absent, ttl: noKey},
		{name: "expired", at: expired(me), ttl: noKey},
		{name: "mine, the expiry rises", at: holding(me, "1", short), held: true, fields: kept, ttl: lease},
		{name: "mine, the expiry falls", at: holding(me, "1", long), held: true, fields: kept, ttl: lease},
		{name: "mine without expiry", at: holding(me, "1", 0), held: true, fields: kept, ttl: lease},
		{name: "mine, an unlock was not counted", at: holding(me, "3", short), held: true, fields: kept, ttl: lease},
		{name: "taken already", at: holding(nobody, "1", short), fields: kept, ttl: short},
		{name: "another's", at: holding(other, "1", short), fields: others("1"), ttl: short},
		{name: "wrong type", at: text, err: "WRONGTYPE", ttl: noExpiry},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			for _, queued := range []bool{false, true} {
				l := newLab(t, rdb)
				row.at(l)
				ear := l.listen(false)
				a := l.leaveTaken()
				if queued { // waiters in the queue stay there, and get the message to all
					a.Queue = lua.Queue{Key: l.queue, GrantLease: lease}
					l.must("ZADD", l.queue, "2", waiter(1))
				}
				held := row.held
				for range 3 { // the first call and two repeats
					got, err := lua.Release(t.Context(), rdb, a)
					if row.err != "" {
						var redisErr *rueidis.RedisError
						require.ErrorAs(t, err, &redisErr)
						require.ErrorContains(t, err, row.err)
						return
					}
					require.NoError(t, err)
					if held {
						require.Equal(t, freed, got)
						require.Equal(t, []string{"01"}, ear.said())
					} else {
						require.Equal(t, notHeld, got)
						require.Empty(t, ear.said())
					}
					l.requireFields(row.fields, "")
					l.requireTTL(row.ttl)
					held = false
				}
				if queued {
					l.requirePlaces(waiter(1))
				}
			}
		})
	}
}

// The time for which the lock stays taken counts from the call, so a late repeat does not extend it. Afterwards the lock is free, and never
// left without an expiry.
func TestTakenIsCountedFromTheCall(t *testing.T) {
	t.Parallel()
	l := newLab(t, redistest.Dial(t, redistest.Shared(t)))
	l.hold(me, "1", long)
	a := l.leaveTaken()
	a.Taken = time.Now().Add(-time.Minute)
	ear := l.listen(false)
	require.Equal(t, freed, l.releases(a))
	redistest.Eventually(t, time.Second, func() bool { return len(l.fields()) == 0 }, "after the shortest time that there is")
	require.Equal(t, []string{"01"}, ear.said())

	l.hold(me, "2", long)
	a.Count, a.Lease = 1, lease
	require.Equal(t, freed, l.releases(a))
	l.requireFields(mine(1), "")
	l.requireTTL(long)
}

// A server without memory accepts a release that leaves the lock taken, like any unlock. A sweep leaves it taken as well.
func TestLockIsLeftTakenWithoutMemory(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	l := newLab(t, rdb)
	for _, all := range []bool{false, true} {
		l.hold(me, "1", long)
		require.NoError(t, rdb.Do(t.Context(), rdb.B().Arbitrary("CONFIG", "SET", "maxmemory", "1").Build()).Error())
		if all {
			require.Equal(t, freed, lua.ReleaseAll(t.Context(), rdb, []lua.ReleaseArgs{l.leaveTaken()})[0].ReleaseReply)
		} else {
			require.Equal(t, freed, l.releases(l.leaveTaken()))
		}
		require.NoError(t, rdb.Do(t.Context(), rdb.B().Arbitrary("CONFIG", "SET", "maxmemory", "0").Build()).Error())
		l.requireFields(map[string]string{nobody: "1"}, "")
		l.requireTTL(lease)
		l.must("DEL", l.name)
	}
}
