package lua_test

import (
	"strconv"
	"testing"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
	"github.com/go-rlock/rlock/lua"
)

// labs returns locks of one cluster slot.
func labs(t *testing.T, rdb rueidis.Client, n int) (all []lab) {
	t.Helper()
	tag := newLab(t, rdb).name
	for i := range n {
		l := newLab(t, rdb)
		l.name = "{" + tag + "}" + strconv.Itoa(i)
		l.channel = "redisson_lock__channel:" + l.name
		l.t.Cleanup(func() { l.do("DEL", l.name) })
		all = append(all, l)
	}
	return all
}

func wanted(all []lab) (args []lua.AcquireArgs) {
	for _, l := range all {
		args = append(args, l.wants(me))
	}
	return args
}

// Several locks are taken together or not at all, in any state, and the reply names the blocking lock.
func TestAcquireAllFromEveryState(t *testing.T) {
	t.Parallel()
	rdb := redistest.StartCluster(t, 3, 0).Client(t)
	for _, row := range []struct {
		name    string
		at      state
		refused bool
		err     string
	}{
		{name: "absent", at: absent},
		{name: "expired", at: expired(other)},
		{name: "mine, a repeat", at: holding(me, "1", short)},
		{name: "another's", at: holding(other, "2", long), refused: true},
		{name: "another's without expiry", at: holding(other, "1", 0), refused: true},
		{name: "a text", at: text, err: "WRONGTYPE"},
		{name: "a hash", at: holding("customer", "x", lease), err: "customer"},
	} {
		for at := range 3 {
			t.Run(row.name+"/"+strconv.Itoa(at), func(t *testing.T) {
				all := labs(t, rdb, 3)
				row.at(all[at])
				reply, err := lua.AcquireAll(t.Context(), rdb, wanted(all))
				if row.err != "" {
					require.ErrorIs(t, err, lua.ErrForeign)
					require.ErrorContains(t, err, "acquire_all script: ")
					require.ErrorContains(t, err, row.err, "what the server said")
				} else {
					require.NoError(t, err)
					require.Equal(t, !row.refused, reply.Acquired)
				}
				if row.refused {
					require.Equal(t, at, reply.Refused)
					require.Equal(t, lua.Held, reply.Refusal.Status)
					require.Equal(t, other, reply.Refusal.Holder)
					require.LessOrEqual(t, reply.Refusal.TTL, long)
				}
				for i, l := range all {
					switch {
					case reply.Acquired:
						require.Equal(t, mine(1), l.fields())
						l.requireTTL(lease)
					case i != at:
						require.Zero(t, l.number("EXISTS", l.name), "none is taken")
					}
				}
			})
		}
	}
}

// If taking a lock fails after the check of all locks, because its counter is not a number, the locks taken before it are released. Locks
// held before the call stay held.
func TestAcquireAllUndoes(t *testing.T) {
	t.Parallel()
	rdb := redistest.Dial(t, redistest.Shared(t))
	all := labs(t, rdb, 3)
	holding(me, "1", long)(all[0])
	args := wanted(all)
	args[2].Fence = all[2].name + ":counter"
	all[2].must("SET", args[2].Fence, "no number")
	_, err := lua.AcquireAll(t.Context(), rdb, args)
	require.ErrorContains(t, err, "not an integer")
	require.Equal(t, mine(1), all[0].fields())
	require.Zero(t, all[1].number("EXISTS", all[1].name, all[2].name))

	all[2].must("SET", args[2].Fence, "41")
	for range 2 { // the second one is a repeat
		reply, err := lua.AcquireAll(t.Context(), rdb, args)
		require.NoError(t, err)
		require.Equal(t, lua.AcquireAllReply{Acquired: true, Tokens: []int64{0, 0, 42}}, reply)
	}
	all[2].must("DEL", args[2].Fence)
}

// ReleaseEach gives each lock its own Release result, whatever the other results are.
func TestReleaseEach(t *testing.T) {
	t.Parallel()
	rdb := redistest.StartCluster(t, 3, 0).Client(t)
	all := labs(t, rdb, 6)
	holding(me, "1", long)(all[0])
	holding(other, "1", long)(all[1])
	text(all[2])
	holding(me, "2", long)(all[3])
	holding(me, "1", long)(all[5])
	var args []lua.ReleaseArgs
	var ears []*ear
	for _, l := range all {
		args = append(args, l.frees(me))
		ears = append(ears, l.listen(false))
	}
	args[3].Count, args[3].Lease = 1, lease
	const next = "9b1f0c1e-6a57-4c0e-8f7d-2f0d8c3b5a41:77"
	args[5].Next, args[5].Stay, args[5].Lease, args[5].Fence = next, true, lease, all[5].name+":counter"
	got, err := lua.ReleaseEach(t.Context(), rdb, args)
	require.NoError(t, err)
	require.Len(t, got, len(all))
	for i, want := range []lua.Released{lua.Freed, lua.NotHeld, 0, lua.Freed, lua.NotHeld, lua.HandedOff} {
		require.Equal(t, want, got[i].Status, i)
		if i != 2 {
			require.NoError(t, got[i].Err)
		}
	}
	require.ErrorIs(t, got[2].Err, lua.ErrForeign)
	require.ErrorContains(t, got[2].Err, "WRONGTYPE")
	require.EqualValues(t, 1, got[5].Token)
	require.Equal(t, map[string]string{next: "1"}, all[5].fields())
	require.Equal(t, mine(1), all[3].fields())
	require.Equal(t, others("1"), all[1].fields())
	require.Zero(t, all[0].number("EXISTS", all[0].name))
	for i, e := range ears {
		if i == 0 {
			require.Equal(t, []string{"0"}, e.said())
		} else {
			require.Empty(t, e.said())
		}
	}
	all[5].must("DEL", args[5].Fence)
}

// In one call, locks without waiters in the queue end as each by its own call: whoever listens, and whether the lock is held.
func TestReleaseEachWithoutWaiters(t *testing.T) {
	t.Parallel()
	rdb := redistest.Dial(t, redistest.Shared(t))
	states := []state{holding(me, "1", long), holding(other, "1", long), text, absent}
	beside := redistest.Dial(t, redistest.Shared(t))
	another := func(l lab) lab { l.rdb = beside; return l } // a client has one connection for all that it listens to
	listeners := []func(lab) []*ear{
		func(lab) []*ear { return nil },
		func(l lab) []*ear { return []*ear{l.listen(false)} },
		func(l lab) []*ear { return []*ear{l.listen(false), another(l).listen(false)} },
		func(l lab) []*ear { return []*ear{l.listen(false), another(l).outsider(false)} },
	}
	cases := len(states) * len(listeners)
	all := labs(t, rdb, 2*cases)
	var args []lua.ReleaseArgs
	ears := make([][]*ear, len(all))
	for i, l := range all {
		states[i%len(states)](l)
		ears[i] = listeners[i/len(states)%len(listeners)](l)
		one := l.frees(me)
		one.Queue = lua.Queue{Key: l.name + ":queue", GrantLease: grantLease}
		args = append(args, one)
	}
	together, err := lua.ReleaseEach(t.Context(), rdb, args[:cases])
	require.NoError(t, err)
	require.True(t, together[8].Several && together[12].Outsiders)
	for i := range cases {
		want, err := lua.Release(t.Context(), rdb, args[cases+i])
		want.WithoutQueue = false // it alone is repeated
		require.Equal(t, want, together[i].ReleaseReply, i)
		require.Equal(t, err == nil, together[i].Err == nil, i)
		require.Equal(t, all[cases+i].fields(), all[i].fields(), i)
		for e := range ears[i] {
			require.Equal(t, ears[cases+i][e].said(), ears[i][e].said(), i)
		}
	}

	three := all[:3]
	for _, l := range three {
		l.must("DEL", l.name)
		holding(me, "1", long)(l)
	}
	together, err = lua.ReleaseEach(t.Context(), rdb, args[:3])
	require.NoError(t, err)
	for i := range three {
		require.Equal(t, lua.ReleaseResult{ReleaseReply: lua.ReleaseReply{Status: lua.Freed}}, together[i], "one reply for all")
	}
}
