package lua_test

import (
	"testing"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
	"github.com/go-rlock/rlock/lua"
)

// Any other entry in the queue is skipped.
func TestMalformedPlaces(t *testing.T) {
	t.Parallel()
	rdb := redistest.Dial(t, redistest.Shared(t))
	malformed := []string{"", " ", " f", "f", "x", "mode", "a b c", "\x00\r\n", waiter(1) + " G", waiter(1) + " f 7", waiter(1) + "  f"}
	for _, alive := range []bool{true, false} {
		for _, fence := range []string{"", "fence"} {
			for _, own := range []string{"", next} {
				l := newLab(t, rdb)
				l.hold(me, "1", brief)
				for _, entry := range malformed {
					l.must("ZADD", l.queue, "-inf", entry)
				}
				everybody, first := l.listen(false), l.process(1)
				a := l.endsFor(own)
				if fence != "" {
					a.Fence = l.fence
				}
				if alive {
					l.join(1)
				}
				got := l.releases(a)
				switch {
				case alive:
					require.Equal(t, granted, got)
					require.Equal(t, has(waiter(1), "1"), l.fields())
					require.Equal(t, given(1, "-"), first.said())
				case own != "":
					require.Equal(t, lua.HandedOff, got.Status)
					require.Equal(t, nexts("1"), l.fields())
				default:
					require.Equal(t, freed, got)
					require.Zero(t, l.number("EXISTS", l.name))
					require.Equal(t, []string{"0"}, everybody.said())
				}
			}
		}
	}
}

// A place with a mark from a newer version gets the lock reserved: its process asks with its own options.
func TestPlaceWithAMarkOfALaterVersion(t *testing.T) {
	t.Parallel()
	for _, fence := range []string{"", "fence"} {
		l := newLab(t, redistest.Dial(t, redistest.Shared(t)))
		l.hold(me, "1", brief)
		l.must("ZADD", l.queue, "0", waiter(1)+" g")
		first, ends, asks := l.process(1), l.ends(), l.asks(waiter(1))
		if fence != "" {
			ends.Fence, asks.Fence = l.fence, l.fence
		}
		require.Equal(t, granted, l.releases(ends))
		require.Equal(t, given(1, "-"), first.said())
		require.Equal(t, has(waiter(1), "0"), l.fields())
		require.Equal(t, lua.Acquired, l.acquire(asks).Status)
		require.Equal(t, has(waiter(1), "1"), l.fields())
	}
}

// An owner that got the lock without leaving the queue does not grant it to itself, because no process would learn that the lock is free.
func TestReleaseByOneThatIsStillInTheQueue(t *testing.T) {
	t.Parallel()
	for _, entry := range []string{me, me + " f"} {
		for _, waits := range []bool{false, true} {
			l := newLab(t, redistest.Dial(t, redistest.Shared(t)))
			l.hold(me, "1", brief)
			l.must("ZADD", l.queue, "0", entry)
			want, left := freed, map[string]string{}
			if waits {
				l.join(1)
				want, left = granted, has(waiter(1), "1")
			}
			l.listenTo(l.channel+":"+uuid, false)
			everybody, first := l.listen(false), l.process(1)
			require.Equal(t, want, l.releases(l.ends()))
			require.Equal(t, left, l.fields())
			require.Zero(t, l.number("EXISTS", l.queue))
			if waits {
				require.Equal(t, given(1, "-"), first.said())
			} else {
				require.Equal(t, []string{"0"}, everybody.said())
			}
		}
	}
}

// Without memory no process gets a new place. Processes in the queue keep theirs, and get the lock.
func TestQueueWithoutMemory(t *testing.T) {
	t.Parallel()
	l := newLab(t, redistest.Start(t).Client(t))
	l.must("SET", l.fence, "41")
	l.hold(me, "1", brief)
	l.join(1)
	require.True(t, l.acquire(l.asksForToken(waiter(2))).Joined)
	first, second, everybody := l.process(1), l.process(2), l.listen(false)
	l.must("CONFIG", "SET", "maxmemory", "1")

	got := l.acquire(l.asks(waiter(3)))
	require.Equal(t, lua.Held, got.Status)
	require.False(t, got.Joined)
	require.True(t, l.acquire(l.asks(waiter(1))).Joined)
	l.requirePlaces(waiter(1), waiter(2)+" f")

	stays := l.endsFor(next)
	stays.Stay = true
	_, err := lua.Release(t.Context(), l.rdb, stays)
	require.ErrorContains(t, err, "OOM")
	require.Equal(t, mine(1), l.fields())
	l.requireTTL(brief)
	l.requirePlaces(waiter(1), waiter(2)+" f")

	a := l.ends()
	a.Fence = l.fence
	require.Equal(t, granted, l.releases(a))
	require.Equal(t, given(1, "-"), first.said())
	a.Owner = waiter(1)
	require.Equal(t, granted, l.releases(a))
	require.Equal(t, given(2, "42"), second.said())
	require.Equal(t, has(waiter(2), "1"), l.fields())

	require.False(t, l.acquire(l.asks(waiter(3))).Joined)
	require.Zero(t, l.number("EXISTS", l.queue))
	a.Owner, a.Next = waiter(2), next // gets no place
	require.Equal(t, lua.ReleaseReply{Status: lua.Freed, WithoutQueue: true}, l.releases(a))
	require.Equal(t, []string{"0"}, everybody.said())
}

var withoutQueue = lua.ReleaseReply{Status: lua.Freed, WithoutQueue: true, NoQueue: true}

// A user that may not use the key of the queue cannot name it: Redis refuses the whole script, before it runs. Then
// it is sent without the queue.
func TestQueueForbidden(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	l := newLab(t, s.Client(t))
	limited := l
	limited.rdb = user(t, s, "~"+l.name+" ~"+l.fence+" &* +@all")
	everybody := l.listen(false)
	for _, a := range []lua.ReleaseArgs{l.ends(), l.endsFor(next)} {
		l.hold(me, "1", brief)
		got := limited.acquire(l.asks(other))
		require.Equal(t, lua.Held, got.Status)
		require.False(t, got.Joined)
		require.True(t, got.NoQueue)
		require.Equal(t, withoutQueue, limited.releases(a))
		require.Equal(t, []string{"0"}, everybody.said())
	}
	l.hold(me, "1", brief)
	all := lua.ReleaseAll(t.Context(), limited.rdb, []lua.ReleaseArgs{l.ends()})
	require.NoError(t, all[0].Err)
	require.Equal(t, freed, all[0].ReleaseReply)
	require.Equal(t, []string{"0"}, everybody.said())
	require.Empty(t, l.fields())
}

// Other rights may be missing. If another process cannot be given the lock, all are notified, as if there were no
// queue.
func TestGrantForbidden(t *testing.T) {
	t.Parallel()
	const everything = "~* &* +@all "
	told := func(l, limited lab) { // all are notified
		first, everybody := l.process(1), l.listen(false)
		require.Equal(l.t, freed, limited.releases(l.ends()))
		require.Equal(l.t, []string{"0"}, everybody.said())
		require.Empty(l.t, first.said())
		require.Zero(l.t, l.number("EXISTS", l.name))
	}
	keep := func(l, limited lab) { // and nobody loses a place
		told(l, limited)
		l.requirePlaces(waiter(1), waiter(2))
	}
	gone := func(l, limited lab) { // and everybody joins anew
		told(l, limited)
		require.Zero(l.t, l.number("EXISTS", l.queue))
	}
	refused := func(l, limited lab) { // it is sent without the queue
		everybody := l.listen(false)
		require.Equal(l.t, withoutQueue, limited.releases(l.ends()))
		require.Equal(l.t, []string{"0"}, everybody.said())
		l.requirePlaces(waiter(1), waiter(2))
	}
	for name, row := range map[string]struct {
		rules func(l lab) string
		then  func(l, limited lab)
	}{
		"the channels of grants": {func(l lab) string { return "~* resetchannels &" + l.channel + " +@all" }, keep},
		"hset":                   {func(lab) string { return everything + "-hset" }, gone},
		"pexpire":                {func(lab) string { return everything + "-pexpire" }, keep},
		"hdel": { // nobody hears of a grant beside a hold that cannot end
			func(lab) string { return everything + "-hdel" },
			func(l, limited lab) {
				first := l.process(1)
				_, err := lua.Release(l.t.Context(), limited.rdb, l.ends())
				require.Regexp(l.t, notAllowed, err)
				require.Empty(l.t, first.said())
				require.Equal(l.t, mine(1), l.fields())
			},
		},
		"zrange": {func(lab) string { return everything + "-zrange" }, refused},
		"zrem":   {func(lab) string { return everything + "-zrem" }, refused},
		"zrem, and the first of the queue listens": { // the grant ends its wait, but not its place
			func(lab) string { return everything + "-zrem" },
			func(l, limited lab) {
				first, everybody := l.process(1), l.listen(false)
				require.Equal(l.t, granted, limited.releases(l.ends()))
				require.Equal(l.t, given(1, "-"), first.said())
				l.requirePlaces(waiter(1), waiter(2))
				again := l.ends()
				again.Owner = waiter(1)
				require.Equal(l.t, withoutQueue, limited.releases(again)) // as this user does from then on
				require.Equal(l.t, []string{"0"}, everybody.said())
				require.Zero(l.t, l.number("EXISTS", l.name))
			},
		},
		"pubsub numsub": { // others may be listening
			func(lab) string { return everything + "-pubsub" },
			func(l, limited lab) {
				first, everybody := l.process(1), l.listen(false)
				require.Equal(l.t, freed, limited.releases(l.ends()))
				require.Equal(l.t, []string{"? 0"}, first.said())
				require.Equal(l.t, []string{"00"}, everybody.said())
				l.requirePlaces(waiter(1), waiter(2))
			},
		},
		"zadd": { // a process that asks gets no place
			func(lab) string { return everything + "-zadd" },
			func(l, limited lab) {
				got := limited.acquire(l.asks(waiter(3)))
				require.Equal(l.t, lua.Held, got.Status)
				require.False(l.t, got.Joined)
				require.Equal(l.t, withoutQueue, limited.releases(l.endsFor(next)))
				l.requirePlaces(waiter(1), waiter(2))
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t)
			l := newLab(t, s.Client(t))
			l.hold(me, "1", brief)
			l.join(1, 2)
			limited := l
			limited.rdb = user(t, s, row.rules(l))
			row.then(l, limited)
		})
	}
}
