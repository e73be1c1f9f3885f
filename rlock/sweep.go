package rlock

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/lua"
)

// Nothing may be left behind by a call that failed (G5), though a command that was sent cannot be
// called back. What a command without a reply may have done is found out and rolled back here:
//
//   - Its reply comes late: whoever waits for it gives the hold back (locking.rollBack).
//   - Its reply is lost: the owner field is swept, that is released again and again, until what was looked for was
//     found, or until the lease that the command could have started has ended.
//
// A field is used for one hold only (I3), so nobody else can be hurt by that, however late it comes.

// unresolved is what is not known of a field in Redis.
type unresolved struct {
	// attempts counts the first acquires without an answer. Each of them may still act, alone, until the time until.
	attempts int
	until    time.Time
	// outcomeUnknown says that there may be a hold now, after an unlock or a hand-off without an answer: any answer ends that.
	outcomeUnknown bool
}

// maxSweep bounds the search for a hold that a lost acquire may have started: how long a network may
// hold a request back and still deliver it.
const maxSweep = time.Minute

// unresolvedUntil returns what is unresolved of the tenure, which is so until then at least.
func (t *tenure) unresolvedUntil(until time.Time) *unresolved {
	if t.unresolved == nil {
		t.unresolved = new(unresolved)
	}
	if until.After(t.unresolved.until) {
		t.unresolved.until = until
	}
	return t.unresolved
}

// lateAcquire notes that a first acquire that lasts for ttl was sent, and not answered.
func (t *tenure) lateAcquire(ttl time.Duration) {
	t.unresolvedUntil(time.Now().Add(min(ttl, maxSweep))).attempts++
}

// sweepIfUnresolved sweeps the field of a hold that has ended, or did not come to be, if something of it is unresolved. A release also takes it out
// of the queue in Redis.
func (t *tenure) sweepIfUnresolved() {
	if r := t.orphan(); r != nil {
		t.spec.engine.sweep(r)
	}
}

// sweepInCall is sweepIfUnresolved within a call that the Client counts, and that does not wait for the sweep, not even while the Client closes:
// Close does.
func (t *tenure) sweepInCall() {
	if r := t.orphan(); r != nil {
		c := t.spec.engine
		c.sweepers.add(c, []*orphan{r})
	}
}

// forget ends a tenure that was lost on its way from one hold to the next. It may still be there in Redis, say because the reply of a renewal
// was lost.
func (t *tenure) forget() {
	m := t.spec
	t.unresolvedUntil(time.Now().Add(longer(m.ttl(), m.grace))).outcomeUnknown = true
	t.sweepInCall()
}

// isClean reports whether all is known of the field, or nobody has asked for it.
func (t *tenure) isClean() bool { return t == nil || t.unresolved == nil && t.queued == nil }

// orphan is what of the field is to be swept, nil if there is nothing, or nobody has asked.
func (t *tenure) orphan() *orphan {
	if t == nil {
		return nil
	}
	var d unresolved
	if t.unresolved != nil {
		d = *t.unresolved
	}
	if d.attempts <= 0 && !d.outcomeUnknown && t.queued == nil {
		return nil
	}
	r := &orphan{unresolved: d, spec: t.spec, args: t.releaseArgs()}
	if t.queued != nil {
		r.place = time.Now().Add(maxSweep)
	}
	return r
}

// sweep sweeps those that are not nil: of one lock, or of locks that one call can take. After Close there is one more try, here.
func (c *engine) sweep(all ...*orphan) {
	all = slices.DeleteFunc(all, func(r *orphan) bool { return r == nil })
	switch {
	case len(all) == 0:
	case c.calls.Start():
		c.sweepers.add(c, all)
		c.calls.Ended()
	default:
		for i, result := range c.releaseAll(all) {
			if result.Err != nil {
				all[i].isLeft(result.Err)
			}
		}
	}
}

// giveBack releases a hold that was granted to nobody. It reports whether Redis has answered.
func (t *tenure) giveBack() (answered bool) {
	_, err := t.spec.engine.releaseOnce(t.spec, t.releaseArgs())
	t.givenBack(err)
	t.sweepIfUnresolved()
	return err == nil
}

// givenBack notes what the release of a hold that was granted to nobody came to.
func (t *tenure) givenBack(err error) {
	if err != nil {
		m := t.spec
		t.unresolvedUntil(time.Now().Add(m.expiry(m.ttl()))).outcomeUnknown = true
	} else {
		t.queued = nil
		if t.unresolved != nil {
			t.unresolved.outcomeUnknown = false
		}
	}
}

// lastCallTimeout is what a release is given while Close waits for it.
const lastCallTimeout = time.Second

// releaseOnce sends a release that is to arrive even if the client is closing.
func (c *engine) releaseOnce(m *spec, args lua.ReleaseArgs) (held bool, err error) {
	ctx, cancel := c.lastCall()
	defer cancel()
	reply, err := c.release(ctx, m, args)
	return reply.Status != lua.NotHeld, err
}

func (c *engine) release(ctx context.Context, m *spec, args lua.ReleaseArgs) (lua.ReleaseReply, error) {
	reply, err := lua.Release(ctx, c.rdb, args)
	c.calls.Answered(m.slot, err)
	if reply.NoQueue && err == nil {
		c.forbidden(args.Side).Store(true)
	}
	return reply, err
}

func (c *engine) lastCall() (context.Context, context.CancelFunc) {
	timeout := calls.Timeout
	if c.calls.IsClosed() { // Close waits
		timeout = lastCallTimeout
	}
	return context.WithTimeout(context.Background(), timeout)
}

// orphan is a field that is being swept.
type orphan struct {
	unresolved
	place time.Time // until when an answer is looked for, which takes it out of the queue in Redis
	spec  *spec
	args  lua.ReleaseArgs
	err   error         // of the last try
	next  time.Time     // when to try again
	pause time.Duration // after the last try that was answered
}

// sweepers are those of a Client, one for each slot of a cluster in which there is something to sweep: one node may be silent, and
// the others well. Package calls bounds how many orphans come together when Redis is silent.
type sweepers struct {
	mu sync.Mutex // guards the following, and the orphans of all
	of map[uint16]*sweeper
}

// sweeper sweeps the fields of one slot on a goroutine, which lives while there are any.
type sweeper struct {
	engine  *engine
	slot    uint16
	orphans []*orphan
	more    chan struct{} // capacity 1: orphans has grown
}

const (
	sweepBatch = 100
	firstPause = 500 * time.Millisecond // doubles, so a hold that began late is found as late as that at the most
)

// add has the sweeper of their slot look for all of them, at once and then again and again. The client has been started.
func (all *sweepers) add(c *engine, more []*orphan) {
	slot := more[0].spec.slot
	for _, r := range more {
		r.pause = firstPause
	}
	all.mu.Lock()
	defer all.mu.Unlock()
	s := all.of[slot]
	if s == nil {
		s = &sweeper{engine: c, slot: slot, more: make(chan struct{}, 1)}
		if all.of == nil {
			all.of = make(map[uint16]*sweeper)
		}
		all.of[slot] = s
		c.calls.Go(s.run) // ends when nothing is left to be found, or with one last try when the client closes; Close waits for it
	}
	s.orphans = append(s.orphans, more...)
	select {
	case s.more <- struct{}{}:
	default:
	}
}

func (s *sweeper) run() {
	c := s.engine
	failed := calls.MinPause // the pause after the next try that is not answered
	for {
		closing := c.calls.IsClosed()
		due, wait := s.due(closing)
		more := s.more
		switch {
		case wait == 0:
			return
		case len(due) == 0:
		case s.try(due, failed, closing):
			failed = calls.MinPause
			continue
		default: // the others would not be answered either: each try may be a new connection
			wait, more, failed = failed, nil, min(2*failed, 4*calls.MaxPause)
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-more:
		case <-c.calls.Done():
		}
		timer.Stop()
	}
}

// due returns the orphans to be tried now, and how long to wait if there are none; 0 if none are left, and the sweeper ends. When
// the client is closing, each is tried once more.
func (s *sweeper) due(closing bool) (due []*orphan, wait time.Duration) {
	all := &s.engine.sweepers
	all.mu.Lock()
	defer all.mu.Unlock()
	if len(s.orphans) == 0 {
		delete(all.of, s.slot)
		return nil, 0
	}
	wait = maxSweep
	if closing {
		return slices.Clone(s.orphans), wait
	}
	now := time.Now()
	slices.SortStableFunc(s.orphans, func(a, b *orphan) int { return a.next.Compare(b.next) }) // so that each has its turn
	for _, r := range s.orphans {
		switch rest := r.next.Sub(now); {
		case rest > 0:
			wait = min(wait, rest)
		case len(due) < sweepBatch:
			due = append(due, r)
		}
	}
	return due, wait
}

func (c *engine) releaseAll(all []*orphan) []lua.ReleaseResult {
	args := make([]lua.ReleaseArgs, len(all))
	for i, r := range all {
		args[i] = r.args
	}
	ctx, cancel := c.lastCall()
	defer cancel()
	return lua.ReleaseAll(ctx, c.rdb, args)
}

// try releases the fields, and drops those that need no further try. It reports whether Redis answered.
func (s *sweeper) try(due []*orphan, failed time.Duration, closing bool) (answered bool) {
	results := s.engine.releaseAll(due)
	s.engine.calls.Answered(s.slot, results[0].Err)
	now := time.Now()
	tried, done := make(map[*orphan]bool), make(map[*orphan]bool)
	for i, r := range due {
		tried[r] = true
		r.err = results[i].Err
		wait := failed
		if r.err == nil {
			answered = true
			wait, r.pause = r.pause, 2*r.pause
			r.place = time.Time{}
			if r.found(results[i].Status != lua.NotHeld) {
				done[r] = true
			}
		}
		r.next = now.Add(wait)
	}
	var left []*orphan
	all := &s.engine.sweepers
	all.mu.Lock()
	s.orphans = slices.DeleteFunc(s.orphans, func(r *orphan) bool {
		if !answered && !tried[r] { // it would not have been answered, either
			r.err = results[0].Err
		}
		// Also after an error that does not pass by itself: a right or memory may be given back.
		over := closing && tried[r] || now.After(r.until) && now.After(r.place) && (!answered || tried[r])
		if !done[r] && over && r.err != nil {
			left = append(left, r)
		}
		return done[r] || over
	})
	all.mu.Unlock()
	for _, r := range left {
		r.isLeft(r.err)
	}
	return answered
}

// isLeft warns of a field that could not be released.
func (r *orphan) isLeft(err error) {
	r.spec.engine.warn("rlock: a field may be left in Redis after a call without an answer; it ends with its lease",
		"name", r.spec.name, "owner", r.args.Owner, "err", err)
}

// found records an answer and reports whether the sweep is done. After an unlock or a hand-off without a reply, the first hold found is
// that hold, not a late acquire.
func (r *orphan) found(held bool) bool {
	switch {
	case held && !r.outcomeUnknown:
		r.attempts--
	case !held && r.outcomeUnknown: // it may have been handed off in the last moment
		r.spec.engine.hub.Wake(r.spec.waiters())
	}
	r.outcomeUnknown = false
	return r.attempts <= 0
}
