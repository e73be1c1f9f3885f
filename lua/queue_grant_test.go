package lua_test

import (
	"strconv"
	"testing"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
	"github.com/go-rlock/rlock/lua"
)

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
		l.hold(me, "1", brief)
		everybody, last := l.listen(false), l.process(300)
		a := l.endsFor("")
		a.Fence = l.fence
		for i := range 300 {
			l.must("ZADD", l.queue, strconv.Itoa(i), waiter(i)+" f")
		}
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

// A next owner in this process gets its own token, or an error is returned and I keep the lock.
func TestTokenOfANextOwner(t *testing.T) {
	t.Parallel()
	l := newLab(t, redistest.Dial(t, redistest.Shared(t)))
	l.hold(me, "1", brief)
	l.must("SET", l.fence, "41")
	l.acquire(l.asksForToken(waiter(1))) // has died
	a := l.endsFor(next)
	a.Fence = l.fence
	require.Equal(t, lua.ReleaseReply{Status: lua.HandedOff, Token: 42}, l.releases(a), "the dead one costs no number")
	l.requirePlaces()

	a.Owner, a.Next = next, me
	l.must("SET", l.fence, "x")
	for _, stay := range []bool{true, false} {
		a.Stay = stay
		l.listening(me, a.Publish, func() {
			_, err := lua.Release(t.Context(), l.rdb, a)
			require.ErrorContains(t, err, "not an integer")
		})
		require.Equal(t, nexts("1"), l.fields())
	}
	a.Next = ""
	require.Equal(t, freed, l.releases(a))
}

// A waiter with a shorter lease than a grant's has a count of 0 until it asks. It then gets its own lease, once: a late copy of that call
// shortens nothing.
func TestGrantToAShortLease(t *testing.T) {
	t.Parallel()
	for _, fenced := range []bool{false, true} {
		for _, next := range []bool{false, true} {
			l := newLab(t, redistest.Dial(t, redistest.Shared(t)))
			l.hold(me, "1", brief)
			first, token := l.process(1), int64(0)
			asks, ends := l.asks(waiter(1)), l.ends()
			asks.Lease, asks.Short = short, true
			if fenced {
				asks.Fence, ends.Fence, token = l.fence, l.fence, 1
			}
			if next { // it joins by a release
				l.process(2)
				l.join(2)
				joins := ends
				joins.Next, joins.Short = waiter(1), true
				require.Equal(t, granted, l.releases(joins))
				ends.Owner, ends.Fence = waiter(2), asks.Fence
			} else {
				require.True(t, l.acquire(asks).Joined)
			}
			l.requirePlaces(waiter(1) + " s")
			require.Equal(t, granted, l.releases(ends))
			require.Equal(t, given(1, "-"), first.said())
			require.Equal(t, has(waiter(1), "0"), l.fields())
			l.requireTTL(grantLease)

			require.Equal(t, lua.AcquireReply{Status: lua.Acquired, Token: token}, l.acquire(asks))
			require.Equal(t, has(waiter(1), "1"), l.fields())
			l.requireTTL(short)
			l.must("PEXPIRE", l.name, "180000")
			require.Equal(t, lua.AcquireReply{Status: lua.Acquired, Token: token}, l.acquire(asks))
			l.requireTTL(long)

			left := ends
			left.Owner = waiter(1)
			require.Equal(t, freed, l.releases(left))
			require.True(t, func() bool { l.hold(other, "1", brief); return l.acquire(asks).Joined }())
			require.Equal(t, notHeld, l.releases(left))
			l.requirePlaces()
		}
	}
}
