package tenure

import (
	"context"
	"time"
)

// RunBound bounds a run.
type RunBound struct {
	Most int           // most hand-offs in a row; 0: no hand-offs, not even to other processes
	For  time.Duration // longest run
}

const (
	// mostBesideOutsiders bounds a run while a waiter does not hand off.
	mostBesideOutsiders = 1
	// aside is how long a process steps aside after a run of unlocks that notify everybody.
	aside = 10 * time.Millisecond
)

// Run counts successive hand-offs inside the process. The holds pass it on to each other.
type Run struct {
	length int
	began  time.Time
	By     context.Context // of the section that the last hand-off ended, for the next holder's Trace; nil without one
	Tokens Tokens          // for the run's next holds
}

// Tokens are unused fencing tokens: left of them, from next on.
type Tokens struct{ Next, Left int64 }

// Token takes the next token; ok is false if there is none.
func (r *Run) Token() (token int64, ok bool) {
	if r == nil || r.Tokens.Left == 0 {
		return 0, false
	}
	token = r.Tokens.Next
	r.Tokens = Tokens{token + 1, r.Tokens.Left - 1}
	return token, true
}

// Section returns the ctx of the section that the last hand-off ended, once; nil without a Trace.
func (r *Run) Section() context.Context {
	by := r.By
	r.By = nil
	return by
}

// BesideOutsiders returns the bound while waiters outside the line compete. They get a third of the sections, if they are there to take them.
func (b RunBound) BesideOutsiders() RunBound {
	b.Most = min(b.Most, mostBesideOutsiders)
	return b
}

// Over reports whether the run should end. A nil run has not begun.
func (r *Run) Over(o RunBound, now time.Time) bool {
	return r != nil && (r.length >= o.Most || now.Sub(r.began) >= o.For)
}

// Next returns the run with one more hand-off if the lock stays in the process, or a new run.
func (r *Run) Next(stay bool, now time.Time) *Run {
	if r == nil || !stay {
		r = &Run{began: now}
	}
	if stay {
		r.length++
	}
	return r
}
