package lua_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
	"github.com/go-rlock/rlock/lua"
)

const (
	brief      = short             // the lock's expiry for those that look at it before a grant could end
	grantLease = 100 * time.Second // between lease and long
	margin     = time.Second       // by which a queue outlasts the sleep of its members
)

// client returns the UUID of a waiting process; waiter returns its owner.
func client(i int) string { return fmt.Sprintf("%08x-2222-3333-4444-555555555555", i) }
func waiter(i int) string { return client(i) + ":1" }

// asks returns the acquire of a process that wants a place.
func (l lab) asks(owner string) lua.AcquireArgs {
	return lua.AcquireArgs{
		Name: l.name, Owner: owner, Lease: lease, Count: 1, Queue: l.queue, GrantLease: grantLease, Publish: lua.Publish{Name: l.channel},
	}
}

func (l lab) asksForToken(owner string) lua.AcquireArgs {
	a := l.asks(owner)
	a.Fence = l.fence
	return a
}

// acquire makes the call; while the owner's process listens, if it wants a place.
func (l lab) acquire(a lua.AcquireArgs) (got lua.AcquireReply) {
	l.t.Helper()
	call := func() {
		var err error
		got, err = lua.Acquire(l.t.Context(), l.rdb, a)
		require.NoError(l.t, err)
	}
	if a.Queue == "" {
		call()
		return got
	}
	l.listening(a.Owner, a.Publish, call)
	return got
}

// listening runs a call while that owner's process listens to its own channel.
func (l lab) listening(owner string, p lua.Publish, call func()) {
	l.t.Helper()
	conn, end := l.rdb.Dedicate()
	defer end()
	conn.SetPubSubHooks(rueidis.PubSubHooks{OnMessage: func(rueidis.PubSubMessage) {}})
	channel := p.Name + ":" + owner[:36]
	subscribe, unsubscribe := conn.B().Subscribe().Channel(channel).Build(), conn.B().Unsubscribe().Channel(channel).Build()
	if p.Sharded {
		subscribe, unsubscribe = conn.B().Ssubscribe().Channel(channel).Build(), conn.B().Sunsubscribe().Channel(channel).Build()
	}
	require.NoError(l.t, conn.Do(l.t.Context(), subscribe).Error())
	call()
	require.NoError(l.t, conn.Do(l.t.Context(), unsubscribe).Error())
}

// join makes the waiters ask for a lock held by another.
func (l lab) join(which ...int) {
	l.t.Helper()
	for _, i := range which {
		require.True(l.t, l.acquire(l.asks(waiter(i))).Joined)
	}
}

// ends is the end of my hold, for those in the queue.
func (l lab) ends() lua.ReleaseArgs {
	return lua.ReleaseArgs{
		Name: l.name, Owner: me, Lease: lease, Publish: lua.Publish{Name: l.channel},
		Queue: lua.Queue{Key: l.queue, GrantLease: grantLease},
	}
}

func (l lab) endsFor(next string) lua.ReleaseArgs {
	a := l.ends()
	a.Next = next
	return a
}

// releases makes the call while the next owner's process listens, as it does.
func (l lab) releases(a lua.ReleaseArgs) (got lua.ReleaseReply) {
	l.t.Helper()
	call := func() {
		var err error
		got, err = lua.Release(l.t.Context(), l.rdb, a)
		require.NoError(l.t, err)
	}
	if a.Next == "" {
		call()
		return got
	}
	l.listening(a.Next, a.Publish, call)
	return got
}

var (
	granted   = lua.ReleaseReply{Status: lua.Granted}
	handedOff = lua.ReleaseReply{Status: lua.HandedOff}
)

// places returns the queue's entries.
func (l lab) places() []string {
	l.t.Helper()
	all, err := l.do("ZRANGE", l.queue, "0", "-1").AsStrSlice()
	require.NoError(l.t, err)
	return all
}

func (l lab) requirePlaces(want ...string) {
	l.t.Helper()
	if len(want) == 0 {
		require.Empty(l.t, l.places())
		return
	}
	require.Equal(l.t, want, l.places())
}

// requireQueueTTL checks how long the queue stays.
func (l lab) requireQueueTTL(want time.Duration) {
	l.t.Helper()
	got := time.Duration(l.number("PTTL", l.queue)) * time.Millisecond
	require.LessOrEqual(l.t, got, want)
	require.Greater(l.t, got, want-slack)
}

// process listens to the grants for a waiting process.
func (l lab) process(i int, sharded ...bool) *ear {
	l.t.Helper()
	return l.listenTo(l.channel+":"+client(i), len(sharded) > 0 && sharded[0])
}

// given returns the messages received by a process.
func given(i int, token string) []string {
	return []string{fmt.Sprintf("%s 100000 0 %s", waiter(i), token)}
}

func has(owner, count string) map[string]string { return map[string]string{owner: count} }

func TestJoin(t *testing.T) {
	t.Parallel()
	l := newLab(t, redistest.Dial(t, redistest.Shared(t)))
	l.hold(other, "1", short)
	joins := func(a lua.AcquireArgs, want ...string) {
		t.Helper()
		got := l.acquire(a)
		require.Equal(t, lua.Held, got.Status)
		require.Equal(t, other, got.Holder)
		require.True(t, got.Joined)
		l.requirePlaces(want...)
		require.Equal(t, others("1"), l.fields())
	}
	joins(l.asks(waiter(3)), waiter(3))
	l.requireQueueTTL(short + margin)
	joins(l.asks(waiter(1)), waiter(3), waiter(1))
	joins(l.asksForToken(waiter(2)), waiter(3), waiter(1), waiter(2)+" f")
	require.Zero(t, l.number("EXISTS", l.fence))

	for range 2 { // they keep their places, and the queue lasts as long as its longest sleeper
		joins(l.asks(waiter(3)), waiter(3), waiter(1), waiter(2)+" f")
		joins(l.asksForToken(waiter(2)), waiter(3), waiter(1), waiter(2)+" f")
		l.requireQueueTTL(short + margin)
	}
	l.hold(other, "1", long)
	joins(l.asks(waiter(1)), waiter(3), waiter(1), waiter(2)+" f")
	l.requireQueueTTL(long + margin)
	l.hold(other, "1", short)
	joins(l.asks(waiter(1)), waiter(3), waiter(1), waiter(2)+" f")
	l.requireQueueTTL(long + margin)

	// An owner's place ends with its hold, and the queue ends with its last place.
	l.must("DEL", l.name)
	for range 2 {
		require.Equal(t, lua.AcquireReply{Status: lua.Acquired}, l.acquire(l.asks(waiter(1))))
		l.requirePlaces(waiter(3), waiter(2)+" f")
	}
	require.True(t, l.acquire(l.asks(waiter(3))).Joined)
	l.must("DEL", l.name)
	require.Equal(t, lua.AcquireReply{Status: lua.Acquired, Token: 1}, l.acquire(l.asksForToken(waiter(2))))
	l.must("DEL", l.name)
	require.Equal(t, lua.AcquireReply{Status: lua.Acquired}, l.acquire(l.asks(waiter(3))))
	require.Zero(t, l.number("EXISTS", l.queue))
}

// An acquire that does not ask for a place gets none.
func TestAcquireThatJoinsNoQueue(t *testing.T) {
	t.Parallel()
	l := newLab(t, redistest.Dial(t, redistest.Shared(t)))
	got := l.acquire(l.asks(other))
	require.Equal(t, lua.AcquireReply{Status: lua.Acquired}, got)

	a := l.asks(me)
	a.Queue = ""
	got = l.acquire(a)
	require.Equal(t, lua.Held, got.Status)
	require.False(t, got.Joined)

	a = l.asks(me)
	a.Count = 2
	require.Equal(t, lua.AcquireReply{Status: lua.Lost}, l.acquire(a))

	hash("customer")(l)
	l.must("HDEL", l.name, other)
	l.must("PERSIST", l.name)
	_, err := lua.Acquire(t.Context(), l.rdb, l.asks(me))
	requireForeign(t, err)
	require.Zero(t, l.number("EXISTS", l.queue))
}

// A lock without expiry, or with an expiry centuries away, still has a queue that expires.
func TestQueueOfALockThatNeverExpires(t *testing.T) {
	t.Parallel()
	for _, ttl := range []string{"", "18446744073710", "9223370000000000000"} {
		l := newLab(t, redistest.Dial(t, redistest.Shared(t)))
		l.hold(me, "1", 0)
		if ttl != "" {
			l.must("PEXPIRE", l.name, ttl)
		}
		l.join(1, 2)
		if ttl == "" {
			l.requireQueueTTL(time.Minute + margin)
		}
		require.Positive(t, l.number("PTTL", l.queue))
		first := l.process(1)
		require.Equal(t, granted, l.releases(l.ends()))
		require.Equal(t, given(1, "-"), first.said())
		l.requireTTL(grantLease)
	}
}
