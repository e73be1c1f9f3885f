package lua_test

import (
	"testing"
	"time"

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
	kept := map[string]string{nobody: "1"}
	for name, queued := range map[string]bool{"nobody waits": false, "queued": true} {
		t.Run(name, func(t *testing.T) {
			effects(t, "release", false, []effect{
				{name: "absent", at: absent, want: notHeld, ttl: noKey},
				{name: "expired", at: expired(me), want: notHeld, ttl: noKey},
				{name: "mine, the expiry rises", at: holding(me, "1", short), want: freed, again: notHeld, fields: kept, ttl: lease, said: []string{"01"}},
				{name: "mine, the expiry falls", at: holding(me, "1", long), want: freed, again: notHeld, fields: kept, ttl: lease, said: []string{"01"}},
				{name: "mine without expiry", at: holding(me, "1", 0), want: freed, again: notHeld, fields: kept, ttl: lease, said: []string{"01"}},
				{name: "mine, an unlock was not counted", at: holding(me, "3", short), want: freed, again: notHeld, fields: kept, ttl: lease, said: []string{"01"}},
				{name: "taken already", at: holding(nobody, "1", short), want: notHeld, fields: kept, ttl: short},
				{name: "another's", at: holding(other, "1", short), want: notHeld, fields: others("1"), ttl: short},
				{name: "wrong type", at: text, want: lua.ReleaseReply{WithoutQueue: queued}, err: "WRONGTYPE", fields: texts, ttl: noExpiry},
			}, func(l lab, _ effect, _ string) (any, error) {
				a := l.leaveTaken()
				if queued { // waiters in the queue stay there, and get the message to all
					a.Queue = lua.Queue{Key: l.queue, GrantLease: lease}
					l.must("ZADD", l.queue, "2", waiter(1))
					defer l.requirePlaces(waiter(1))
				}
				return lua.Release(l.t.Context(), l.rdb, a)
			})
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
	l.requireFields(mine(1))
	l.requireTTL(long)
}

// A server without memory accepts a release that leaves the lock taken, like any unlock. A sweep leaves it taken as well.
func TestLockIsLeftTakenWithoutMemory(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	l := newLab(t, rdb)
	for _, all := range []bool{false, true} {
		l.hold(me, "1", long)
		l.must("CONFIG", "SET", "maxmemory", "1")
		if all {
			require.Equal(t, freed, lua.ReleaseAll(t.Context(), rdb, []lua.ReleaseArgs{l.leaveTaken()})[0].ReleaseReply)
		} else {
			require.Equal(t, freed, l.releases(l.leaveTaken()))
		}
		l.must("CONFIG", "SET", "maxmemory", "0")
		l.requireFields(map[string]string{nobody: "1"})
		l.requireTTL(lease)
		l.must("DEL", l.name)
	}
}
