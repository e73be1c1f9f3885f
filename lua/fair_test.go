package lua_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/internal/require"
	"github.com/go-rlock/rlock/lua"
)

// Owners of fair locks, of a process each.
func fairOwner(i int) string { return fmt.Sprintf("%08x-0000-4000-8000-000000000000:0%d", i, i) }

func (l lab) fair() lua.Fair {
	return lua.Fair{
		List: "list:{" + l.name + "}", Times: "times:{" + l.name + "}",
		Place: 5 * time.Second, GrantLease: 2 * time.Second, Counts: true,
	}
}

func (l lab) acquiresFair(i int) (lua.AcquireReply, error) {
	return lua.Acquire(l.t.Context(), l.rdb, lua.AcquireArgs{
		Name: l.name, Owner: fairOwner(i), Lease: lease, Count: 1, Fair: l.fair(), Join: true, Publish: lua.Publish{Name: l.channel},
	})
}

func (l lab) endsFair(i int) lua.ReleaseArgs {
	return lua.ReleaseArgs{Name: l.name, Owner: fairOwner(i), Fair: l.fair(), Publish: lua.Publish{Name: l.channel}}
}

// queueFair has the first owner hold the lock, and all others wait.
func (l lab) queueFair(n int) {
	l.t.Helper()
	for i := range n {
		got, err := l.acquiresFair(i)
		require.NoError(l.t, err)
		require.Equal(l.t, i > 0, got.Joined)
	}
}

func TestFairWithoutMemory(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	l := newLab(t, s.Client(t))
	l.queueFair(3)
	first := l.listenTo(l.channel+":"+fairOwner(1)[:36], false)
	require.NoError(t, l.rdb.Do(t.Context(), l.rdb.B().ConfigSet().ParameterValue().ParameterValue("maxmemory", "1").Build()).Error())

	_, err := l.acquiresFair(3)
	require.ErrorContains(t, err, "OOM", "no place for another one")
	require.EqualValues(t, 2, l.number("LLEN", l.fair().List))

	got, err := lua.Release(t.Context(), l.rdb, l.endsFair(0))
	require.NoError(t, err)
	require.Equal(t, lua.Granted, got.Status)
	require.Equal(t, []string{fairOwner(1) + " 2000 0 -"}, first.said())
	got, err = lua.Release(t.Context(), l.rdb, l.endsFair(2))
	require.NoError(t, err)
	require.Equal(t, lua.NotHeld, got.Status)
	require.Zero(t, l.number("EXISTS", l.fair().List, l.fair().Times))
}

// A user who may not tell those that wait releases all the same, and is told.
func TestFairMayNotPublish(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	root := newLab(t, s.Client(t))
	root.must("ACL", "SETUSER", "mute", "on", "nopass", "~*", "+@all", "resetchannels")
	l := root
	l.rdb = s.Client(t, func(o *rueidis.ClientOption) { o.Username, o.Password = "mute", "x" })
	for _, n := range []int{1, 3} {
		l.queueFair(n)
		_, err := lua.Release(t.Context(), l.rdb, l.endsFair(0))
		require.ErrorContains(t, err, "release script: UNTOLD ")
		require.Equal(t, noKey, l.ttl())
		require.EqualValues(t, n-1, root.number("LLEN", l.fair().List), "they look by themselves")
	}
	got, err := l.acquiresFair(1)
	require.NoError(t, err)
	require.Equal(t, lua.Acquired, got.Status)
}

// ReleaseAll takes releases of all kinds together.
func TestReleaseAllKinds(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	for range 2 { // in the second round the server knows the scripts
		plain, fair := newLab(t, rdb), newLab(t, rdb)
		plain.hold(me, "1", short)
		fair.queueFair(2)
		got := lua.ReleaseAll(t.Context(), rdb, []lua.ReleaseArgs{
			{Name: plain.name, Owner: me, Publish: lua.Publish{Name: plain.channel}}, fair.endsFair(1), fair.endsFair(0),
		})
		for i, want := range []lua.Released{lua.Freed, lua.NotHeld, lua.Freed} {
			require.NoError(t, got[i].Err)
			require.Equal(t, want, got[i].Status)
		}
		require.Zero(t, fair.number("EXISTS", fair.name, plain.name, fair.fair().List))
	}
}

// While a slot is on its way to another node, keys that are not there make Redis refuse a call about several. A release goes on without
// the queue.
func TestFairReleaseWithoutTheQueue(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 2, 0)
	l := newLab(t, c.Client(t))
	l.queueFair(1)
	slot := c.Slot(t, l.name)
	from, _ := c.BeginMove(t, slot)
	ear := l.listen(false)
	got, err := lua.Release(t.Context(), l.rdb, l.endsFair(0))
	require.NoError(t, err)
	require.Equal(t, lua.ReleaseReply{Status: lua.Freed, WithoutQueue: true}, got)
	require.NoError(t, atNode(t, from, "CLUSTER", "SETSLOT", strconv.Itoa(int(slot)), "STABLE").Error()) // or the end mark would come from the other node
	require.Equal(t, []string{"0"}, ear.said())
}

func TestFairReplies(t *testing.T) {
	t.Parallel()
	p := &parrot{}
	c := p.client(t)
	places := []lua.Place{{Name: "a", Owner: fairOwner(1)}, {Name: "a", Owner: fairOwner(2)}}
	for reply, want := range map[string]string{
		"*2\r\n:1\r\n:0\r\n":  "[1 2]",
		"*2\r\n:-1\r\n:1\r\n": "[3 1]",
		"*2\r\n:2\r\n:1\r\n":  "refresh script: unknown answer 2",
		"*1\r\n:1\r\n":        "refresh script: 1 answers for 2 holds",
		"+OK\r\n":             "refresh script: ",
	} {
		p.say(reply)
		got, err := lua.Refresh(t.Context(), c, lua.Fair{}, lua.Publish{}, places)
		text := fmt.Sprint(got)
		if err != nil {
			text = err.Error()
		}
		require.True(t, strings.HasPrefix(text, want), text)
		_, err = lua.ForceFair(t.Context(), c, "a", lua.Fair{}, lua.Publish{})
		require.ErrorContains(t, err, "force script: ")
	}
}
