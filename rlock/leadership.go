package rlock

import (
	"context"
	"sync"
	"time"

	"github.com/go-rlock/rlock/internal/tenure"
)

// Leadership reports whether a [Lead] leads, see [ReportTo]. The zero value is ready to use, by one Lead. Its methods are safe for concurrent
// use.
type Leadership struct {
	mu      sync.Mutex // guards the following; a tenure's and the renewer's are taken under it, never the reverse
	latest  LeadState
	section context.Context // of fn; nil: fn does not run
	terms   uint64          // begun
	changed chan struct{}   // closed at the next change; nil: nobody waits for it
}

// LeadState is the state of a [Leadership] at one moment.
type LeadState struct {
	// Leading is true from the call of fn until its ctx is done, it returns, or the lease is over.
	Leading bool
	// Term rises with each term, as long as Redis keeps its data; 0: there was none yet. Of a [Client.FencedMutex] it is the fencing token, higher
	// than that of all earlier leaders, in any process.
	Term int64
	// Since is when that term began or, if it has ended, when that was noticed.
	Since time.Time
}

// ReportTo makes [Lead] report to s when it begins and stops leading.
func ReportTo(s *Leadership) LeadOption {
	if s == nil {
		panic("rlock: ReportTo of a nil Leadership")
	}
	return leadOption(func(l *leadership) { l.report = s })
}

// State returns the current state.
func (s *Leadership) State() LeadState {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notice()
	state := s.latest
	if s.section != nil {
		if until, ok := tenure.TrustedUntil(s.section); ok && !time.Now().Before(until) {
			state.Leading = false // its ctx is about to end, unless a renewal was just confirmed
		}
	}
	return state
}

// Changed returns a channel that is closed at the next change of the state. Call it before State, so that no change is missed.
func (s *Leadership) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notice()
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	return s.changed
}

// notice ends a term whose ctx is done, if the function called for that has not run yet. mu is held.
func (s *Leadership) notice() {
	if s.section != nil && s.section.Err() != nil {
		s.set(LeadState{Term: s.latest.Term})
	}
}

func (s *Leadership) set(next LeadState) {
	next.Since = time.Now()
	s.latest, s.section = next, nil
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

func (s *Leadership) begin(ctx context.Context, name string) (end func()) {
	token, fenced := FencingToken(ctx, name)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.terms++
	term := s.terms
	if !fenced {
		token = s.latest.Term + 1
	}
	s.set(LeadState{Leading: true, Term: token})
	s.section = ctx
	over := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.section != nil && s.terms == term {
			s.set(LeadState{Term: s.latest.Term})
		}
	}
	stop := context.AfterFunc(ctx, over)
	return func() {
		stop()
		over()
	}
}
