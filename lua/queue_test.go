package lua_test

import (
	"fmt"
	"strconv"
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
	require.True(l.t, l.remains(got, want), "%v of %v", got, want)
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

// The lock goes round: each releaser joins at the end of the queue, and only the next process gets a message.
func TestReleaseGrantsToTheFirst(t *testing.T) {
	t.Parallel()
	servers(t, func(t *testing.T, l lab, sharded bool) {
		l.hold(me, "2", brief)
		l.join(1, 2)
		everybody, first, second := l.listen(sharded), l.process(1, sharded), l.process(2, sharded)
		a := l.ends()
		a.Publish.Sharded = sharded
		next := func(i int) lua.ReleaseArgs {
			a := a
			a.Owner, a.Next = waiter(i), client(i)+":2"
			return a
		}

		require.Equal(t, granted, l.releases(a))
		require.Equal(t, has(waiter(1), "1"), l.fields())
		l.requireTTL(grantLease)
		l.requirePlaces(waiter(2))
		require.Equal(t, given(1, "-"), first.said())
		require.Equal(t, notHeld, l.releases(a), "a repeat")

		require.Equal(t, granted, l.releases(next(1)))
		require.Equal(t, has(waiter(2), "1"), l.fields())
		l.requirePlaces(client(1) + ":2")
		l.requireQueueTTL(grantLease + margin)
		require.Equal(t, given(2, "-"), second.said())
		require.Equal(t, notHeld, l.releases(next(1)), "a repeat")
		l.requirePlaces(client(1) + ":2")
		require.Equal(t, has(waiter(2), "1"), l.fields())

		require.Equal(t, granted, l.releases(next(2)))
		require.Equal(t, []string{client(1) + ":2 100000 0 -"}, first.said())
		require.Empty(t, second.said())
		a.Owner = client(1) + ":2"
		require.Equal(t, granted, l.releases(a))
		require.Zero(t, l.number("EXISTS", l.queue))
		require.Empty(t, everybody.said())

		a.Owner = client(2) + ":2"
		require.Equal(t, freed, l.releases(a))
		require.Equal(t, []string{"0"}, everybody.said())
		require.Zero(t, l.number("EXISTS", l.name, l.queue))
	})
}

// A killed process has no listener, so hundreds of them cost a single call.
func TestReleasePassesOverTheDead(t *testing.T) {
	t.Parallel()
	for _, alive := range []bool{true, false} {
		l := newLab(t, redistest.Dial(t, redistest.Shared(t)))
		everybody, last := l.listen(false), l.process(300)
		a := l.endsFor("")
		a.Fence = l.fence
		dead := []string{"ZADD", l.queue}
		for i := range 300 {
			dead = append(dead, strconv.Itoa(i), waiter(i)+" f")
		}
		l.must(dead...)
		l.hold(me, "1", brief)
		if alive {
			l.join(300)
		}
		want, fields, said := freed, map[string]string{}, []string(nil)
		if alive {
			want, fields, said = granted, has(waiter(300), "1"), given(300, "-")
		}
		require.Equal(t, want, l.releases(a))
		l.requirePlaces()
		require.Equal(t, fields, l.fields())
		require.Equal(t, said, last.said())
		require.Equal(t, !alive, len(everybody.said()) == 1)
	}
}

// A hold has a single token, whether the releaser makes it or the waiter that asks.
func TestTokensOfGrants(t *testing.T) {
	t.Parallel()
	rdb := redistest.Dial(t, redistest.Shared(t))
	for name, row := range map[string]struct {
		counter          string
		releaser, waiter bool   // wants a token
		count, token     string // of the grant
		asked            int64  // token that the waiter gets if it asks
		after            string // the counter
	}{
		"both":           {counter: "41", releaser: true, waiter: true, count: "1", token: "42", asked: 42, after: "42"},
		"the waiter":     {counter: "41", waiter: true, count: "0", token: "-", asked: 42, after: "42"},
		"the releaser":   {counter: "41", releaser: true, count: "1", token: "-", after: "41"},
		"neither":        {counter: "41", count: "1", token: "-", after: "41"},
		"a large one":    {counter: "900719925474098", releaser: true, waiter: true, count: "1", token: "900719925474099", asked: 900719925474099, after: "900719925474099"},
		"a broken one":   {counter: "x", releaser: true, waiter: true, count: "0", token: "-", asked: -1, after: "x"},
		"an exhausted":   {counter: "9223372036854775807", releaser: true, waiter: true, count: "0", token: "-", asked: -1, after: "9223372036854775807"},
		"broken, unused": {counter: "x", releaser: true, count: "1", token: "-", after: "x"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, rdb)
			l.hold(me, "1", brief)
			l.must("SET", l.fence, row.counter)
			asks, ends := l.asks(waiter(1)), l.ends()
			if row.waiter {
				asks.Fence = l.fence
			}
			if row.releaser {
				ends.Fence = l.fence
			}
			require.True(t, l.acquire(asks).Joined)
			first := l.process(1)
			require.Equal(t, granted, l.releases(ends))
			require.Equal(t, given(1, row.token), first.said())
			require.Equal(t, has(waiter(1), row.count), l.fields())

			// Other processes see a held lock, even while the count is 0.
			refused := l.acquire(l.asks(other))
			require.Equal(t, lua.Held, refused.Status)
			require.Equal(t, waiter(1), refused.Holder)
			renewed, err := lua.Renew(t.Context(), rdb, short, []lua.Hold{{Name: l.name, Owner: waiter(1)}})
			require.NoError(t, err)
			require.Equal(t, []lua.Renewal{lua.Renewed}, renewed)

			for range 2 {
				got, err := lua.Acquire(t.Context(), rdb, asks)
				if row.asked < 0 {
					require.Error(t, err)
					require.Equal(t, has(waiter(1), "0"), l.fields())
				} else {
					require.NoError(t, err)
					require.Equal(t, lua.AcquireReply{Status: lua.Acquired, Token: row.asked}, got)
					require.Equal(t, has(waiter(1), "1"), l.fields())
				}
				after, err := l.do("GET", l.fence).ToString()
				require.NoError(t, err)
				require.Equal(t, row.after, after)
			}
			ends.Owner = waiter(1)
			require.NotEqual(t, notHeld, l.releases(ends))
			require.Empty(t, l.fields()[waiter(1)])
		})
	}
}
