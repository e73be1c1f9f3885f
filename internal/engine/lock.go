package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/lua"
	"github.com/go-rlock/rlock/pubsub"
)

// A Lock under a ctx that carries no hold of the lock competes: it queues in its process, asks Redis when it has the turn, and
// waits in the queue again if the lock is held.
//
//	state     event                                    next
//	waiting   turn: nobody before it, a message,
//	          a timer, a new connection                asking
//	          claimed: an unlock here hands off        entered; or waiting or asking, if that came to nothing
//	          ctx, time over, Close                    out; if claimed, the claimant finishes for it
//	asking    granted                                  entered
//	          held by another                          waiting; TryLock(0): out
//	          refused, or unanswered for too long      out
//	          ctx, limit, Close                        out; the request is rolled back when it is answered
//	entered   the lease lasts                          a live hold
//	          answered after the lease, too few
//	          replicas, Close                          out; given back
//
// Each way out leaves the queue, passes the turn on if it had it, and sweeps what is unresolved.
//
// A Lock for a share asks without the turn if nobody waits, or if the one before it got a share. One under the hold of the other
// side of a read/write lock does not compete, see enterWithin.

// locking is a Lock that competes, on its way to a hold.
type locking struct {
	AcquireRequest // its tenure is nil until it asks, or somebody asks for it
	waiter         pubsub.Waiter
	refused        *lua.AcquireReply // the last one that said who holds the lock; nil: none, as for most that wait in line
	place          *placeKeeper      // of its own in the queue in Redis; nil: none that is known of
	leads          bool              // others may share its tenure
	delivered      AcquireResult     // what a claimant made of it, in its place
}

var errReads = errors.New("the ctx carries a read hold (unlock that first; only a reader of Upgradeable can become the writer, by its Upgrade)")

// Lock re-enters the hold of the lock that the caller's ctx carries, or competes.
func (m *Spec) Lock(who Caller) (*Level, error) {
	if m.Invalid != nil {
		return nil, m.Invalid
	}
	c := m.Engine
	if !c.Calls.Start() {
		return nil, m.closed()
	}
	defer c.Calls.Ended()
	if err := m.Fits(); err != nil {
		return nil, m.Fail(err)
	}
	for {
		enter, outer := m.reenter, m.LevelIn(who.Ctx)
		if outer == nil {
			enter, outer = m.enterWithin, m.levelBeside(who.Ctx)
		}
		if outer == nil {
			return m.compete(who, nil)
		}
		l, err := enter(who, outer.hold)
		if err == ErrOver { //nolint:errorlint // never wrapped
			continue
		}
		if loss := outer.hold.lossSoFar(); err != nil && loss != nil { // which ended ctx, and with it the Lock
			return nil, loss
		}
		return l, err
	}
}

// compete takes the lock for a new owner. If within is not nil, it is the hold of a reader that becomes the writer.
func (m *Spec) compete(who Caller, within *hold) (*Level, error) {
	switch {
	case within == nil && m.Engine.IsShut():
		return nil, m.closed()
	case who.Ctx.Err() != nil:
		return nil, m.gaveUp(who, nil, lua.AcquireReply{})
	}
	l := &locking{AcquireRequest: AcquireRequest{Caller: who, Spec: m, Count: 1, within: within}}
	return l.compete()
}

// compete waits for the turn and asks. Only the first waiter of the process asks Redis, besides those that may have a share.
func (l *locking) compete() (*Level, error) {
	m, c := l.Spec, l.Spec.Engine
	if c.Cluster.IsUnknown() {
		if known, err := c.Cluster.Learn(l.Ctx, l.Limit, m); !known {
			return nil, l.failure(err)
		}
	}
	turn := false
	for {
		if !l.queued {
			if s, err := l.share(); err != ErrOver { //nolint:errorlint // never wrapped
				return s, err
			}
			if turn = l.join(); !turn && l.Once {
				return nil, l.failure(nil)
			}
		}
		if !turn {
			granted, gone, err := l.awaitTurn()
			expired := errors.Is(err, pubsub.ErrExpired)
			if gone && !l.withdrawInTime(expired, (*Tenure).sweepInCall) {
				if expired {
					l.waitOut()
				}
				return nil, l.failure(err)
			}
			if granted || gone { // also if it wanted to leave, but was too late
				l.queued = false
				g := l.waiter.Given()
				if g == nil {
					run := l.Tenure.run
					s, err := l.enter(l.delivered)
					switch {
					case err == ErrOver: //nolint:errorlint // never wrapped
						continue // it was lost on its way
					case err != nil:
					case l.delivered.how == letIn:
						l.isShared()
					default:
						if l.Trace != nil {
							l.Trace.HandedBy(run.section())
						}
						c.stats.handOffs.Add(1)
					}
					return s, err
				}
				if a, usable := l.given(g); usable {
					s, err := l.enter(a)
					if err == nil {
						l.Took(PathGrant)
						c.stats.grants.Add(1)
					}
					return s, err
				}
			}
		}
		turn = false
		l.needsTenure()
		l.enqueue = l.queued && l.enqueues()
		a, left, err := l.ask(l)
		switch {
		case left:
			return nil, l.failure(err)
		case err != nil:
			if calls.MayPass(err) && l.queued { // it did not, for longer than anybody here should wait for their turn
				l.waiter.Unanswered(err)
			}
			l.withdraw()
			return nil, l.failure(err)
		case a.Granted() && l.waiter.Joint: // others are let in with it, so first it is in itself
			s, err := l.enter(a)
			switch {
			case !l.queued:
			case err == nil:
				l.waiter.Done(m.expiry(m.TTL()))
			default:
				l.waiter.Leave()
			}
			return s, err
		case a.Granted():
			if l.queued {
				l.waiter.Done(m.expiry(m.TTL()))
			} else {
				l.Tenure.queued = nil // the grant has taken it out
			}
			return l.enter(a)
		case a.Status == lua.Lost:
			l.withdraw()
			return nil, l.readerGone()
		}
		refusal := a.AcquireReply
		l.refused = &refusal
		l.suspect()
		if l.Once {
			l.withdraw()
			return nil, l.failure(nil)
		}
		switch {
		case l.queued && m.Kind.Queueing == kinds.PerWaiter && !l.keepsPlace(a):
			l.leavePlace()
			l.Tenure.SweepIfUnresolved()
			l.Tenure, turn = nil, true
		case l.queued:
			l.waiter.Held(a.TTL, a.Joined)
		default: // a grant that was over: nobody here has the lock
			l.withdraw()
			l.Tenure = nil
		}
	}
}

// needsTenure is for whoever is about to ask Redis for the Lock.
func (l *locking) needsTenure() {
	if l.Tenure == nil {
		l.Tenure = newTenure(l.Spec)
	}
}

// readerGone is the error of an upgrade that finds that Redis does not have the reader any more. Its unlock may be under way, and
// have released it; otherwise it was lost.
func (l *locking) readerGone() error {
	err := l.Spec.takeCalls(l.Caller, l.within)
	switch {
	case err == ErrOver: //nolint:errorlint // never wrapped
		return l.Spec.Fail(l.Spec.Engine.errs.Upgrade, errors.New("the reader was unlocked meanwhile"))
	case err != nil:
		return err
	}
	defer l.within.tenure.releaseCallSlot()
	l.within.tenure.gone()
	return l.within.lossSoFar()
}

// suspect warns of a Lock that may wait for its own caller, who has not passed on the ctx of the section.
func (l *locking) suspect() {
	c, waited, holder := l.Spec.Engine, time.Since(l.Began), l.refusal().Holder
	if !l.warned && waited >= c.Options.WatchdogTimeout && c.isSelf(l.Outer, holder) {
		l.warned = true
		c.Options.Tell.Warn("rlock: a Lock waits for a hold of this client that was taken under the same ctx; "+
			"does its caller have the lock, and did not pass on the section's ctx?",
			"name", l.Spec.Name, "owner", holder, "waited", waited)
	}
}

// join puts the Lock in the queue of the process.
func (l *locking) join() (turn bool) {
	m := l.Spec
	l.waiter = pubsub.Waiter{Value: l, Until: l.leaves(), Shared: m.Kind.Side == lua.Reader, Ahead: l.within != nil}
	if l.Once {
		l.queued = m.Engine.Hub.JoinFirst(&l.waiter, m.waiters())
		return l.queued
	}
	l.queued = true
	l.waiter.Joint = l.mayShare() && !l.Limit.After(l.Wait) // or it asks itself, since it has no time to wait for another's answer
	return m.Engine.Hub.Join(&l.waiter, m.waiters())
}

// enqueues reports whether the next request leaves something in Redis if the lock is held, or heeds what others have left: not if nobody would
// hear of a grant.
func (l *locking) enqueues() bool {
	switch l.Spec.Kind.Queueing {
	case kinds.PerProcess:
		return l.joinsProcesses()
	case kinds.PerWaiter:
		return l.joinsWaiters()
	case kinds.LeavesMark:
		return l.leavesMark()
	case kinds.HeedsMarks: // those that come together enter together
		return l.Spec.queueKey() != "" && !l.waiter.Follows()
	}
	return false
}

// joinsProcesses is for the queue of the processes.
func (l *locking) joinsProcesses() bool {
	return !l.Once && l.Spec.queueKey() != "" && (l.Tenure.queued != nil || l.waiter.Listens()) && l.takePlace(time.Now())
}

// Inherit has the Lock go on as the owner that another one of its process had a place as: that one gives up, and its process does not lose its
// turn. So each has the other's tenure, with what is to be settled of it. This one sleeps, and looks at its tenure only behind the hub's mutex.
func (l *locking) Inherit(from any) bool {
	other := from.(*locking) //nolint:errcheck // no other value is ever set
	if l.Spec.Kind != other.Spec.Kind || l.Spec.isShort() != other.Spec.isShort() || other.Tenure.Unresolved != nil {
		return false
	}
	if l.Tenure, other.Tenure = other.Tenure, l.Tenure; other.Tenure != nil {
		other.Tenure.Spec = other.Spec
	}
	l.Tenure.Spec = l.Spec
	return true
}

// joinsWaiters is for the queue of all waiters, which an owner joins once.
func (l *locking) joinsWaiters() bool {
	return !l.Once && l.Tenure.queued == nil && l.waiter.Listens() && l.takePlace(time.Now())
}

// leavesMark is for a writer, whose mark readers look at.
func (l *locking) leavesMark() bool {
	m := l.Spec
	l.hasGrantChannel = l.waiter.Listens()
	if l.Once || m.queueKey() == "" || l.Tenure.queued == nil && !l.hasGrantChannel && m.seesProcesses() {
		return false
	}
	l.Tenure.mayQueue(time.Now())
	return true
}

// refusal is the last one, or none.
func (l *locking) refusal() lua.AcquireReply {
	if l.refused == nil {
		return lua.AcquireReply{}
	}
	return *l.refused
}

// failure is the error of a Lock that got nothing.
func (l *locking) failure(err error) error { return l.Spec.gaveUp(l.Caller, err, l.refusal()) }

// awaitTurn waits for the turn, or to be granted the lock, or for the end of the wait.
func (l *locking) awaitTurn() (granted, gone bool, err error) {
	l.Waits(l.refusal().Holder)
	select {
	case <-l.waiter.Turn():
		granted, err = l.waiter.News()
		return granted, err != nil, err
	case <-l.Ctx.Done():
	case <-l.Stopped():
	}
	return false, true, nil
}

// early is how long before the end of its wait a TryLock leaves the line, at most: a quarter of the wait, if that is less. So its place in
// Redis is mostly gone when it returns. If it were not, an unlock could still give the lock to it, and somebody else's TryLock(0) would
// find a lock taken that nobody has.
const early = 10 * time.Millisecond

// leaves is when a waiter gives up; zero: only ctx ends its wait.
func (l *locking) leaves() time.Time {
	if l.Wait.IsZero() {
		return l.Wait
	}
	return l.Wait.Add(-max(min(time.Until(l.Wait)/4, early), 0))
}

// waitOut waits for the end of the wait, which leaving was early for.
func (l *locking) waitOut() {
	timer := time.NewTimer(time.Until(l.Wait))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-l.Ctx.Done():
	case <-l.Spec.Engine.Calls.Done():
	}
}

// withdraw takes a Lock that got nothing out of the queue, and sweeps what it may have left in Redis.
func (l *locking) withdraw() { l.withdrawInTime(false, (*Tenure).sweepInCall) }

// withdrawInTime is leave for a Lock that may have time until the end of its wait: then its place in Redis, or its mark, goes before it
// returns, unless that takes longer. It reports true, and has not left, if it was granted the lock in this moment.
func (l *locking) withdrawInTime(hasTime bool, sweep func(*Tenure)) (granted bool) {
	l.leavePlace()
	if !l.queued { // it was given the lock, and could not use that
		sweep(l.Tenure)
		l.Spec.Engine.Hub.Wake(l.Spec.waiters())
		return false
	}
	switch l.waiter.Leave() {
	case pubsub.Granted:
		return true
	case pubsub.Claimed: // its claimant ends it
	case pubsub.Left:
		if hasTime && l.Tenure != nil && l.Tenure.queued != nil {
			_, _, _ = Leavable(l.Ctx, l.Spec, l.Wait, func(<-chan struct{}) (struct{}, error) {
				l.Tenure.GiveBack()
				return struct{}{}, nil
			}, func(_ struct{}, err error) {
				if err != nil { // it was not sent
					sweep(l.Tenure)
				}
			})
		} else {
			sweep(l.Tenure)
		}
		if m := l.Spec; m.Kind.Side == lua.Writer && !l.refusal().Joined { // readers stood behind it alone, and not behind its mark
			m.Engine.Hub.Wake(m.waiters())
		}
	}
	return false
}

// rollBack ends a Lock whose caller left it, after the answer.
func (l *locking) rollBack(a AcquireResult, _ error) {
	l.leavePlace()
	if a.Granted() {
		l.Tenure.GiveBack()
		if l.queued {
			l.waiter.Leave()
		} else {
			l.Spec.Engine.Hub.Wake(l.Spec.waiters())
		}
		return
	}
	l.withdrawInTime(false, (*Tenure).SweepIfUnresolved) // maybe after Close
}

// enter turns a grant into a live hold, or gives it back. The waiter has left the queue.
func (l *locking) enter(a AcquireResult) (s *Level, err error) {
	t, m := l.Tenure, l.Spec
	l.leavePlace()
	until := a.until(m)
	if a.how != byCall {
		until = m.Engine.Leases.Until(&t.Lease)
	}
	switch {
	case a.Unconfirmed != nil:
		err = fmt.Errorf("%w: %w", m.Engine.errs.NotReplicated, a.Unconfirmed)
	case a.how != byCall, time.Now().Before(until):
		s, err = t.admit(l.Ctx, l.Outer, m, a, l.within != nil)
	default:
		err = t.tooLate(m, until)
	}
	switch {
	case err == nil:
		l.lead(a)
		return s, nil
	case a.how == letIn && !t.isLeft():
		l.Tenure = nil
		if err != ErrOver { //nolint:errorlint // never wrapped
			err = l.failure(err)
		}
		return nil, err
	case err == ErrOver: //nolint:errorlint // never wrapped
		l.Tenure = nil
		m.Engine.insiders.remove(t)
		m.Engine.Calls.Go(func() { // a call for a level of a hold before may be under way (I1); ends soon after that
			t.awaitCallSlot()
			defer t.releaseCallSlot()
			t.forget()
		})
		return nil, err
	}
	if a.how != byCall {
		m.Engine.insiders.remove(t)
		m.Engine.Leases.Stop(&t.Lease) // nobody is to be told of its end, whenever it is given back
	}
	// The caller may leave before the grant is given back; if that is not even begun, since Redis is silent, it is swept.
	_, _, _ = Leavable(l.Ctx, m, l.Limit, func(<-chan struct{}) (struct{}, error) {
		t.awaitCallSlot()
		defer t.releaseCallSlot()
		t.GiveBack()
		return struct{}{}, nil
	}, func(_ struct{}, err error) {
		if err != nil {
			t.UnresolvedUntil(until.Add(m.Grace)).OutcomeUnknown = true
			t.SweepIfUnresolved()
		}
	})
	m.Engine.Hub.Undone(m.waiters()) // those behind it ask, though that was no unlock they know of
	return nil, l.failure(err)
}

// takeCalls takes the right to make calls for a live hold that the caller's ctx carries.
func (m *Spec) takeCalls(who Caller, h *hold) error {
	if err := m.awaitCalls(who, h); err != nil {
		return err
	}
	t := h.tenure
	t.mu.Lock()
	over, loss := h.count == 0, h.loss()
	t.mu.Unlock()
	var err error
	switch {
	case loss != nil:
		err = loss
	case over:
		err = ErrOver
	case who.Ctx.Err() != nil:
		err = m.gaveUp(who, nil, lua.AcquireReply{})
	}
	if err != nil {
		t.releaseCallSlot()
	}
	return err
}

// enterWithin is for a Lock whose ctx carries a hold of the other side: a writer lets a reader in, as a hold of its own and
// without queueing. The other way round it would wait for itself.
func (m *Spec) enterWithin(who Caller, outer *hold) (*Level, error) {
	if m.Kind.Side == lua.Writer {
		if loss := outer.lossSoFar(); loss != nil {
			return nil, loss
		}
		return nil, m.Fail(m.Engine.errs.Upgrade, errReads)
	}
	if err := m.takeCalls(who, outer); err != nil {
		return nil, err
	}
	defer outer.tenure.releaseCallSlot()
	l := &locking{AcquireRequest: AcquireRequest{Caller: who, Spec: m, Tenure: newTenure(m), Count: 1, within: outer}}
	a, left, err := l.ask(l)
	switch {
	case left: // a late answer is rolled back
		return nil, l.failure(err)
	case err != nil:
		l.Tenure.SweepIfUnresolved()
		return nil, l.failure(err)
	case !a.Granted():
		outer.tenure.gone()
		return nil, outer.lossSoFar()
	}
	return l.enter(a)
}

// reenter adds a level to a live hold, without queueing. Nobody is asked for what the hold has.
func (m *Spec) reenter(who Caller, h *hold) (l *Level, err error) {
	if m.NoReentry {
		if loss := h.lossSoFar(); loss != nil {
			return nil, loss
		}
		return nil, m.Fail(m.Engine.errs.Reentry)
	}
	switch {
	case who.Ctx.Err() != nil:
		err = m.gaveUp(who, nil, lua.AcquireReply{})
	case h.has(m):
		l, err = m.reopen(who, h, AcquireResult{how: inMemory})
	default:
		l, err = m.reenterForMore(who, h)
	}
	if err == nil {
		who.Took(PathReentry)
	}
	return l, err
}

// reopen opens one more level.
func (m *Spec) reopen(who Caller, h *hold, a AcquireResult) (*Level, error) {
	l, err := h.reopen(who.Ctx, m, a)
	if err != nil && err != ErrOver { //nolint:errorlint // never wrapped
		err = m.gaveUp(who, err, lua.AcquireReply{})
	}
	return l, err
}

// has reports whether the hold has what a level of m asks for: it is trusted for as long, and has a token if that has one.
func (h *hold) has(m *Spec) bool {
	leases := m.Engine.Leases
	left := time.Until(leases.Until(&h.tenure.Lease))
	if left <= 0 {
		leases.CatchUp() // it is lost, whoever notices first
	}
	h.tenure.mu.Lock()
	defer h.tenure.mu.Unlock()
	return (m.Lease == 0 && h.tenure.renewed() || left >= m.TTL()) && (m.Kind.Fence == nil || h.token != 0)
}

// reenterForMore asks for a level that needs a longer lease than the hold has, or a token.
func (m *Spec) reenterForMore(who Caller, h *hold) (*Level, error) {
	if err := m.takeCalls(who, h); err != nil {
		return nil, err
	}
	t := h.tenure
	t.mu.Lock()
	_, count := t.open()
	count = max(count, h.count+1)
	t.mu.Unlock()
	t.stated(count, false)
	q := &reentry{AcquireRequest{Caller: who, Spec: m, Tenure: t, Count: int(count)}}
	a, left, err := q.ask(q)
	if !left {
		defer t.releaseCallSlot()
	}
	switch {
	case left, err != nil:
		return nil, m.gaveUp(who, err, lua.AcquireReply{})
	case !a.Granted():
		t.gone()
	default:
		t.stated(count, true)
	}
	return m.reopen(who, h, a)
}

// reentry is a Lock that asks for one more level.
type reentry struct{ AcquireRequest }

// rollBack has the count in Redis go down again.
func (q *reentry) rollBack(AcquireResult, error) { q.Tenure.releaseCallSlot() }

// awaitCalls takes the right to make calls for a live hold (I1), when whoever has it gives it back.
func (m *Spec) awaitCalls(who Caller, h *hold) error {
	wait, cancel, end := who.Ctx, context.CancelFunc(func() {}), who.Wait
	if who.Once { // those calls take no longer than an attempt
		end = who.Limit
	}
	if !end.IsZero() {
		wait, cancel = context.WithDeadline(who.Ctx, end)
	}
	defer cancel()
	ok, turn := h.tenure.callSlot()
	for turn != nil {
		select {
		case <-turn.over:
			ok, turn = h.tenure.takes(turn)
		case <-wait.Done():
			h.tenure.leaves(turn)
			return m.gaveUp(who, nil, lua.AcquireReply{})
		case <-m.Engine.Calls.Done():
			h.tenure.leaves(turn)
			return m.closed()
		}
	}
	if ok {
		return nil
	}
	if loss := h.lossSoFar(); loss != nil {
		return loss
	}
	return ErrOver // and what was lost since is another one's
}
