package lua_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
)

// subscribers makes n processes listen to the unlock channel, each with its own connection. Processes in line also listen there.
func (l lab) subscribers(dial func() rueidis.Client, n int, sharded, outside bool) (ears []*ear) {
	l.t.Helper()
	for range n {
		process := l
		process.rdb = dial()
		if outside {
			ears = append(ears, process.outsider(sharded))
		} else {
			ears = append(ears, process.listen(sharded))
		}
	}
	return ears
}

// While an outsider listens, a release frees the lock and only the head of the queue asks.
func TestOutsidersGetATurn(t *testing.T) {
	t.Parallel()
	addr := redistest.Shared(t)
	rdb := redistest.Dial(t, addr)
	for name, row := range map[string]struct {
		waiting, inLine, outside int // places in the queue; processes on the unlock channel
		next                     string
	}{
		"the next one alone, and an outsider": {outside: 1, next: next},
		"one waits":                           {waiting: 1, inLine: 1},
		"one waits, others are not asleep":    {waiting: 1, inLine: 5},
		"one waits, and an outsider":          {waiting: 1, inLine: 1, outside: 1},
		"one waits, who has died":             {waiting: 1, outside: 1},
		"many wait":                           {waiting: 20, inLine: 20},
		"many wait, and an outsider":          {waiting: 20, inLine: 20, outside: 1},
		"many wait, and outsiders":            {waiting: 20, inLine: 3, outside: 3},
		"the next one":                        {waiting: 2, inLine: 3, next: next},
		"the next one, and an outsider":       {waiting: 2, inLine: 3, outside: 1, next: next},
		"a next one that has a place":         {waiting: 2, inLine: 2, outside: 1, next: waiter(2)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, rdb)
			l.hold(me, "1", brief)
			for i := 1; i <= row.waiting; i++ {
				l.join(i)
			}
			dial := func() rueidis.Client { return redistest.Dial(t, addr) }
			ears := append(l.subscribers(dial, row.inLine, false, false), l.subscribers(dial, row.outside, false, true)...)
			first, second := l.process(1), l.process(2)
			a := l.endsFor(row.next)
			places, head := l.places(), first
			if row.waiting == 0 {
				head = l.listenTo(l.channel+":"+strings.TrimSuffix(next, ":9"), false)
			}
			if row.next == next {
				places = append(places, next)
			}
			if row.outside == 0 {
				require.Equal(t, granted, l.releases(a))
				require.Equal(t, given(1, "-"), first.said())
				l.requirePlaces(places[1:]...)
				require.Empty(t, ears[0].said())
				return
			}
			want := outsidersTold
			for range 2 { // a repeat sends no more messages
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

// On a cluster, the slot's node counts the subscribers of a sharded channel.
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
		dial := func() rueidis.Client { return c.Client(t) }
		ears := l.subscribers(dial, 2, true, false)
		require.Equal(t, granted, l.releases(a))
		require.Equal(t, given(1, "-"), first.said())

		a.Owner = waiter(1)
		l.join(2, 3)
		l.process(2, true)
		ears = append(ears, l.subscribers(dial, 1, true, true)...)
		require.Equal(t, outsidersTold, l.releases(a))
		for _, ear := range ears {
			require.Equal(t, []string{"00"}, ear.said())
		}
	}
}

// At each grant, every process that would sleep past its end gets a message to look then. This includes processes far back in the queue,
// because all processes before them may be dead.
func TestSuccessorsWatch(t *testing.T) {
	t.Parallel()
	addr := redistest.Shared(t)
	rdb := redistest.Dial(t, addr)
	looks := func(n int) []string { return []string{fmt.Sprintf("? %d", 100000+20*n)} }
	const six = 6*grantLease + grantLease/2 // so those before the last could each have had a grant, even if the test takes long
	all := [6][]string{1: looks(0), 2: looks(1), 3: looks(2), 4: looks(3), 5: looks(4)}
	for name, row := range map[string]struct {
		asleep  time.Duration // that all will sleep
		armed   []int         // except these
		outside bool
		next    string
		told    [6][]string // after the first, which gets the lock, or a message to look at once
		until   time.Duration
	}{
		"long":                  {asleep: six, told: all, until: grantLease + margin},
		"long, a next one":      {asleep: six, next: next, told: all, until: six + margin},
		"long, outsiders":       {asleep: six, outside: true, told: all, until: grantLease + margin},
		"not longer":            {asleep: grantLease, until: grantLease + margin},
		"not longer, next":      {asleep: brief, next: next, until: grantLease + margin},
		"not longer, outsiders": {asleep: brief, outside: true, until: brief + margin},
		"a little longer":       {asleep: grantLease + 5*time.Second, told: [6][]string{1: looks(0)}, until: grantLease + 5*time.Second + margin},
		"three leases":          {asleep: 3 * grantLease, told: [6][]string{1: looks(0), 2: looks(1)}, until: 3*grantLease + margin},
		"behind four that look by then": {
			asleep: six, armed: []int{1, 2, 3, 4}, told: [6][]string{5: looks(4)}, until: grantLease + margin,
		},
		"behind more than need be told": {
			asleep: 3 * grantLease, armed: []int{1, 2, 3, 4}, told: [6][]string{5: looks(4)}, until: grantLease + margin,
		},
		"behind one that need be told": {
			asleep: 3 * grantLease, armed: []int{1, 3, 4}, told: [6][]string{2: looks(1)}, until: 3*grantLease + margin,
		},
		"those in between": {asleep: six, armed: []int{1, 3, 5}, told: [6][]string{2: looks(1), 4: looks(3)}, until: grantLease + margin},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, rdb)
			l.hold(me, "1", row.asleep)
			l.join(0, 1, 2, 3, 4, 5)
			l.must("PEXPIRE", l.name, "10000")
			l.join(row.armed...)
			var ears [6]*ear
			for i := range ears {
				ears[i] = l.process(i)
			}
			a := l.endsFor(row.next)
			if row.outside {
				l.subscribers(func() rueidis.Client { return redistest.Dial(t, addr) }, 2, false, true)
				require.Equal(t, outsidersTold, l.releases(a))
				require.Equal(t, []string{"? 0"}, ears[0].said())
			} else {
				require.Equal(t, granted, l.releases(a))
				require.Equal(t, given(0, "-"), ears[0].said())
			}
			l.requireQueueTTL(row.until)
			for i, ear := range ears[1:] {
				require.Equal(t, row.told[i+1], ear.said(), i+1)
			}
			if row.outside {
				return
			}

			// On the next grant, a process that got a message looks by then anyway. A process that was far enough back may no longer be.
			a = l.ends()
			a.Owner = waiter(0)
			require.Equal(t, granted, l.releases(a))
			require.Equal(t, given(1, "-"), ears[1].said())
			for i, ear := range ears[2:] {
				said := ear.said()
				if row.told[i+2] != nil || row.until <= grantLease+margin {
					require.Empty(t, said, "notified before: %d", i+2)
				}
			}
		})
	}
}
