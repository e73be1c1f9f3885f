package lua_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/internal/require"
	"github.com/go-rlock/rlock/lua"
)

// subscribers makes so many processes listen to the unlock channel, each with a connection of its own.
func (l lab) subscribers(dial func() rueidis.Client, n int, sharded bool) (ears []*ear) {
	l.t.Helper()
	for range n {
		process := l
		process.rdb = dial()
		ears = append(ears, process.listen(sharded))
	}
	return ears
}

// Whoever listens and is not in the queue gets a turn when those in it had theirs: the lock is free then, and the first of the
// queue is the only one of it that asks.
func TestOutsidersGetATurn(t *testing.T) {
	t.Parallel()
	addr := redistest.Shared(t)
	rdb := redistest.Dial(t, addr)
	for name, row := range map[string]struct {
		waiting, listen int // places in the queue; processes on the unlock channel
		grants          int // before this one
		listens         bool
		next            string
		outside         bool // it is their turn
		told            int  // grants, as the message says, if it is not
	}{
		"the next one alone, and another":       {listen: 2, next: next, listens: true, outside: true},
		"one waits, one listens":                {waiting: 1, listen: 1},
		"one waits, two listen":                 {waiting: 1, listen: 2, outside: true},
		"one waits, this process listens":       {waiting: 1, listen: 2, listens: true},
		"one waits, this and another":           {waiting: 1, listen: 3, listens: true, outside: true},
		"not yet":                               {waiting: 3, listen: 5, grants: 1, told: 2},
		"each had a turn":                       {waiting: 3, listen: 5, grants: 2, outside: true},
		"each had a turn, nobody else listens":  {waiting: 3, listen: 3, grants: 2},
		"each had a turn, some died":            {waiting: 3, listen: 1, grants: 2},
		"many wait, not yet":                    {waiting: 20, listen: 21, grants: 2, told: 3},
		"many wait, after four":                 {waiting: 20, listen: 21, grants: 3, outside: true},
		"many wait, nobody else listens":        {waiting: 20, listen: 20, grants: 3},
		"later than need be":                    {waiting: 2, listen: 3, grants: 100, outside: true},
		"the next one counts as waiting":        {waiting: 2, listen: 4, grants: 1, next: next, told: 2},
		"the next one counts as its process":    {waiting: 2, listen: 3, grants: 2, next: next, listens: true},
		"the next one, and another":             {waiting: 2, listen: 4, grants: 2, next: next, listens: true, outside: true},
		"a next one that has a place, not more": {waiting: 2, listen: 3, grants: 1, next: waiter(2), listens: true, outside: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, rdb)
			l.hold(me, "1", brief)
			for i := 1; i <= row.waiting; i++ {
				l.join(i)
			}
			ears := l.subscribers(func() rueidis.Client { return redistest.Dial(t, addr) }, row.listen, false)
			first, second := l.process(1), l.process(2)
			a := l.endsFor(row.next)
			a.Grants, a.Listens = row.grants, row.listens
			places, head := l.places(), first
			if row.waiting == 0 {
				head = l.listenTo(l.channel+":"+strings.TrimSuffix(next, ":9"), false)
			}
			if row.next == next {
				places = append(places, next)
			}
			if !row.outside {
				require.Equal(t, granted, l.releases(a))
				require.Equal(t, given(1, row.told, "-"), first.said())
				l.requirePlaces(places[1:]...)
				require.Empty(t, ears[0].said())
				return
			}
			want := freed
			want.Several = row.listen > 1
			for range 2 { // a repeat says nothing more
				require.Equal(t, want, l.releases(a))
				want = notHeld
				require.Zero(t, l.number("EXISTS", l.name))
				l.requirePlaces(places...)
			}
			require.Equal(t, []string{"? 0"}, head.said())
			require.Empty(t, second.said())
			require.Positive(t, l.number("PTTL", l.queue))
			for _, ear := range ears {
				require.Contains(t, ear.said(), "00")
			}
		})
	}
}

// The first that lives is told; if there is none, everybody is.
func TestOutsidersBesideTheDead(t *testing.T) {
	t.Parallel()
	for _, alive := range []bool{true, false} {
		t.Run(fmt.Sprint(alive), func(t *testing.T) {
			t.Parallel()
			addr := redistest.Shared(t)
			l := newLab(t, redistest.Dial(t, addr))
			l.hold(me, "1", brief)
			l.join(1, 2, 3, 4)
			ears := l.subscribers(func() rueidis.Client { return redistest.Dial(t, addr) }, 5, false)
			a := l.ends()
			a.Grants = 3
			if !alive {
				require.Equal(t, severalTold, l.releases(a))
				require.Equal(t, []string{"0"}, ears[0].said())
				require.Zero(t, l.number("EXISTS", l.name, l.queue))
				return
			}
			third, fourth := l.process(3), l.process(4)
			require.Equal(t, severalTold, l.releases(a))
			require.Equal(t, []string{"? 0"}, third.said())
			require.Empty(t, fourth.said())
			require.Equal(t, []string{"00"}, ears[0].said())
			l.requirePlaces(waiter(3), waiter(4))
		})
	}
}

// On a cluster the node that has the slot counts the subscribers of a sharded channel.
func TestOutsidersOnACluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 0)
	for range 3 { // names of several slots
		l := newLab(t, c.Client(t))
		l.hold(me, "1", brief)
		l.join(1)
		first := l.process(1, true)
		a := l.ends()
		a.Publish.Sharded = true
		ears := l.subscribers(func() rueidis.Client { return c.Client(t) }, 1, true)
		require.Equal(t, granted, l.releases(a))
		require.Equal(t, given(1, 0, "-"), first.said())

		a.Owner = waiter(1)
		l.join(2, 3)
		l.process(2, true)
		ears = append(ears, l.subscribers(func() rueidis.Client { return c.Client(t) }, 2, true)...)
		a.Grants = 1
		require.Equal(t, severalTold, l.releases(a))
		require.Equal(t, []string{"00"}, ears[0].said())
	}
}

// Successors are told when to look if one of the queue sleeps for longer than the grantee has, should that be dead.
func TestSuccessorsWatch(t *testing.T) {
	t.Parallel()
	addr := redistest.Shared(t)
	rdb := redistest.Dial(t, addr)
	looks := func(n int) []string { return []string{fmt.Sprintf("? %d", n*100000)} }
	all := [6][]string{1: looks(1), 2: looks(2), 3: looks(3), 4: looks(4), 5: looks(5)}
	for name, row := range map[string]struct {
		asleep  time.Duration // that somebody will be
		outside bool
		next    string
		told    [6][]string // after the first, which gets the lock, or is told to look at once
	}{
		"long":                {asleep: long, told: all},
		"a little longer":     {asleep: grantLease + 5*time.Second, told: all},
		"not longer":          {asleep: grantLease},
		"long, a next one":    {asleep: long, next: next, told: all},
		"not longer, next":    {asleep: brief, next: next},
		"long, outsiders":     {asleep: long, outside: true, told: all},
		"not long, outsiders": {asleep: brief, outside: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, rdb)
			l.hold(me, "1", row.asleep)
			l.join(0, 1, 2, 3, 4, 5)
			var ears [6]*ear
			for i := range ears {
				ears[i] = l.process(i)
			}
			a := l.endsFor(row.next)
			if row.outside {
				l.subscribers(func() rueidis.Client { return redistest.Dial(t, addr) }, 7, false)
				a.Grants = 5
				require.Equal(t, severalTold, l.releases(a))
				require.Contains(t, ears[0].said(), "? 0")
			} else {
				require.Equal(t, granted, l.releases(a))
				require.Equal(t, given(0, 1, "-"), ears[0].said())
			}
			if row.next != "" { // which sleeps for as long as the grantee has
				l.requireQueueTTL(max(row.asleep, grantLease) + margin)
			}
			for i, ear := range ears[1:] {
				require.Equal(t, row.told[i+1], ear.said(), i+1)
			}
			if row.told[1] == nil || row.outside {
				return
			}
			a = l.ends()
			a.Owner = waiter(0)
			require.Equal(t, granted, l.releases(a))
			require.Equal(t, given(1, 1, "-"), ears[1].said())
			require.Empty(t, ears[2].said(), "told before")
			require.Empty(t, ears[4].said(), "told before")
		})
	}
}

// A release by somebody who does not hold the lock takes them out of the queue.
func TestReleaseLeavesTheQueue(t *testing.T) {
	t.Parallel()
	for name, rdb := range map[string]rueidis.Client{
		"standalone": redistest.Dial(t, redistest.Shared(t)),
		"cluster":    redistest.StartCluster(t, 3, 0).Client(t),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, rdb)
			l.hold(other, "1", brief)
			l.join(1, 2, 3)
			require.True(t, l.acquire(l.asksForToken(waiter(4))).Joined)
			leaves := func(i int, fence string) lua.ReleaseArgs {
				a := l.ends()
				a.Owner, a.Fence = waiter(i), fence
				return a
			}
			for range 2 {
				require.Equal(t, notHeld, l.releases(leaves(2, "")))
				l.requirePlaces(waiter(1), waiter(3), waiter(4)+" f")
			}
			require.Equal(t, notHeld, l.releases(leaves(4, l.fence)))
			require.Zero(t, l.number("EXISTS", l.fence))
			for _, r := range lua.ReleaseAll(t.Context(), l.rdb, []lua.ReleaseArgs{leaves(1, ""), leaves(3, ""), leaves(5, "")}) {
				require.Equal(t, lua.ReleaseResult{ReleaseReply: notHeld}, r)
			}
			require.Zero(t, l.number("EXISTS", l.queue))
			require.Equal(t, others("1"), l.fields())

			// Also while nobody has the lock, and with somebody else's name for a next one.
			l.join(1, 2)
			l.must("DEL", l.name)
			a := leaves(1, "")
			for _, a.Next = range []string{"", next} {
				for _, a.Stay = range []bool{false, true} {
					require.Equal(t, notHeld, l.releases(a))
					l.requirePlaces(waiter(2))
				}
			}
			require.Zero(t, l.number("EXISTS", l.name))
		})
	}
}
