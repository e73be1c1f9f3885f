package lua_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/internal/require"
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

// A grantee finds the same hold as if it had asked, and a renewal outlasts the grant.
func TestGrantIsLikeAnAcquire(t *testing.T) {
	t.Parallel()
	l := newLab(t, redistest.Dial(t, redistest.Shared(t)))
	l.hold(me, "1", brief)
	l.join(1, 2)
	l.process(1)
	require.Equal(t, granted, l.releases(l.ends()))
	require.Equal(t, lua.Held, l.acquire(l.asks(waiter(2))).Status)
	require.Equal(t, lua.AcquireReply{Status: lua.Acquired}, l.acquire(l.asks(waiter(1))))
	require.Equal(t, has(waiter(1), "1"), l.fields())
	l.requireTTL(grantLease)
	renewed, err := lua.Renew(t.Context(), l.rdb, long, []lua.Hold{{Name: l.name, Owner: me}, {Name: l.name, Owner: waiter(1)}})
	require.NoError(t, err)
	require.Equal(t, []lua.Renewal{lua.Gone, lua.Renewed}, renewed)
	l.requireTTL(long)
}

// A killed process has no listener, so hundreds of them cost a single call.
func TestReleasePassesOverTheDead(t *testing.T) {
	t.Parallel()
	for _, alive := range []bool{true, false} {
		for _, fenced := range []bool{true, false} {
			t.Run(fmt.Sprintf("alive=%v/fenced=%v", alive, fenced), func(t *testing.T) {
				t.Parallel()
				l := newLab(t, redistest.Dial(t, redistest.Shared(t)))
				l.hold(me, "1", brief)
				everybody, last := l.listen(false), l.process(300)
				a := l.ends()
				for i := range 300 {
					l.acquire(l.asksForToken(waiter(i)))
				}
				if alive {
					l.join(300)
				}
				if fenced {
					a.Fence = l.fence
				}
				began := time.Now()
				got := l.releases(a)
				require.Less(t, time.Since(began), 5*time.Second)
				l.requirePlaces()
				if alive {
					require.Equal(t, granted, got)
					require.Equal(t, has(waiter(300), "1"), l.fields())
					require.Equal(t, given(300, "-"), last.said())
					require.Empty(t, everybody.said())
					l.requireTTL(grantLease)
				} else {
					require.Equal(t, freed, got)
					require.Zero(t, l.number("EXISTS", l.name))
					require.Equal(t, []string{"0"}, everybody.said())
				}
			})
		}
	}
}

// A releaser that wants the lock again waits its turn. It gets the lock itself if no process is before it.
func TestNextJoinsAtTheEnd(t *testing.T) {
	t.Parallel()
	rdb := redistest.Dial(t, redistest.Shared(t))
	for name, row := range map[string]struct {
		queue  []int
		alive  []int
		next   string
		stay   bool
		want   lua.ReleaseReply
		owner  string
		places []string
	}{
		"alone":              {next: next, want: handedOff, owner: next},
		"all others died":    {queue: []int{1, 2}, next: next, want: handedOff, owner: next},
		"one behind another": {queue: []int{1}, alive: []int{1}, next: next, want: granted, owner: waiter(1), places: []string{next}},
		"behind the living": {
			queue: []int{1, 2, 3}, alive: []int{2, 3}, next: next, want: granted, owner: waiter(2), places: []string{waiter(3), next},
		},
		"has a place, first": {queue: []int{1, 2}, alive: []int{1, 2}, next: waiter(1), want: handedOff, owner: waiter(1), places: []string{waiter(2)}},
		"has a place, later": {
			queue: []int{1, 2, 3}, alive: []int{1, 2, 3}, next: waiter(2), want: granted, owner: waiter(1), places: []string{waiter(2), waiter(3)},
		},
		"stays, alone":       {next: next, stay: true, want: handedOff, owner: next},
		"stays":              {queue: []int{1}, alive: []int{1}, next: next, stay: true, want: handedOff, owner: next, places: []string{waiter(1)}},
		"stays, has a place": {queue: []int{1, 2}, alive: []int{1, 2}, next: waiter(2), stay: true, want: handedOff, owner: waiter(2), places: []string{waiter(1)}},
		"stays, only its own place": {
			queue: []int{1}, alive: []int{1}, next: waiter(1), stay: true, want: handedOff, owner: waiter(1),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, rdb)
			l.hold(me, "1", brief)
			l.join(row.queue...)
			ears := make(map[int]*ear)
			for _, i := range row.alive {
				ears[i] = l.process(i)
			}
			a := l.endsFor(row.next)
			a.Stay = row.stay
			want := row.want
			for range 2 { // a repeat finds that the lock has gone
				require.Equal(t, want, l.releases(a))
				want = notHeld
				require.Equal(t, has(row.owner, "1"), l.fields())
				l.requirePlaces(row.places...)
			}
			for i, ear := range ears {
				if row.want == granted && row.owner == waiter(i) {
					require.Equal(t, given(i, "-"), ear.said())
				} else {
					require.Empty(t, ear.said())
				}
			}
			if row.want == handedOff {
				l.requireTTL(lease)
			} else {
				l.requireTTL(grantLease)
				l.requireQueueTTL(grantLease + margin)
			}
		})
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
