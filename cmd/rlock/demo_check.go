package main

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// findings is what the demo checked, each thing without asking the lock.
type findings struct {
	sections int
	overlaps []string // by the clock: two sections of one lock at once
	meetings []string // by the witness in Redis: somebody else was inside
	lost     int      // updates that were overwritten
}

// check looks for what a lock must prevent. The counters are what is left in Redis.
func (r *record) check(counters map[string]int64) findings {
	f := findings{meetings: r.meeting}
	for _, lock := range []string{tea, till} {
		sections := r.sections(lock)
		f.sections += len(sections)
		var last *span // of those so far, the one that stayed longest
		for _, s := range sections {
			if last != nil && s.from < last.to {
				f.overlaps = append(f.overlaps, fmt.Sprintf("%6.3f s: %s was in %s for %v when %s came in",
					s.from.Seconds(), last.name(), lock, round(s.from-last.from), s.name()))
			}
			if last == nil || s.to > last.to {
				last = s
			}
		}
		f.lost += r.wrote[lock] - int(counters[lock])
	}
	return f
}

func (s *span) name() string { return fmt.Sprint(s.process, s.clerk) }

// err sums up what is wrong, or returns nil.
func (f findings) err() error {
	var faults []string
	if n := len(f.overlaps); n > 0 {
		faults = append(faults, fmt.Sprintf("%d overlaps", n))
	}
	if n := len(f.meetings); n > 0 {
		faults = append(faults, fmt.Sprintf("%d seen by the witness", n))
	}
	if f.lost != 0 {
		faults = append(faults, fmt.Sprintf("%d lost updates", f.lost))
	}
	if f.sections == 0 {
		faults = append(faults, "nothing happened")
	}
	if faults == nil {
		return nil
	}
	return errors.New(strings.Join(faults, ", "))
}

// round leaves three digits or so: enough for people.
func round(d time.Duration) time.Duration {
	for unit := time.Microsecond; ; unit *= 10 {
		if d < 1000*unit {
			return d.Round(unit)
		}
	}
}
