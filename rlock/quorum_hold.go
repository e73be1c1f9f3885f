package rlock

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/engine"
	"github.com/go-rlock/rlock/lease"
	"github.com/go-rlock/rlock/lua"
	"github.com/go-rlock/rlock/pubsub"
)

// A hold of a quorum has a share on each server: a field of its own, which is asked for with the acquire script, kept by the
// renewer of that server's Client, and released or swept like that of any hold.
//
//	share    event                              next
//	asked    granted                            held: kept by the renewer from when the hold is live
//	         refused, failed                    missing
//	held     a renewal finds it gone, or its
//	         lease ends                         the same
//	missing  100 ms, 200 ms, … a third of the
//	         watchdog time later                asked, while the watchdog keeps the hold
//	any      the hold is over                   given back; a call that is under way does so when it is answered
//
//	hold     event                              next
//	voting   a majority of shares is held       live
//	         no majority can be had any more    over (election.vote)
//	live     a majority was not renewed in time,
//	         or has forgotten it meanwhile      over: lost; what is left is released by the last unlock
//	         a majority of Clients is closed    closed: told, and as it is until its unlock
//	         the last level is unlocked         over
//
// It is trusted until that moment at which a majority of shares is still trusted, less the drift. Each share counts from when the
// call for it, or its last renewal, was sent. One that was missing counts like the others when it is held again, for the
// future. For the past it does not: somebody else may have had that server meanwhile. So when a server is found to have
// forgotten its share, a majority of the others has to have theirs from before the last time that it was seen there.
// Otherwise two servers that forget one after the other could both be given it again, and nobody be told that another owner was
// in between.
//
// It has no goroutine of its own. Shares that are asked for have one each, which ends with the answer or the hold.

// quorumHold is what one owner has of one quorum, from a round of votes to the unlock of its last level.
type quorumHold struct {
	quorum *QuorumMutex // the handle that made it
	line   *localQueue
	tag    uint64 // the same on all servers, for those who read logs

	ctx      context.Context // of the calls for shares; ends with the hold
	cancel   context.CancelFunc
	decided  chan struct{}    // closed when it is live or over
	news     chan struct{}    // capacity 1: a share was answered
	released chan endOfShare  // what came of the shares when it is over; has room for all of them
	given    context.Context  // by the user, to the Lock that it is of; not changed after it is live
	counted  []*engine.Engine // count it among their holds; not changed after it is live
	ended    chan struct{}    // closed when it is lost, and the next goroutine may compete
	timer    *time.Timer      // calls look

	// mu guards the following, and the shares. No other lock is taken under it.
	mu     sync.Mutex
	shares []*share
	live   bool
	began  time.Time // to be live
	over   bool      // its round had no winner, or it is lost or unlocked
	rest   []*share  // for which no call was under way then; not changed after that
	closed bool      // a majority of Clients is
	loss   *LostError
	levels []*quorumLevel // the open ones
	watch  bool           // the watchdog has kept it, or does
	heal   time.Time      // when missing shares are asked for again
	pause  time.Duration  // before that
}

// has reports whether one of the shares has that owner field.
func (h *quorumHold) has(field string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.ContainsFunc(h.shares, func(s *share) bool { return s.tenure.Field() == field })
}

// share is what a quorum's hold has on one server. No hold stands on its tenure: that is for locks of one server.
type share struct {
	of     *quorumHold
	tenure *engine.Tenure // for its field, its lease and what is unresolved; a new one for each lease

	asked   bool      // a call is under way
	held    bool      // by all that is known
	since   time.Time // when that was known first; it had no break since then, as far as is known
	left    bool      // a call for it outlives the Client, and gives it back
	missed  bool      // found missing after the hold went live
	until   time.Time // trusted from the grant on; the renewer knows what was added
	err     error     // what the last call failed with
	refusal lua.AcquireReply
	at      time.Time // of the last answer
}

// endOfShare is what came of the release of a share.
type endOfShare struct {
	share *share
	engine.ReleaseResult
}

// majorityTieWindow is how much later than the majority the share of another server may be answered and still count as if it had been one of
// the majority.
const majorityTieWindow = 50 * time.Millisecond

const (
	// firstHeal is after which time a missing share is asked for again. It doubles.
	firstHeal = 100 * time.Millisecond
	// refusedHeal is the longest of these times if another owner had it.
	refusedHeal = 4 * firstHeal
)

// drift is for how long a hold is not trusted at the end of its lease, since the clocks of the process and of the servers may
// run at different rates: the allowance of Redlock's reference implementation, which also covers Redis rounding to milliseconds.
// See https://redis.io/docs/latest/develop/use/patterns/distributed-locks/.
func drift(lease time.Duration) time.Duration { return lease/100 + 2*time.Millisecond }

// newQuorumHold begins a round: all servers are asked.
func newQuorumHold(q *QuorumMutex, line *localQueue) *quorumHold {
	h := &quorumHold{
		quorum: q, line: line, pause: firstHeal,
		decided: make(chan struct{}), news: make(chan struct{}, 1), ended: make(chan struct{}),
		released: make(chan endOfShare, len(q.members)),
		watch:    q.members[0].Lease == 0,
	}
	h.ctx, h.cancel = context.WithCancel(context.Background()) // calls under way do not end with their caller
	h.tag = engine.LastTag.Add(1)
	for _, m := range q.members {
		h.shares = append(h.shares, &share{of: h, tenure: &engine.Tenure{Spec: m, Tag: h.tag}, asked: true})
	}
	for _, s := range h.shares {
		s.ask()
	}
	return h
}

// ask asks the server for the share, or for a missing one again: acquire takes it, or finds it there. The share is marked as asked.
func (s *share) ask() {
	c := s.tenure.Spec.Engine
	if !c.Calls.Start() {
		s.answered(engine.AcquireResult{}, false, ErrClosed)
		return
	}
	go func() { // ends with the answer and the end of the round, or with the hold; Close waits for it
		defer c.Calls.Ended()
		h := s.of
		a, left, err := s.call()
		if !s.answered(a, left, err) {
			return
		}
		<-h.decided // here, so that Close also waits for what has to be given back
		h.mu.Lock()
		live := h.live
		h.mu.Unlock()
		if !live {
			s.rollBack(a, nil)
		}
	}()
}

// call sends the request once. If the hold ends first, or the Client is closed, left is true and rollBack gets the answer.
func (s *share) call() (a engine.AcquireResult, left bool, err error) {
	m, ctx := s.tenure.Spec, s.of.ctx
	if c := m.Engine; c.Cluster.IsUnknown() {
		if known, err := c.Cluster.Learn(ctx, time.Time{}, m); !known {
			return a, false, err
		}
	}
	once := engine.Caller{Ctx: ctx, Limit: time.Now()} // no repeats after that
	q := &engine.AcquireRequest{Caller: once, Spec: m, Tenure: s.tenure, Count: 1}
	return engine.Leavable(ctx, m, time.Time{}, q.Send, s.rollBack)
}

// rollBack ends a share that the hold has no use for, when its call was answered. That is once, if at all.
func (s *share) rollBack(a engine.AcquireResult, err error) {
	h, m := s.of, s.tenure.Spec
	h.mu.Lock()
	r := engine.ReleaseResult{Held: a.Granted() && !s.missed, Err: err}
	h.mu.Unlock()
	switch {
	case !a.Granted():
		s.tenure.SweepIfUnresolved()
	case !s.tenure.GiveBack():
		r.Err = calls.ErrNoAnswer
	}
	select {
	case h.released <- endOfShare{s, r}:
	default: // nobody unlocks
	}
	m.Engine.Hub.Wake(h.quorum.waiters(m)) // a waiter of this process may have been refused because of it
}

// answered works an answer in. It reports true if a share was granted, and the round is not decided yet.
func (s *share) answered(a engine.AcquireResult, left bool, err error) (undecided bool) {
	h, m := s.of, s.tenure.Spec
	granted := err == nil && !left && a.Granted()
	if granted && a.Unconfirmed != nil {
		s.tenure.GiveBack()
		a, granted, err = engine.AcquireResult{}, false, fmt.Errorf("%w: %w", ErrNotReplicated, a.Unconfirmed)
	} else if err == nil && !granted && a.Status == 0 {
		err = calls.ErrNoAnswer
	}
	h.mu.Lock()
	s.asked, s.left, s.err, s.at = false, left, err, time.Now()
	s.refusal = lua.AcquireReply{}
	over, live := h.over, h.live
	switch {
	case over:
	case granted:
		s.held, s.since, s.until = true, s.at, a.Sent.Add(m.TTL())
		if live && a.Sent.Before(h.began) && s.at.Sub(h.began) < majorityTieWindow {
			s.since = h.began
		}
	case err == nil:
		s.refusal = a.AcquireReply
		// The server is there: whoever competes has the share for a moment, and must not be met by every try.
		h.pause = min(h.pause, refusedHeal)
	}
	h.mu.Unlock()
	switch {
	case over && !left:
		s.rollBack(a, err)
	case live && granted:
		s.keep()
		h.look()
	case live:
		h.look()
	default:
		select {
		case h.news <- struct{}{}:
		default:
		}
	}
	return granted && !over && !live
}

// keep has the renewer keep a share of a live hold.
func (s *share) keep() {
	h, held := s.of, s.tenure
	leases := held.Spec.Engine.Leases
	h.mu.Lock()
	watch := h.watched()
	h.mu.Unlock()
	leases.Keep(&held.Lease, shareKeeper{s, held}, s.until, watch)
	h.mu.Lock()
	over := h.over
	h.mu.Unlock()
	if over { // since then, and it was stopped before it was kept
		leases.Stop(&held.Lease)
	}
}

// shareKeeper is a share as the renewer sees it.
type shareKeeper struct {
	*share
	held *engine.Tenure
}

func (k shareKeeper) Item() lease.Item { return engine.Keeper{Tenure: k.held}.Item() }
func (k shareKeeper) Group() any       { return engine.Keeper{Tenure: k.held}.Group() }

func (k shareKeeper) About() (name, kind string) { return k.held.Spec.Name, "quorum" }

// Lost is called when the server has forgotten the share, or its lease has ended. It is asked for again.
func (k shareKeeper) Lost(loss lease.Loss) {
	s, h := k.share, k.of
	m := k.held.Spec
	until := m.Engine.Leases.Until(&k.held.Lease)
	h.mu.Lock()
	if h.over {
		h.mu.Unlock()
		return
	}
	s.held, s.missed = false, true
	s.tenure = &engine.Tenure{Spec: m, Tag: h.tag, Unresolved: k.held.Unresolved}
	if !loss.Gone { // a renewal without an answer may have kept it
		s.tenure.UnresolvedUntil(time.Now().Add(h.lease(s))).OutcomeUnknown = true
		h.mu.Unlock()
		h.look()
		return
	}
	seen := s.seen(until)
	if h.began.After(seen) {
		seen = h.began
	}
	others := 0 // that have had their share since before this one was gone
	for _, o := range h.shares {
		if o.held && !o.since.After(seen) {
			others++
		}
	}
	h.heal = time.Now()
	h.mu.Unlock()
	if others < h.quorum.majority() {
		h.lose(&LostError{Reason: LostGone, Since: time.Now(), text: fmt.Sprintf(
			"lost: only %d of %d servers had it all the time; the others lost their data, or it was forced open", others, len(h.shares))})
	}
	h.look()
}

// seen is when the last call was sent that found the share there. renewed is what the renewer says. mu is held, or the hold is over.
func (s *share) seen(renewed time.Time) time.Time {
	m := s.tenure.Spec
	if renewed.After(s.until) {
		return renewed.Add(-m.Engine.Options.WatchdogTimeout)
	}
	return s.until.Add(-m.TTL())
}

// Closed is called when the Client is closed. The share stays in Redis, and counts until its lease ends.
func (k shareKeeper) Closed() {
	if k.of.quorum.isClosed() {
		k.of.close()
	}
}

// lease is for how long a share was asked for last. mu is held.
func (h *quorumHold) lease(s *share) time.Duration {
	m := s.tenure.Spec
	if h.watch {
		return max(m.TTL(), m.Engine.Options.WatchdogTimeout)
	}
	return m.TTL()
}

// watched reports whether the watchdog keeps the hold: if any open level has no lease of its own. mu is held.
func (h *quorumHold) watched() bool {
	return slices.ContainsFunc(h.levels, func(l *quorumLevel) bool { return l.quorum.members[0].Lease == 0 })
}

// trusted is until when a majority of the servers has the hold; zero if that is over.
func (h *quorumHold) trusted() time.Time {
	type term struct {
		tenure *engine.Tenure
		until  time.Time
		lease  time.Duration
	}
	var terms []term
	h.mu.Lock()
	for _, s := range h.shares {
		if s.held {
			terms = append(terms, term{s.tenure, s.until, h.lease(s)})
		}
	}
	h.mu.Unlock()
	if len(terms) < h.quorum.majority() {
		return time.Time{}
	}
	ends := make([]time.Time, len(terms))
	for i, t := range terms {
		ends[i] = t.until
		if renewed := t.tenure.Spec.Engine.Leases.Until(&t.tenure.Lease); renewed.After(t.until) {
			ends[i] = renewed
		}
		ends[i] = ends[i].Add(-drift(t.lease))
	}
	slices.SortFunc(ends, func(a, b time.Time) int { return b.Compare(a) })
	return ends[h.quorum.majority()-1]
}

// open makes a round that got the majority a live hold. It fails if the majority was had for too short a time.
func (h *quorumHold) open(who engine.Caller, q *QuorumMutex) (*quorumLevel, error) {
	until := h.trusted()
	if !time.Now().Before(until) {
		e := h.explain(&LostError{Reason: LostExpired, Since: until, text: "lost: the servers took longer than the lease to answer"})
		h.rollBack()
		return nil, e
	}
	for _, m := range q.members {
		if m.Engine.HoldBegins(false) {
			h.counted = append(h.counted, m.Engine)
		}
	}
	if len(h.counted) < q.majority() {
		h.uncount()
		h.rollBack()
		return nil, ErrClosed
	}
	outer := engine.InnermostOpen(who.Ctx)
	h.mu.Lock()
	h.live, h.began, h.given = true, time.Now(), who.Outer
	h.line.holder.Store(h)
	h.heal = time.Now().Add(firstHeal)
	h.timer = time.AfterFunc(time.Until(until), h.look)
	l := h.enter(who.Ctx, q, outer)
	var held []*share
	for _, s := range h.shares {
		if s.held {
			held = append(held, s)
		}
	}
	h.mu.Unlock()
	close(h.decided)
	for _, s := range held {
		s.keep()
	}
	h.look()
	return l, nil
}

// uncount is the end of the hold for the Clients.
func (h *quorumHold) uncount() {
	for _, c := range h.counted {
		c.HoldEnds()
	}
}

// enter makes a level. mu is held.
func (h *quorumHold) enter(ctx context.Context, q *QuorumMutex, outer engine.Section) *quorumLevel {
	inner, cancel := context.WithCancelCause(ctx)
	l := &quorumLevel{Context: inner, quorum: q, hold: h, outer: outer, cancel: cancel}
	h.levels = append(h.levels, l)
	h.watch = h.watch || h.watched()
	return l
}

// reenter adds a level. That asks nobody: the hold is trusted, or it is lost.
func (h *quorumHold) reenter(ctx context.Context, q *QuorumMutex) (*quorumLevel, error) {
	h.look()
	outer := engine.InnermostOpen(ctx)
	h.mu.Lock()
	defer func() {
		h.mu.Unlock()
		h.look() // for the watchdog, if the level has no lease
	}()
	switch {
	case h.loss != nil:
		return nil, h.loss
	case h.over || len(h.levels) == 0:
		return nil, engine.ErrOver
	case h.closed:
		return nil, q.fail(ErrClosed)
	case ctx.Err() != nil:
		return nil, notAcquired(ctx, q.name, time.Now())
	}
	return h.enter(ctx, q, outer), nil
}

// look ends a live hold whose time is over, and asks for missing shares when it is time for that. Otherwise it has the timer call
// it again.
func (h *quorumHold) look() {
	h.mu.Lock()
	live := h.live && !h.over && !h.closed
	h.mu.Unlock()
	if !live {
		return
	}
	until, now := h.trusted(), time.Now()
	switch {
	case h.quorum.isClosed():
		h.close()
		return
	case !now.Before(until):
		h.lose(h.expired(until))
		return
	}
	var held []*engine.Tenure
	var ask []*share
	h.mu.Lock()
	if h.over {
		h.mu.Unlock()
		return
	}
	watch, next := h.watched(), until
	for _, s := range h.shares {
		switch {
		case s.held:
			held = append(held, s.tenure)
		case watch && !s.asked && !s.left && !s.tenure.Spec.Engine.Calls.IsClosed():
			ask = append(ask, s)
		}
	}
	switch {
	case len(ask) == 0:
		h.pause = firstHeal
	case now.Before(h.heal):
		next, ask = h.heal, nil
	default:
		for _, s := range ask {
			s.asked = true
		}
		h.heal = now.Add(h.pause)
		h.pause = min(2*h.pause, h.quorum.members[0].Engine.Options.WatchdogTimeout/3)
	}
	h.timer.Reset(calls.Earlier(next, until).Sub(now))
	h.mu.Unlock()
	for _, held := range held {
		held.Spec.Engine.Leases.Update(&held.Lease, time.Time{}, watch)
	}
	for _, s := range ask {
		s.ask()
	}
}

// expired is the loss of a hold that was trusted until then.
func (h *quorumHold) expired(until time.Time) *LostError {
	e := &LostError{Reason: LostExpired, Since: until, text: "lost: its lease of fixed length ended"}
	if until.IsZero() {
		e.Since = time.Now()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.watched() {
		e.text = fmt.Sprintf("lost: fewer than %d of %d servers renewed it in time", h.quorum.majority(), len(h.shares))
	}
	return e
}

// lose ends a live hold before its unlock: everybody inside is told.
func (h *quorumHold) lose(e *LostError) {
	h.mu.Lock()
	if h.over || !h.live {
		h.mu.Unlock()
		return
	}
	h.loss = h.explain(e)
	h.markOver()
	h.tell(h.loss)
	ctx := h.ctx
	if len(h.levels) > 0 {
		ctx = h.levels[0]
	}
	h.mu.Unlock()
	h.stop()
	h.line.pass()
	close(h.ended)
	h.quorum.members[0].Engine.Lost(ctx, "quorum", e) // last: no unlock waits for what a Trace does
}

// close tells everybody inside that a majority of Clients is closed. That is no loss: the hold stays in Redis, for its unlock.
func (h *quorumHold) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.over && !h.closed {
		h.closed = true
		h.tell(h.explain(&LostError{Reason: LostClosed, Since: time.Now(), text: "client closed"}))
	}
}

func (h *quorumHold) explain(e *LostError) *LostError {
	e.Name, e.Owner = h.quorum.name, h.field()
	return e
}

// field is the owner as the first of the servers has it. On the others only the Client's part differs.
func (h *quorumHold) field() string {
	return (&engine.Tenure{Spec: h.quorum.members[0], Tag: h.tag}).Field()
}

// tell ends the contexts of all open levels. mu is held, see hold.cancel.
func (h *quorumHold) tell(why error) {
	for _, l := range h.levels {
		l.cancel(why)
	}
}

// rollBack ends a round that did not get the majority: its shares are given back, also those that come late.
func (h *quorumHold) rollBack() {
	h.mu.Lock()
	h.markOver()
	h.mu.Unlock()
	h.stop()
	for _, s := range h.rest {
		if !s.held { // or its goroutine gives it back
			s.tenure.SweepIfUnresolved()
		}
	}
	close(h.decided)
}

// stop ends what a hold that is over does: renewals, calls for shares and the watch over its time.
func (h *quorumHold) stop() {
	h.cancel()
	if h.timer != nil {
		h.timer.Stop()
	}
	for _, s := range h.rest {
		s.tenure.Spec.Engine.Leases.Stop(&s.tenure.Lease)
	}
}

// markOver marks a hold as over. Shares for which a call is under way then markOver with that call, the others are for whoever ended it.
// mu is held.
func (h *quorumHold) markOver() {
	h.over = true
	for _, s := range h.shares {
		if !s.asked && !s.left {
			h.rest = append(h.rest, s)
		}
	}
}

// waiters is where a goroutine of this process waits for the server of m.
func (q *QuorumMutex) waiters(m *engine.Spec) pubsub.Queue {
	return pubsub.Queue{Lock: q.key, Channel: m.Engine.KnownChannel(m)}
}
