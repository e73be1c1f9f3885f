package quorum

import (
	"cmp"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/engine"
	"github.com/go-rlock/rlock/internal/tenure"
)

// Release unlocks the last level: it releases all shares concurrently, and returns when the answer of a majority of the servers is
// clear. It waits until the hold's trusted time ends or over at the latest; the rest continues in the background. Shares of a lost hold
// are released the same way, without waiting.
func (v *votes) Release(last *tenure.Level, over time.Time) error {
	defer v.uncount()
	defer v.pass()
	release(v.end(true), false)
	return engine.Await(last, v.ended, over, v.why)
}

// release gives shares back concurrently. counted: Close already waits for these calls.
func release(rest []*share, counted bool) {
	for _, s := range rest {
		c := s.tenure.Lock.Client
		if !s.held && !s.thin {
			s.isBack(tenure.ReleaseResult{})
			if c.Calls.IsClosed() {
				go s.tenure.SweepIfUnresolved() // one last try, which ends with its time-out
			} else {
				s.tenure.SweepIfUnresolved()
			}
			continue
		}
		counted := counted || c.Calls.Start() // an unlock works after Close, too
		go func() {                           // ends when the server has answered, or after its retries; Close waits for it
			if counted {
				defer c.Calls.Ended()
			}
			s.giveBack(true, nil)
		}()
	}
}

// giveBack ends a share, once. err is the reason if its grant is uncertain.
func (s *share) giveBack(granted bool, err error) {
	m, r := s.tenure.Lock, tenure.ReleaseResult{Err: err}
	if granted {
		r = engine.Release(s.tenure)
	} else {
		s.tenure.SweepIfUnresolved()
	}
	s.isBack(r)
	m.Client.Hub.Wake(s.of.of.waiters(m)) // a waiter of this process may have been refused because of it
}

// isBack records the result of that release.
func (s *share) isBack(r tenure.ReleaseResult) {
	v := s.of
	v.mu.Lock()
	s.back, s.failed = true, r.Err
	// One given back early proves nothing about the time since.
	s.found = r.Held && r.Err == nil && !s.thin && v.over
	held, most, underWay, failed := v.provenShares(), v.of.majority(), 0, 0
	for _, o := range v.shares {
		switch {
		case !o.back:
			underWay++
		case o.failed != nil:
			failed++
		}
	}
	isClear := v.releases && (held >= most || underWay == 0)
	v.mu.Unlock()
	var result []error
	switch {
	case !isClear:
		return
	case held >= most:
	case held+failed >= most:
		result = []error{v.why()}
	default:
		v.CatchUp() // if its time is over, that is the reason
		v.lose(tenure.Loss{Reason: tenure.LostGone, Since: time.Now(), Text: "lost: most servers lost their data, or it was forced open"})
	}
	select {
	case v.ended <- result:
	default: // already decided
	}
}

// why returns the reason that a release has not ended yet.
func (v *votes) why() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	var last error
	for _, s := range v.shares {
		last = cmp.Or(s.failed, last)
	}
	return v.of.tooFew(last)
}

// provenShares returns how many of the shares found by a release count. One that was granted to live votes, or after their end, counts only if
// every share not (yet) found was last seen after that. Had one been gone in between, a renewal would have found out. The votes are over, and
// mu is held.
func (v *votes) provenShares() (n int) {
	seen := time.Now()
	for _, s := range v.shares {
		if s.held && !s.found {
			seen = calls.Earlier(seen, s.seen())
		}
	}
	if v.began.After(seen) {
		seen = v.began
	}
	for _, s := range v.shares {
		if s.found && !s.since.After(seen) {
			n++
		}
	}
	return n
}
