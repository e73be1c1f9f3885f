package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const ms = time.Millisecond

// history makes a record from spans given in ms.
type stay struct {
	process        string
	lock           string
	depth          int
	want, from, to int
}

func history(stays ...stay) *record {
	start := time.Unix(1000, 0)
	r := newRecord(start)
	at := func(n int) int64 { return start.Add(time.Duration(n) * ms).UnixNano() }
	for _, s := range stays {
		r.add(s.process, event{Kind: entered, Clerk: 1, Lock: s.lock, Depth: s.depth, Want: at(s.want), At: at(s.from)})
		if s.to > 0 {
			r.add(s.process, event{Kind: left, Clerk: 1, Lock: s.lock, Depth: s.depth, At: at(s.to)})
		}
	}
	return r
}

func TestCheck(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		stays []stay
		want  string
	}{
		"nothing":      {nil, "nothing happened"},
		"one by one":   {[]stay{{"A", tea, 1, 0, 0, 10}, {"B", tea, 1, 0, 10, 20}}, ""},
		"told late":    {[]stay{{"B", tea, 1, 0, 10, 20}, {"A", tea, 1, 0, 0, 10}}, ""},
		"other locks":  {[]stay{{"A", tea, 1, 0, 0, 10}, {"B", till, 1, 0, 5, 20}}, ""},
		"re-entry":     {[]stay{{"A", tea, 1, 0, 0, 10}, {"A", tea, 2, 1, 1, 9}}, ""},
		"overlap":      {[]stay{{"A", tea, 1, 0, 0, 10}, {"B", tea, 1, 0, 9, 20}}, "1 overlaps"},
		"in the other": {[]stay{{"A", tea, 1, 0, 0, 10}, {"B", tea, 1, 0, 2, 3}, {"C", tea, 1, 0, 5, 6}}, "2 overlaps"},
		"never left":   {[]stay{{"A", tea, 1, 0, 0, 0}, {"B", tea, 1, 0, 5, 6}}, "1 overlaps"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := history(c.stays...).check(nil).err()
			if c.want == "" {
				require.NoError(t, err)
			} else {
				require.EqualError(t, err, c.want)
			}
		})
	}
}

func TestCheckCounters(t *testing.T) {
	t.Parallel()
	r := history(stay{"A", tea, 1, 0, 0, 10})
	r.add("A", event{Kind: wrote, Lock: tea})
	r.add("B", event{Kind: wrote, Lock: tea})
	r.add("B", event{Kind: wrote, Lock: till})
	require.NoError(t, r.check(map[string]int64{tea: 2, till: 1}).err())
	require.EqualError(t, r.check(map[string]int64{tea: 1, till: 0}).err(), "2 lost updates")
}

// TestWitness: what a dead process left is no meeting, if it was found after the death.
func TestWitness(t *testing.T) {
	t.Parallel()
	r := history(stay{"A", tea, 1, 0, 0, 0})
	r.died("A", r.start.Add(5*ms))
	r.add("B", event{Kind: entered, Lock: tea, Depth: 1, Found: "A1", At: r.start.Add(6 * ms).UnixNano()})
	require.NoError(t, r.check(nil).err())
	require.Equal(t, "B", r.takeover(tea, 5*ms).process)
	require.Nil(t, r.takeover(tea, 6*ms))

	r.add("C", event{Kind: entered, Lock: till, Depth: 1, Found: "A1", At: r.start.Add(4 * ms).UnixNano()})
	r.add("C", event{Kind: left, Lock: till, Depth: 1, Found: "B1", At: r.start.Add(7 * ms).UnixNano()})
	require.EqualError(t, r.check(nil).err(), "2 seen by the witness")
}

func TestHandoffs(t *testing.T) {
	t.Parallel()
	r := history(
		stay{"A", tea, 1, 0, 0, 10}, stay{"A", tea, 2, 1, 1, 9},
		stay{"B", tea, 1, 5, 12, 20},  // waited
		stay{"B", tea, 1, 15, 21, 30}, // waited, in the same process
		stay{"C", tea, 1, 35, 36, 40}, // came when nobody was inside
		stay{"D", tea, 1, 35, 45, 0},
		stay{"A", tea, 1, 46, 90, 95},
	)
	r.died("D", r.start.Add(80*ms)) // is no hand-off
	between, within := r.handoffs(false), r.handoffs(true)
	require.Len(t, between, 2)
	require.Equal(t, []time.Duration{2 * ms, 5 * ms}, []time.Duration{between[0].took, between[1].took})
	require.Len(t, within, 1)
	require.Equal(t, ms, within[0].took)
	require.Equal(t, 1, r.reentries())
}
