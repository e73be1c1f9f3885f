package main

import (
	"slices"
	"strings"
	"time"
)

// span is one level of one section, from the moment when the worker was inside to the moment before
// it unlocked.
type span struct {
	process string // letter
	clerk   int
	lock    string
	layer   string
	depth   int
	want    time.Duration // when it asked; all times count from the start of the record
	from    time.Duration
	to      time.Duration // still inside: stillInside
	cut     bool          // ended by the death of the process
}

const stillInside = time.Duration(1<<63 - 1)

// record is what the workers did, as they told it.
type record struct {
	start   time.Time
	spans   []*span
	open    map[spanKey]*span
	wrote   map[string]int // updates per counter
	meeting []string       // what the witness saw: who met whom
	deaths  map[string]time.Duration
}

type spanKey struct {
	process string
	clerk   int
	lock    string
	depth   int
}

func newRecord(start time.Time) *record {
	return &record{
		start: start, open: make(map[spanKey]*span), wrote: make(map[string]int),
		deaths: make(map[string]time.Duration),
	}
}

// add notes an event of a process.
func (r *record) add(process string, e event) {
	at := r.since(e.At)
	key := spanKey{process, e.Clerk, e.Lock, e.Depth}
	switch e.Kind {
	case entered:
		s := &span{
			process: process, clerk: e.Clerk, lock: e.Lock, layer: e.Layer, depth: e.Depth,
			want: r.since(e.Want), from: at, to: stillInside,
		}
		r.spans = append(r.spans, s)
		r.open[key] = s
	case left:
		if s := r.open[key]; s != nil {
			s.to = at
			delete(r.open, key)
		}
	case wrote:
		r.wrote[e.Lock]++
	}
	if e.Found != "" && !r.isTrace(e.Found, at) {
		r.meeting = append(r.meeting, process+" met "+e.Found)
	}
}

// isTrace reports whether the witness found what a dead process left.
func (r *record) isTrace(found string, at time.Duration) bool {
	for process, death := range r.deaths {
		if strings.HasPrefix(found, process) && at > death {
			return true
		}
	}
	return false
}

// died notes that a process was killed: it is inside nowhere any more.
func (r *record) died(process string, at time.Time) {
	death := at.Sub(r.start)
	r.deaths[process] = death
	for key, s := range r.open {
		if key.process == process {
			s.to, s.cut = death, true
			delete(r.open, key)
		}
	}
}

func (r *record) since(ns int64) time.Duration { return time.Unix(0, ns).Sub(r.start.Round(0)) }

// sections returns the spans of a lock that are not re-entries, in order of time.
func (r *record) sections(lock string) []*span {
	var all []*span
	for _, s := range r.spans {
		if s.lock == lock && s.depth == 1 {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b *span) int { return int(a.from - b.from) })
	return all
}

// takeover returns the first section of a lock that began after a time.
func (r *record) takeover(lock string, after time.Duration) *span {
	var first *span
	for _, s := range r.spans {
		if s.lock == lock && s.depth == 1 && s.from > after && (first == nil || s.from < first.from) {
			first = s
		}
	}
	return first
}

// reentries counts the spans that did not have to wait, since their owner was inside.
func (r *record) reentries() int {
	n := 0
	for _, s := range r.spans {
		if s.depth > 1 {
			n++
		}
	}
	return n
}

// handoff is the time from a holder's unlock to the next holder, who was waiting.
type handoff struct {
	from, to *span
	took     time.Duration
}

// handoffs returns those of tea, between processes or within one, the fastest first.
func (r *record) handoffs(within bool) []handoff {
	var all []handoff
	sections := r.sections(tea)
	for i := 1; i < len(sections); i++ {
		a, b := sections[i-1], sections[i]
		if a.cut {
			continue // that was no unlock
		}
		if b.want < a.to && b.from >= a.to && (a.process == b.process) == within {
			all = append(all, handoff{a, b, b.from - a.to})
		}
	}
	slices.SortFunc(all, func(a, b handoff) int { return int(a.took - b.took) })
	return all
}
