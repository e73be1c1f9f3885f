package main

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// span is one level of one section, from the moment when the worker was inside to the moment before
// it unlocked. All processes of a machine share its clock.
type span struct {
	Process  string // letter
	Clerk    int
	Lock     string
	Depth    int       // 1: not a re-entry
	Want     time.Time // when it asked for the lock
	From, To time.Time // To is zero if it hangs inside
	Met      string    // who else was there, according to the witness
	Wrote    bool      // it counted
}

func (s *span) name() string { return fmt.Sprint(s.Process, s.Clerk) }

// record is what the workers did, as they told it.
type record struct {
	start  time.Time
	spans  []*span
	victim string // the process that was killed, if one was
	death  time.Time
}

// isStuck reports whether the process hangs inside.
func (r *record) isStuck(process string) bool {
	return slices.ContainsFunc(r.spans, func(s *span) bool { return s.Process == process && s.To.IsZero() })
}

// died notes that a process was killed: it is inside nowhere any more.
func (r *record) died(process string, at time.Time) {
	r.victim, r.death = process, at
	for _, s := range r.spans {
		if s.To.IsZero() {
			s.To = at
		}
	}
}

// sections returns the spans of a lock that are not re-entries, in order of time.
func (r *record) sections(lock string) (all []*span) {
	for _, s := range r.spans {
		if s.Lock == lock && s.Depth == 1 {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b *span) int { return a.From.Compare(b.From) })
	return all
}

// takeover returns the first section with tea after the death, or nil.
func (r *record) takeover() *span {
	for _, s := range r.sections(tea) {
		if r.victim != "" && s.From.After(r.death) {
			return s
		}
	}
	return nil
}

// handoffs returns how long it took from a holder's unlock of tea to the next holder, who was waiting,
// between processes or within one; the fastest first.
func (r *record) handoffs(within bool) (all []time.Duration) {
	sections := r.sections(tea)
	for i, b := range sections[min(1, len(sections)):] {
		a := sections[i]
		waited := b.Want.Before(a.To) && !b.From.Before(a.To)
		if waited && !a.To.Equal(r.death) && (a.Process == b.Process) == within { // a death is no unlock
			all = append(all, b.From.Sub(a.To))
		}
	}
	slices.Sort(all)
	return all
}

// check looks for what a lock must prevent, each thing without asking the lock: sections that overlap by
// the clock, others whom the witness in Redis saw, and updates that are not in the counters.
func (r *record) check(counters map[string]int) (overlaps []string, err error) {
	met, lost := 0, -counters[tea]-counters[till]
	for _, s := range r.spans {
		if s.Wrote {
			lost++
		}
		isTrace := r.victim != "" && s.From.After(r.death) && s.Met[:min(1, len(s.Met))] == r.victim
		if s.Met != "" && !isTrace {
			met++
		}
	}
	for _, lock := range []string{tea, till} {
		last := new(span) // of those so far, the one that stayed longest
		for _, s := range r.sections(lock) {
			if s.From.Before(last.To) {
				overlaps = append(overlaps, fmt.Sprintf("%6.3f s: %s was in %s for %v when %s came in",
					s.From.Sub(r.start).Seconds(), last.name(), lock, round(s.From.Sub(last.From)), s.name()))
			}
			if s.To.After(last.To) {
				last = s
			}
		}
	}
	switch {
	case len(r.spans) == 0:
		err = errors.New("nothing happened")
	case len(overlaps) > 0 || met > 0 || lost != 0:
		err = fmt.Errorf("%d overlaps, %d seen by the witness, %d lost updates", len(overlaps), met, lost)
	}
	return overlaps, err
}
