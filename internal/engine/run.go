package engine

import (
	"context"
	"time"
)

// RunBound bounds a run.
type RunBound struct {
	Most int           // hand-offs that may follow each other; 0: there are none, to other processes either
	For  time.Duration // for how long they may
}

const (
	// mostBesideOutsiders bounds a run while somebody waits who does not hand off.
	mostBesideOutsiders = 2
	// aside is for how long a process steps aside that had a run of unlocks that notify everybody.
	aside = 10 * time.Millisecond
)

// run is how many hand-offs inside of the process followed each other, and since when. The holds pass it on to each other.
type run struct {
	length int
	began  time.Time
	by     context.Context // of the section that the last one ended, for the Trace of the waiter that got it; nil without one
	tokens tokens          // for its holds to come
}

// tokens are fencing tokens that nobody has: from the next one on, so many.
type tokens struct{ next, left int64 }

// token takes the next one; false: there is none.
func (r *run) token() (token int64, ok bool) {
	if r == nil || r.tokens.left == 0 {
		return 0, false
	}
	token = r.tokens.next
	r.tokens = tokens{token + 1, r.tokens.left - 1}
	return token, true
}

// section is the one that the last hand-off ended; nil if nobody wants to know. It is told once.
func (r *run) section() context.Context {
	by := r.by
	r.by = nil
	return by
}

// besideOutsiders is what a run is bounded by while others wait who are not in line: they get a fifth of the sections at least, if they
// are there for them.
func (b RunBound) besideOutsiders() RunBound {
	b.Most = min(b.Most, mostBesideOutsiders)
	return b
}

// over reports whether there should be no further hand-off. A nil run is one that has not begun.
func (r *run) over(o RunBound, now time.Time) bool {
	return r != nil && (r.length >= o.Most || now.Sub(r.began) >= o.For)
}

// next is the run with one hand-off more, or a new one.
func (r *run) next(stay bool, now time.Time) *run {
	if r == nil || !stay {
		r = &run{began: now}
	}
	if stay {
		r.length++
	}
	return r
}
