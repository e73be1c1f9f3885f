package engine

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/sweep"
	"github.com/go-rlock/rlock/internal/tenure"
	"github.com/go-rlock/rlock/lua"
	"github.com/go-rlock/rlock/pubsub"
)

// An unlock closes its level. That is all, unless it is the last one of its hold. For how long its caller then waits for it, see unlock.go:
//
//	state                event                                next
//	open                 unlock                               closed: the section's ctx ends before anything is sent
//	closed, not last                                          done: nil, or ErrLost and ErrNotHeld; the count in Redis follows (count.go)
//	closed, last         the lock is to stay taken            releasing: the lock passes to the placeholder owner <id>:00, or
//	                                                          to that of a ticket (export.go)
//	                     somebody here waits                  handing off
//	                     otherwise                            releasing
//	handing off          handed to the waiter here, or to
//	                     another process                      done: nil
//	                     no answer, or refused                releasing, whose answer tells what came of it
//	releasing            released                             done: nil
//	                     not held after a call without answer done: nil, for that call has released it
//	                     not held                             lost
//	                     no answer for 3 s                    done: an error; the field is swept
//	any                  the lease ends                       lost, when the call has ended
//	after the loss                                            done: ErrLost and ErrNotHeld; swept if it may still be in Redis

// unlocker is an unlock as its calls see it.
type unlocker struct {
	levels   []*tenure.Level       // whose holds it ends, of one Client and slot
	one      [1]*tenure.Level      // usually the only one
	errs     []error               // its result
	first    [1]unlocking          // its state
	left     <-chan struct{}       // closed when the caller stops waiting
	closed   bool                  // so is the Client: no call follows the one that was made last
	failed   atomic.Pointer[error] // what went wrong the last time, if it did
	contexts calls.Contexts        // of its calls
	callers  tenure.Callers        // room for those of its first level's tenure
}

// Make ends the holds of the closed levels.
func (u *unlocker) Make(left <-chan struct{}) error {
	u.left = left
	for _, l := range u.levels {
		l.Hold.Tenure.AwaitCallSlot() // no deadlock: the owner of that right waits for no other hold
	}
	u.errs = u.release()
	return u.cause() // its calls have recorded whether Redis answered
}

// RollBack has nothing to do: an unlock goes on without its caller.
func (u *unlocker) RollBack(error) {}

// release ends the holds of the closed levels, by whoever has the right to make calls for them.
func (u *unlocker) release() []error {
	all := unlockings(u.first[:])
	if n := len(u.levels); n > 1 {
		all = make(unlockings, n)
		for i, l := range u.levels {
			all[i] = unlockingOf(l.Hold.Tenure, l.Hold)
		}
	}
	all.finish(u, all.begin(u))
	return all.ended(u)
}

// unlockings are the holds that one unlock ends by the same calls: one, or those of locks that were taken together.
type unlockings []unlocking

// unlocking is the unlock of what was the last open level of a hold, by whoever has the right to make calls for that.
type unlocking struct {
	tenure.ReleaseResult // what came of it so far

	hold      *tenure.Hold   // nil: of a tenure without one
	tenure    *tenure.Tenure // that it stands on
	loss      error          // the hold was lost before
	waiters   pubsub.Queue   // of this process for the lock
	args      lua.ReleaseArgs
	next      *Attempt // of this process, claimed until it is known what came of the release; nil: none
	insideRun bool     // that one comes before other processes
	toAll     bool     // the hub knows that the release notifies all
}

// unlockingOf is that of h, which stands on the tenure, or of a tenure on which none does.
func unlockingOf(t *tenure.Tenure, h *tenure.Hold) unlocking {
	return unlocking{hold: h, tenure: t, waiters: t.Lock.Waiters()}
}

// section is the ctx of the section that it ends.
func (u *unlocking) section() context.Context {
	if u.hold != nil {
		return &u.hold.First
	}
	return u.tenure.Section()
}

// ends reports whether there is a hold to be ended.
func (u *unlocking) ends() bool { return u.loss == nil }

// begin makes the first call. It names the next owners, the first waiters of this process, if there are any.
func (all unlockings) begin(by *unlocker) error {
	now := time.Now()
	for i := range all {
		u := &all[i]
		t := u.tenure
		if u.loss = t.LossOf(u.hold); !u.ends() {
			continue
		}
		// No renewal starts from here on, but the end of the lease is still watched.
		t.Lock.Client.Leases.Releasing(&t.Lease)
		u.args = t.ReleaseArgs()
		u.claim(now)
	}
	return all.call(by, now, true)
}

// finish makes the other calls, if the first one failed with err or Redis refused one of the locks. They name no next owners: such a call
// may have failed because of them, so one lock is asked for again at once. Those that Redis refused among others are released alone.
func (all unlockings) finish(by *unlocker, err error) {
	if len(all) == 1 && all[0].next != nil {
		err = all.call(by, time.Now(), false)
	}
	err = all.repeat(by, err)
	for i := range all {
		u, one := &all[i], all[i:i+1]
		if len(all) > 1 && u.Err != nil && (err == nil || calls.IsRefusal(err)) {
			_ = one.repeat(by, one.call(by, time.Now(), false))
		}
		if u.next != nil {
			u.next.notHandedOff(u.ReleaseResult)
			u.next = nil
		}
	}
}

// repeat makes more calls after one that failed, for as long as that may help, and a lease lasts.
func (all unlockings) repeat(by *unlocker, err error) error {
	if err == nil {
		return nil
	}
	last, until := all.lastToEnd()
	more := calls.Retry{Until: until}
	for err != nil && !by.closed && (len(all) == 1 || !calls.IsRefusal(err)) && by.again(last, &more, err) {
		err = all.call(by, time.Now(), false)
	}
	return err
}

// lastToEnd is the tenure whose lease ends last, of those that are to be released; nil if there are none.
func (all unlockings) lastToEnd() (last *tenure.Tenure, until time.Time) {
	for i := range all {
		t := all[i].tenure
		if end := t.Lock.Client.Leases.Until(&t.Lease); all[i].ends() && (last == nil || end.After(until)) {
			last, until = t, end
		}
	}
	return last, until
}

// call makes one call now. The error is that of the call, or of what Redis said if there is but one lock.
func (all unlockings) call(by *unlocker, sent time.Time, handsOff bool) error {
	var of *unlocking // one that ends a hold, for what they have in common
	for i := range all {
		if of == nil && all[i].ends() {
			of = &all[i]
		}
	}
	if of == nil {
		return nil
	}
	m := of.tenure.Lock
	c := m.Client
	by.closed = c.Calls.IsClosed()
	ctx, end := releaseCall(of, sent, by)
	defer end()
	if len(all) == 1 {
		u := &all[0]
		reply, err := m.SendRelease(ctx, u.callArgs(handsOff))
		u.answered(handsOff, sent, reply, err, ctx.MayBeRepeated())
		return u.Err
	}
	args := make([]lua.ReleaseArgs, 0, len(all))
	for i := range all {
		if u := &all[i]; u.ends() {
			args = append(args, u.callArgs(handsOff))
		}
	}
	results, err := lua.ReleaseEach(ctx, c.RDB, args)
	c.Calls.Answered(m.Slot(), err)
	for i := range all {
		u, reply, failed := &all[i], lua.ReleaseReply{}, err
		switch {
		case !u.ends():
			continue
		case err == nil:
			reply, failed = results[0].ReleaseReply, results[0].Err
			results = results[1:]
		}
		u.answered(handsOff, sent, reply, failed, ctx.MayBeRepeated())
	}
	return err
}

func (u *unlocking) callArgs(handsOff bool) lua.ReleaseArgs {
	if handsOff && u.next != nil {
		return u.next.takesOver(u.args, u.insideRun)
	}
	return u.args
}

// answered takes in what came of a call for this hold.
func (u *unlocking) answered(handsOff bool, sent time.Time, reply lua.ReleaseReply, err error, repeated bool) {
	t := u.tenure
	if handsOff && u.next != nil {
		if u.ReleaseResult = handedOff(t, u.next, u.insideRun, sent, reply, err, repeated); u.Err == nil {
			u.next = nil
		}
		return
	}
	u.givesWay(reply)
	u.Late = u.Late || repeated || err != nil && calls.MayHaveRun(err)
	// Not there after a call without a reply: that call has released it. The lock of a ticket would be there.
	u.Held, u.Err = reply.Status != lua.NotHeld || u.Late && u.args.Ticket == "", err
}

// ended finishes an unlock after its calls.
func (all unlockings) ended(by *unlocker) (errs []error) {
	var rest []*sweep.Orphan
	for i := range all {
		r, err := all[i].end(by)
		if r != nil {
			rest = append(rest, r)
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	for i := range all {
		all[i].tenure.ReleaseCallSlot()
	}
	if len(rest) > 0 {
		all[0].tenure.Lock.Client.Sweep(rest...)
	}
	return errs
}

// end is what the hold and the caller learn of it. What is left to be swept, if anything, is for the caller.
func (u *unlocking) end(by *unlocker) (rest *sweep.Orphan, err error) {
	h, t, r := u.hold, u.tenure, u.ReleaseResult
	if u.loss != nil {
		return releaseLost(t, h)
	}
	m := t.Lock
	c := m.Client
	if t.Stays != nil && t.Stays.Ticket != "" {
		t.Stays = nil // what is left in Redis of this owner is to be released: either somebody has the ticket, or nobody ever will
	}
	switch {
	case r.Err != nil:
		t.CatchUp() // if the end of the lease was the reason, the hold is lost, whoever notices first
	case !r.Held && by.isLeft(): // maybe the lease has ended; there is nobody to be told
		c.Hub.Wake(m.Waiters())
	case !r.Held:
		t.Gone()
	}
	if t.EndReleased(h) { // maybe while the release was on its way
		return releaseLost(t, h)
	}
	if h != nil {
		defer c.HoldEnds()
	}
	c.Leases.Stop(&t.Lease)
	if r.Err != nil {
		t.UnresolvedUntil(c.Leases.Until(&t.Lease).Add(m.Grace)).OutcomeUnknown = true
	}
	rest = t.Orphan()
	switch {
	case r.Err == nil:
	case isOver(r.Err):
		err = m.FailPending(by.cause())
	default:
		err = m.FailPending(r.Err)
	}
	return rest, err
}

// releaseLost is the unlock of a hold that was lost, or the end of a lost tenure without one. It may still be there in Redis, say because
// the reply of a renewal was lost, or something of it, if somebody deleted the key. That is removed when the last level is unlocked, so not
// before the sections have ended.
func releaseLost(t *tenure.Tenure, h *tenure.Hold) (rest *sweep.Orphan, err error) {
	m := t.Lock
	last, loss := t.EndLost(h)
	if last {
		if h != nil {
			defer m.Client.HoldEnds()
		}
		t.UnresolvedUntil(time.Now().Add(t.Lasts())).OutcomeUnknown = true
		rest = t.Orphan()
	}
	return rest, m.FailNotHeld(loss)
}

// givesWay lets others ask first if a release has told them, and spares those that wait here the courtesy if it has told none.
func (u *unlocking) givesWay(r lua.ReleaseReply) {
	c := u.tenure.Lock.Client
	if r.Outsiders {
		c.Hub.Yield(u.waiters)
	}
	if u.toAll && r.Status == lua.Freed && !r.Several && (u.waiters.Channel.Sharded || !c.Cluster.IsOne()) {
		c.Hub.Alone(u.waiters)
	}
}

// releaseCall is the context of a command that ends a tenure, with what ends that. On a connection that nobody else uses it ends before
// the unlock, so that a new connection has the rest. Close may wait for the last one.
func releaseCall(of *unlocking, now time.Time, by *unlocker) (ctx *calls.Context, end func()) {
	c := of.tenure.Lock.Client
	if by.closed {
		return by.contexts.Last(of.section(), c.Calls)
	}
	return by.contexts.Next(of.section(), c.Calls, now.Add(max(leastCall, min(calls.Timeout, c.Options.UnlockTimeout-toRedial)))), func() {}
}

func (u *unlocker) isLeft() bool { return calls.IsClosed(u.left) }

// fails notes what went wrong. That the time of a call is over says nothing of why.
func (u *unlocker) fails(err error) {
	if !isOver(err) {
		u.failed.Store(&err)
	}
}

// isOver reports whether a call failed because its time was over.
func isOver(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// cause is what keeps an unlock from its end, as far as is known.
func (u *unlocker) cause() error {
	if err := u.failed.Load(); err != nil {
		return *err
	}
	return calls.ErrNoAnswer
}

// again pauses, and reports whether a release that failed is to be sent again: if that may help, the hold is not lost, and its caller
// waits.
func (u *unlocker) again(t *tenure.Tenure, r *calls.Retry, err error) bool {
	u.fails(err)
	c := t.Lock.Client
	if errors.Is(err, lua.ErrReaders) { // none is open here, so what failed calls have left is about to go
		err = calls.ErrNoAnswer
	}
	return !u.isLeft() && t.LossSoFar() == nil && (r.Wait(err, u.left, c.Calls.Done()) || !u.isLeft() && c.Calls.IsClosed())
}

const (
	// leastCall is the least time of a call: rueidis closes the connection when that time is exceeded.
	leastCall = time.Second
	// toRedial is how much of an unlock's time is left for a new connection.
	toRedial = time.Second / 2
)

// End ends a tenure without a hold, as an unlock does: a waiter here or elsewhere is given the lock. It returns at once a channel that is
// closed at the end. counted: the caller has started a call for that, which Close waits for, and End ends it.
func End(t *tenure.Tenure, counted bool) (ended <-chan struct{}) {
	over, c := make(chan struct{}), t.Lock.Client
	c.Calls.Go(func() { // ends as unlocks do
		if counted {
			defer c.Calls.Ended()
		}
		defer close(over)
		t.AwaitCallSlot()
		all, by := unlockings{unlockingOf(t, nil)}, new(unlocker)
		all.finish(by, all.begin(by))
		all.ended(by)
	})
	return over
}

// Release ends a tenure without a hold, and retries after transient errors while its lease lasts. Anything unresolved is swept.
func Release(t *tenure.Tenure) tenure.ReleaseResult {
	all, by := unlockings{{tenure: t, waiters: t.Lock.Waiters(), args: t.ReleaseArgs()}}, new(unlocker) // no caller leaves it
	until := t.Until()
	all.finish(by, all.call(by, time.Now(), false))
	r := all[0].ReleaseResult
	if t.GivenBack(r.Err); r.Err != nil {
		t.UnresolvedUntil(until) // its lease may be longer than its handle's
	}
	t.SweepIfUnresolved()
	return r
}
