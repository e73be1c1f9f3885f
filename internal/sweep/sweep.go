// Package sweep undoes the possible effects of unanswered calls. It releases a field without a live owner repeatedly, until such a call
// can no longer act. A field belongs to one tenure only, so even a late release can hurt no other owner.
package sweep

import (
	"slices"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/lua"
)

const (
	// Most bounds the search for a hold that a lost acquire may have started: how long a network may
	// hold a request back and still deliver it.
	Most = time.Minute

	// Batch is the maximum number of fields per call.
	Batch = 100

	firstPause = 500 * time.Millisecond // doubles, so the delay in finding a late hold is at most its age
)

// Unresolved describes the uncertain state of a field in Redis.
type Unresolved struct {
	// Late says that acquires were not answered. Each of them may still act, alone, until the time Until.
	Late  bool
	Until time.Time
	// OutcomeUnknown says that there may be a hold now, after an unlock or a hand-off without an answer: any answer ends that.
	OutcomeUnknown bool
}

// Orphan is a field to be swept. All but Slot, Args and the functions may be zero.
type Orphan struct {
	Unresolved

	Place time.Time       // until when an answer is looked for, which takes it out of the queue in Redis
	Slot  uint16          // of the cluster
	Args  lua.ReleaseArgs // of its release
	Gone  func()          // called when the field of an outcome that was unknown is not there: somebody else may have got the lock
	Left  func(error)     // called when the sweeper gives up, and the field may be left in Redis

	Released func(lua.ReleaseReply) // called with each answer; may be nil

	err     error         // of the last try
	refused bool          // Redis has refused that
	next    time.Time     // when to try again
	pause   time.Duration // after the last try that was answered
}

// Sweepers are a Client's sweepers, one per cluster slot with orphans, because one node may be silent and the others healthy. Package
// calls bounds the number of orphans while Redis is silent. Its methods are safe for concurrent use.
type Sweepers struct {
	calls *calls.Calls
	rdb   rueidis.Client

	mu sync.Mutex // guards the following, and the orphans of all; that of Calls is taken under it
	of map[uint16]*sweeper
}

// New returns the Sweepers of a Client.
func New(c *calls.Calls, rdb rueidis.Client) *Sweepers {
	return &Sweepers{calls: c, rdb: rdb, of: make(map[uint16]*sweeper)}
}

// sweeper sweeps the fields of one slot, on a goroutine that ends when none are left.
type sweeper struct {
	all     *Sweepers
	slot    uint16
	orphans []*Orphan
	again   time.Time     // those that Redis has refused are not tried before
	more    chan struct{} // capacity 1: orphans has grown
}

// Add gives orphans of one slot to its sweeper, which tries them at once and then repeatedly. It must be called within a started call,
// with at least one orphan.
func (all *Sweepers) Add(more []*Orphan) {
	slot := more[0].Slot
	for _, r := range more {
		r.pause = firstPause
	}
	all.mu.Lock()
	defer all.mu.Unlock()
	s := all.of[slot]
	if s == nil {
		s = &sweeper{all: all, slot: slot, more: make(chan struct{}, 1)}
		all.of[slot] = s
		all.calls.Go(s.run) // ends when nothing is left to be found, or with one last try when the client closes
	}
	s.orphans = append(s.orphans, more...)
	select {
	case s.more <- struct{}{}:
	default:
	}
}

// Once releases each orphan once, on the caller's goroutine. It is for use after Close.
func (all *Sweepers) Once(orphans []*Orphan) {
	for i, result := range all.release(orphans) {
		if result.Err != nil {
			orphans[i].Left(result.Err)
		}
	}
}

func (all *Sweepers) release(orphans []*Orphan) []lua.ReleaseResult {
	args := make([]lua.ReleaseArgs, len(orphans))
	for i, r := range orphans {
		args[i] = r.Args
	}
	ctx, cancel := all.calls.Last()
	defer cancel()
	results := lua.ReleaseAll(ctx, all.rdb, args)
	for i, r := range orphans {
		if r.Released != nil && results[i].Err == nil {
			r.Released(results[i].ReleaseReply)
		}
	}
	return results
}

// outcome is what came of a try.
type outcome int8

const (
	silent   outcome = iota // Redis has not answered, or is not ready
	refused                 // it has refused all, which says nothing of others
	answered                // it has released at least one, or did not have it
)

func (s *sweeper) run() {
	c := s.all.calls
	failed := calls.MinPause // the pause after the next try that fails
	for {
		closing := c.IsClosed()
		due, wait := s.due(closing)
		more := s.more
		if wait == 0 {
			return
		}
		if len(due) > 0 {
			said, longer := s.try(due, failed, closing), min(2*failed, 4*calls.MaxPause)
			if said != silent {
				if failed = longer; said == answered {
					failed = calls.MinPause
				}
				continue
			}
			wait, more, failed = failed, nil, longer // each further try may dial again
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-more:
		case <-c.Done():
		}
		timer.Stop()
	}
}

// due returns the orphans to try now, or how long to wait; 0 if none are left and the sweeper ends. While the client is closing, each
// is tried once more.
func (s *sweeper) due(closing bool) (due []*Orphan, wait time.Duration) {
	s.all.mu.Lock()
	defer s.all.mu.Unlock()
	if len(s.orphans) == 0 {
		delete(s.all.of, s.slot)
		return nil, 0
	}
	wait = Most
	if closing {
		return slices.Clone(s.orphans), wait
	}
	now := time.Now()
	slices.SortStableFunc(s.orphans, func(a, b *Orphan) int { return a.next.Compare(b.next) }) // so that each has its turn
	for _, r := range s.orphans {
		next := r.next
		if r.refused && next.Before(s.again) {
			next = s.again
		}
		switch rest := next.Sub(now); {
		case rest > 0:
			wait = min(wait, rest)
		case len(due) < Batch:
			due = append(due, r)
		}
	}
	return due, wait
}

// try releases the fields, and drops those that need no further try.
func (s *sweeper) try(due []*Orphan, failed time.Duration, closing bool) (said outcome) {
	results := s.all.release(due)
	s.all.calls.Answered(s.slot, results[0].Err)
	now := time.Now()
	tried, done := make(map[*Orphan]bool), make(map[*Orphan]bool)
	for i, r := range due {
		tried[r] = true
		r.err = results[i].Err
		r.refused = r.err != nil && !calls.IsTransient(r.err)
		wait := failed
		switch {
		case r.err == nil:
			said = answered
			wait, r.pause = r.pause, 2*r.pause
			r.Place = time.Time{}
			done[r] = r.resolved(results[i].Status != lua.NotHeld)
		case r.refused:
			said = max(said, refused)
		}
		r.next = now.Add(wait)
	}
	var left []*Orphan
	s.all.mu.Lock()
	if said == refused && !now.Before(s.again) {
		s.again = now.Add(failed) // one try shows for all of them whether that is over: a right or memory may be given back
	}
	s.orphans = slices.DeleteFunc(s.orphans, func(r *Orphan) bool {
		if said == silent && !tried[r] { // it would not have been answered, either
			r.err = results[0].Err
		}
		last := tried[r] || said == silent || said == refused && r.refused
		over := closing && tried[r] || now.After(r.Until) && now.After(r.Place) && last
		if !done[r] && over && r.err != nil {
			left = append(left, r)
		}
		return done[r] || over
	})
	s.all.mu.Unlock()
	for _, r := range left {
		r.Left(r.err)
	}
	return said
}

// resolved records an answer, and reports whether the sweep is done: unanswered acquires may act until their time is over.
func (r *Orphan) resolved(held bool) bool {
	if !held && r.OutcomeUnknown { // it may have been handed off in the last moment
		r.Gone()
	}
	r.OutcomeUnknown = false
	return !r.Late
}
