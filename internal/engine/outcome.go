package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/sweep"
	"github.com/go-rlock/rlock/lua"
	"github.com/go-rlock/rlock/pubsub"
)

// The caller may leave at any time, and the lock may come in the same moment. Here it is decided which of them was first, and who gives the lock back;
// nothing is left in Redis that its caller does not know of. While an attempt asks (calls.Leavable):
//
//	state      event                        next
//	sent       reply                        answered: the caller enters, waits on or fails
//	           error that may pass          sent again, for 3 s after the first error, or until the caller's limit
//	           other error, 3 s over        answered: the caller fails
//	           ctx, limit or Close          left: the caller fails at once, with ErrUnreachable if there was time for an answer
//	left       reply that grants            rolled back: the level is released
//	           reply that does not          rolled back
//	           error                        rolled back: if the call may have run, the field is swept
//
// While it waits (pubsub.Waiter.Leave):
//
//	waiting    ctx, time over, Close        left
//	claimed    ctx, time over, Close        left: the claimant rolls back what comes of its call
//	given      ctx, time over, Close        too late to leave: the caller enters

// ask makes the call, for a caller who may leave. If the caller leaves before the answer, left is true, rollBack gets the answer, and the error is
// what went wrong so far. Whoever is first decides, see calls.Leavable.
func (l *attempt) ask() (a AcquireResult, left bool, err error) {
	if l.failed.Load() != nil {
		l.failed.Store(nil) // of an earlier ask
	}
	if !calls.CanLeave(l.Ctx, l.Limit) { // spares the closures below
		c := l.Spec.Engine.Calls
		a, err = l.send(c.Done())
		c.Answered(l.Spec.Slot, err)
		return a, false, err
	}
	a, left, err = Leavable(l.Ctx, l.Spec, l.Limit, l.send, l.rollBack)
	if failed := l.failed.Load(); left && failed != nil {
		err = *failed
	}
	return a, left, err
}

// send is Send, for all locks of the call.
func (l *attempt) send(left <-chan struct{}) (AcquireResult, error) {
	if l.next == nil {
		return l.Send(left)
	}
	var args []lua.AcquireArgs
	for x := l; x != nil; x = x.next {
		args = append(args, x.Spec.acquireArgs(x.Tenure, int(x.Count)))
	}
	return l.repeat(left, 0, func(ctx *calls.Context) (lua.AcquireReply, error) {
		reply, err := lua.AcquireAll(ctx, l.Spec.Engine.rdb, args)
		late := err != nil && calls.MayHaveRun(err) || ctx.IsRepeated()
		for x, i := l, 0; x != nil; x, i = x.next, i+1 {
			if late {
				x.Tenure.lateAcquire(args[i].Lease)
			}
			switch {
			case err != nil:
			case reply.Acquired:
				x.delivered.Status, x.delivered.Token = lua.Acquired, reply.Tokens[i]
			case i == reply.Refused:
				x.delivered.AcquireReply = reply.Refusal
			}
		}
		switch {
		case isRefusal(err):
			return lua.AcquireReply{}, ErrAlone
		case reply.Acquired:
			return lua.AcquireReply{Status: lua.Acquired}, err
		}
		return reply.Refusal, err
	})
}

// rollBack ends an attempt that nobody waits for any more, when it is known what it came to. That may be after Close.
func (l *attempt) rollBack(a AcquireResult, _ error) {
	if l.Count > 1 { // it was for one more level of a tenure that goes on; the count in Redis follows
		l.Tenure.releaseCallSlot()
		return
	}
	if a.Granted() {
		l.giveBack()
	}
	l.withdraw((*Engine).sweep)
}

// giveBack releases what was granted and did not become live, by one call. What is not known after that is for the sweeper.
func (l *attempt) giveBack() {
	c := l.Spec.Engine
	if l.next == nil {
		_ = l.Tenure.giveBack() // it has noted that
		return
	}
	var args []lua.ReleaseArgs
	for x := l; x != nil; x = x.next {
		args = append(args, x.Tenure.releaseArgs())
	}
	ctx, cancel := c.Calls.Last()
	defer cancel()
	results, err := lua.ReleaseEach(ctx, c.rdb, args)
	for x, i := l, 0; x != nil; x, i = x.next, i+1 {
		if err == nil {
			x.Tenure.givenBack(results[i].Err)
		} else {
			x.Tenure.givenBack(err)
		}
	}
}

// withdraw takes an attempt that got nothing out of its queues, and sweeps what it may have left in Redis.
func (l *attempt) withdraw(toSweep func(*Engine, ...*sweep.Orphan)) {
	var rest []*sweep.Orphan
	for x := l; x != nil; x = x.next {
		if x.leave() == pubsub.Left {
			rest = append(rest, x.Tenure.orphan())
		}
	}
	if len(rest) == 0 {
		return
	}
	toSweep(l.Spec.Engine, rest...)
	l.wakeReaders()
}

// leave takes it out of its queue, if it is in one.
func (l *attempt) leave() pubsub.Leaving {
	l.leavePlace()
	m := l.Spec
	if !l.queued { // it was given the lock, and could not use that, or not keep it: those behind it ask, though that was no unlock they know of
		m.Engine.Hub.Undone(m.waiters())
		return pubsub.Left
	}
	return l.waiter.Leave()
}

// wakeReaders is for a writer that has left: readers stood behind it alone, and not behind its mark.
func (l *attempt) wakeReaders() {
	if m := l.Spec; l.queued && m.Kind.Side == lua.Writer && !l.refusal().Joined {
		m.Engine.Hub.Wake(m.waiters())
	}
}

// leaveInTime ends the wait. If its time is over but for the little that it leaves earlier, its place in Redis, or its mark, goes before it returns,
// unless that takes longer. It reports false, and has not left, if it was granted the lock in this moment.
func (l *attempt) leaveInTime(expired bool) bool {
	switch l.leave() {
	case pubsub.Granted:
		return false
	case pubsub.Claimed: // its claimant ends it
	case pubsub.Left:
		if t := l.Tenure; expired && t != nil && t.queued != nil {
			_, _, _ = Leavable(l.Ctx, l.Spec, l.Wait, func(<-chan struct{}) (struct{}, error) {
				t.GiveBack()
				return struct{}{}, nil
			}, func(_ struct{}, err error) {
				if err != nil { // it was not sent
					l.Spec.Engine.sweepInCall(t.orphan())
				}
			})
		} else {
			l.Spec.Engine.sweepInCall(t.orphan())
		}
		l.wakeReaders()
	}
	if expired {
		l.waitOut()
	}
	return true
}

// enter turns a grant into live holds, or gives it back: all of them, or none. It returns the level of the last one. The levels of several are in one
// another, and end together.
func (l *attempt) enter(a AcquireResult) (*Level, error) {
	ctx, cancel := l.Spec.levelCtx(l.Parent())
	inner := ctx
	for x := l; ; x = x.next {
		if l.next != nil {
			a.Token = x.delivered.Token
		}
		if err := x.begin(inner, cancel, a); err != nil {
			cancel(nil)
			return nil, x.undo(a, err)
		}
		if x.next == nil {
			return x.level, nil
		}
		inner = nested{ctx, x.level} //nolint:fatcontext // each is made of the same one
	}
}

// nested is the ctx of a section, with one more of its levels around the next one. All of them end together.
type nested struct {
	context.Context

	around *Level
}

// String names the levels around it, as theirs do.
func (n nested) String() string { return n.around.String() }

func (n nested) Value(key any) any {
	if _, ok := key.(SectionKey); ok {
		return n.around
	}
	return n.Context.Value(key)
}

// begin has the hold of one lock begin, and takes its waiter out of the queue.
func (l *attempt) begin(ctx context.Context, cancel context.CancelCauseFunc, a AcquireResult) (err error) {
	t, m := l.Tenure, l.Spec
	l.leavePlace()
	switch until := a.until(m); {
	case a.Unconfirmed != nil:
		return fmt.Errorf("%w: %w", m.Engine.errs.NotReplicated, a.Unconfirmed)
	case a.how == byCall && !time.Now().Before(until):
		return t.tooLate(m, until)
	}
	if l.level, err = t.admit(ctx, cancel, &l.Caller, m, a, l.within != nil); err != nil {
		return err
	}
	l.lead(a)
	if l.queued { // others are let in with it, so first it is in itself
		l.waiter.Done(m.expiry(m.TTL()))
	}
	l.mayBeAsked(a)
	if m.Linger > 0 {
		m.Engine.listen()
	}
	return nil
}

// undo gives back what was granted of this lock, whose hold could not begin, and of those after it. The error is for the caller, but for ErrOver: then
// it goes on.
func (l *attempt) undo(a AcquireResult, err error) error {
	t, m := l.Tenure, l.Spec
	switch {
	case a.how == letIn && !t.isLeft(): // others go on with it
		l.Tenure = nil
		if err != ErrOver { //nolint:errorlint // never wrapped
			err = l.failure(err)
		}
		return err
	case err == ErrOver: //nolint:errorlint // never wrapped
		l.Tenure = nil
		t.leaveInsiders()
		m.Engine.Calls.Go(func() { // a call for a level of a hold before may be under way (I1); ends soon after that
			t.awaitCallSlot()
			defer t.releaseCallSlot()
			t.forget()
		})
		return err
	case a.how != byCall:
		t.leaveInsiders()
		m.Engine.Leases.Stop(&t.Lease) // nobody is to be told of its end, whenever it is given back
	}
	// The caller may leave before that.
	_, _, _ = Leavable(l.Ctx, m, l.Limit, func(<-chan struct{}) (struct{}, error) {
		t.awaitCallSlot()
		defer t.releaseCallSlot()
		l.giveBack()
		l.withdraw((*Engine).sweepInCall)
		return struct{}{}, nil
	}, func(_ struct{}, err error) {
		if err == nil {
			return
		}
		for x := l; x != nil; x = x.next { // not even begun, since Redis is silent
			x.Tenure.givenBack(err)
		}
		l.withdraw((*Engine).sweepInCall)
	})
	return l.failure(err)
}
