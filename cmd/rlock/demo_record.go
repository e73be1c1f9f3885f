package main

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// span is one level of one section, from just after the lock to just before the unlock. All processes of a machine share its clock.
type span struct {
	Process  string // letter
	Clerk    int
	Lock     string
	Depth    int       // 1: not a re-entry
	Want     time.Time // when it asked for the lock
	From, To time.Time // To is zero if it hangs inside
	Met      string    // the others inside, according to the witness
	Wrote    bool      // updated the counter
}

func (s *span) name() string { return fmt.Sprint(s.Process, s.Clerk) }

// record collects the workers' reports.
type record struct {
	start  time.Time
	spans  []*span
	victim string // the killed process, if any
	death  time.Time
}

// isStuck reports whether the process hangs inside.
func (r *record) isStuck(process string) bool {
	return slices.ContainsFunc(r.spans, func(s *span) bool { return s.Process == process && s.To.IsZero() })
}

// died ends all spans of a killed process.
func (r *record) died(process string, at time.Time) {
	r.victim, r.death = process, at
	for _, s := range r.spans {
		if s.To.IsZero() {
			s.To = at
		}
	}
}

// sections returns a lock's spans without re-entries, in order of time.
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

// handoffs returns the times from an unlock of tea to the next waiting holder's entry, between processes or within one, fastest first.
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

// check looks for violations without asking the lock: sections that overlap by the clock, overlaps seen by the witness in Redis, and
// updates missing from the counters.
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
		last := new(span) // the section so far that ended last
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
