package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const ms = time.Millisecond

// stay is a span in ms; without an end it hangs inside.
type stay struct {
	process        string
	lock           string
	depth          int
	want, from, to int
}

func history(stays ...stay) *record {
	r := &record{start: time.Unix(1000, 0)}
	for _, s := range stays {
		span := &span{Process: s.process, Clerk: 1, Lock: s.lock, Depth: s.depth, Want: r.at(s.want), From: r.at(s.from)}
		if s.to > 0 {
			span.To = r.at(s.to)
		}
		r.spans = append(r.spans, span)
	}
	return r
}

func (r *record) at(n int) time.Time { return r.start.Add(time.Duration(n) * ms) }

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
		"killed late":  {[]stay{{"A", tea, 1, 0, 0, 0}, {"B", tea, 1, 0, 5, 6}}, "1 overlaps"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := history(c.stays...)
			r.died("A", r.at(7))
			overlaps, err := r.check(nil)
			if c.want == "" {
				require.NoError(t, err)
				require.Empty(t, overlaps)
			} else {
				require.ErrorContains(t, err, c.want)
			}
		})
	}
}

func TestCheckCounters(t *testing.T) {
	t.Parallel()
	r := history(stay{"A", tea, 1, 0, 0, 10}, stay{"B", tea, 1, 10, 10, 20}, stay{"B", till, 1, 0, 0, 10})
	for _, s := range r.spans {
		s.Wrote = true
	}
	_, err := r.check(map[string]int{tea: 2, till: 1})
	require.NoError(t, err)
	_, err = r.check(map[string]int{tea: 1, till: 0})
	require.EqualError(t, err, "0 overlaps, 0 seen by the witness, 2 lost updates")
}

// TestWitness: a dead process's leftovers found after its death are no overlap.
func TestWitness(t *testing.T) {
	t.Parallel()
	r := history(stay{"A", tea, 1, 0, 0, 0}, stay{"B", tea, 1, 0, 6, 7})
	require.True(t, r.isStuck("A"))
	require.False(t, r.isStuck("B"))
	require.Nil(t, r.takeover())
	r.died("A", r.at(5))
	require.False(t, r.isStuck("A"))
	r.spans[1].Met = "A1"
	_, err := r.check(nil)
	require.NoError(t, err)
	require.Equal(t, "B", r.takeover().Process)

	r.spans = append(r.spans,
		&span{Process: "C", Lock: till, Depth: 1, From: r.at(4), To: r.at(5), Met: "A1"},
		&span{Process: "C", Lock: till, Depth: 1, From: r.at(7), To: r.at(8), Met: "B1"})
	_, err = r.check(nil)
	require.EqualError(t, err, "0 overlaps, 2 seen by the witness, 0 lost updates")
}

func TestHandoffs(t *testing.T) {
	t.Parallel()
	require.Empty(t, history().handoffs(false))
	r := history(
		stay{"A", tea, 1, 0, 0, 10}, stay{"A", tea, 2, 1, 1, 9},
		stay{"B", tea, 1, 5, 12, 20},  // waited
		stay{"B", tea, 1, 15, 21, 30}, // waited, in the same process
		stay{"C", tea, 1, 35, 36, 40}, // came to an empty section
		stay{"D", tea, 1, 35, 45, 0},
		stay{"A", tea, 1, 46, 90, 95},
	)
	r.died("D", r.at(80)) // is no hand-off
	require.Equal(t, []time.Duration{2 * ms, 5 * ms}, r.handoffs(false))
	require.Equal(t, []time.Duration{ms}, r.handoffs(true))
}
