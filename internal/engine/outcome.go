package engine

import (
	"context"
	"fmt"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/sweep"
	"github.com/go-rlock/rlock/internal/tenure"
	"github.com/go-rlock/rlock/lua"
	"github.com/go-rlock/rlock/pubsub"
)

// The caller may leave at any time, and the lock may arrive at the same moment. This file decides which came first, and which side
// gives the lock back, so that Redis never keeps a lock unknown to its caller. While an attempt asks (calls.Make):
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

// ask makes the call for a caller that may leave. If the caller leaves before the answer, left is true, RollBack has the answer, and
// err is the last error so far. See calls.Make for how the race is decided.
func (l *Attempt) ask() (a tenure.AcquireResult, left bool, err error) {
	if l.failed.Load() != nil {
		l.failed.Store(nil) // from an earlier ask
	}
	m := l.Lock
	left, err = m.Client.Calls.Make(l.Ctx, m.Slot(), l.Limit, l)
	if !left {
		return l.delivered, false, err
	}
	if failed := l.failed.Load(); failed != nil {
		err = *failed
	}
	return a, true, err
}

// Make asks Redis, and keeps the answer, for a chain that of each lock.
func (l *Attempt) Make(left <-chan struct{}) error {
	a, err := l.send(left)
	if l.next == nil {
		l.delivered = a
	}
	l.delivered.Sent = a.Sent
	return err
}

// send is Send, for all locks of the call.
func (l *Attempt) send(left <-chan struct{}) (tenure.AcquireResult, error) {
	if l.next == nil {
		return l.Send(left)
	}
	var args []lua.AcquireArgs
	for x := l; x != nil; x = x.next {
		args = append(args, acquireArgs(x.Lock, x.Tenure, int(x.Count)))
	}
	return l.repeat(left, 0, func(ctx *calls.Context) (lua.AcquireReply, error) {
		reply, err := lua.AcquireAll(ctx, l.Lock.Client.RDB, args)
		late := err != nil && calls.MayHaveRun(err) || ctx.IsRepeated()
		for x, i := l, 0; x != nil; x, i = x.next, i+1 {
			if late {
				x.Tenure.LateAcquire(args[i].Lease)
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
		case calls.IsRefusal(err):
			l.apart = true
			return lua.AcquireReply{}, nil
		case reply.Acquired:
			return lua.AcquireReply{Status: lua.Acquired}, err
		}
		return reply.Refusal, err
	})
}

// RollBack ends an attempt whose caller has left, once its result is known. That may be after Close.
func (l *Attempt) RollBack(error) { l.rollBack(l.delivered) }

func (l *Attempt) rollBack(a tenure.AcquireResult) {
	if l.Count > 1 { // it was one more level of a tenure that continues; the count in Redis follows
		l.Tenure.ReleaseCallSlot()
		return
	}
	if a.Status == lua.Acquired {
		l.giveBack()
	}
	l.withdraw()
}

// giveBack releases grants that never became live, with one call. Unresolved results go to the sweeper.
func (l *Attempt) giveBack() {
	c := l.Lock.Client
	if l.next == nil {
		l.Tenure.GiveBack()
		return
	}
	var args []lua.ReleaseArgs
	for x := l; x != nil; x = x.next {
		args = append(args, x.Tenure.ReleaseArgs())
	}
	ctx, cancel := c.Calls.Last()
	defer cancel()
	results, err := lua.ReleaseEach(ctx, c.RDB, args)
	for x, i := l, 0; x != nil; x, i = x.next, i+1 {
		if err == nil {
			x.Tenure.GivenBack(results[i].Err)
		} else {
			x.Tenure.GivenBack(err)
		}
	}
}

// withdraw takes an attempt without a grant out of its queues, and sweeps its possible traces in Redis.
func (l *Attempt) withdraw() {
	var rest []*sweep.Orphan
	for x := l; x != nil; x = x.next {
		if x.leave() == pubsub.Left {
			rest = append(rest, x.Tenure.Orphan())
		}
	}
	if len(rest) == 0 {
		return
	}
	l.Lock.Client.Sweep(rest...)
	l.wakeReaders()
}

// leave takes the attempt out of its queue, if it is in one.
func (l *Attempt) leave() pubsub.Leaving {
	l.leavePlace()
	m := l.Lock
	if !l.queued { // it was given the lock and could not use or keep it: wake the waiters behind it, because no unlock does
		m.Client.Hub.Undone(m.Waiters())
		return pubsub.Left
	}
	return l.waiter.Leave()
}

// wakeReaders wakes the readers blocked only by a writer that has left, and not by its mark.
func (l *Attempt) wakeReaders() {
	if m := l.Lock; l.queued && m.Kind.Side == lua.Writer && !l.Refusal().Joined {
		m.Client.Hub.Wake(m.Waiters())
	}
}

// leaveInTime ends the wait. A Lock that expires leaves slightly early, to use the rest of its time to remove its place or mark from
// Redis. It reports false, without leaving, if the lock was granted at this moment.
func (l *Attempt) leaveInTime(expired bool) bool {
	switch l.leave() {
	case pubsub.Granted:
		return false
	case pubsub.Claimed: // its claimant finishes it
	case pubsub.Left:
		if t := l.Tenure; expired && t != nil && t.Queued != nil {
			_, _, _ = tenure.Leavable(l.Ctx, l.Lock, l.Wait, func(<-chan struct{}) (struct{}, error) {
				t.GiveBack()
				t.SweepIfUnresolved()
				return struct{}{}, nil
			}, func(_ struct{}, err error) {
				if err != nil { // it was not sent
					l.Lock.Client.Sweep(t.Orphan())
				}
			})
		} else {
			l.Lock.Client.Sweep(t.Orphan())
		}
		l.wakeReaders()
	}
	if expired {
		l.waitOut()
	}
	return true
}

// enter turns a grant into live holds, or gives it back: all or none. It returns the last hold's level. The levels of several locks are
// nested, and end together.
func (l *Attempt) enter(a tenure.AcquireResult) tenure.Outcome {
	ctx, cancel := l.Lock.LevelCtx(l.Parent())
	inner := ctx
	for x := l; ; x = x.next {
		if l.next != nil {
			a.Token = x.delivered.Token
		}
		o := x.begin(inner, cancel, a)
		if o.Level == nil {
			cancel(nil)
			return x.rollBackBegin(a, o)
		}
		if x.next == nil {
			return o
		}
		inner = tenure.Nested(ctx, x.level) //nolint:fatcontext // each derives from the same ctx
	}
}

// begin starts the hold of one lock, and takes its waiter out of the queue.
func (l *Attempt) begin(ctx context.Context, cancel context.CancelCauseFunc, a tenure.AcquireResult) tenure.Outcome {
	t, m := l.Tenure, l.Lock
	if l.place != nil {
		l.leavePlace()
	}
	if a.Unconfirmed != nil {
		return failed(fmt.Errorf("%w: %w", m.Client.Errors.NotReplicated, a.Unconfirmed))
	}
	o := t.Admitted(ctx, cancel, &l.Caller, m, a, l.within != nil)
	if l.level = o.Level; l.level == nil {
		return o
	}
	if m.Shares {
		l.lead(a)
	}
	if l.queued { // after its own hold began, because leaving lets others in with it
		l.waiter.Done(m.Expires)
	}
	if len(m.Observers) > 0 {
		l.observed(l.level.Hold, l.beginning(a))
	}
	return o
}

// rollBackBegin gives back the grants of this lock, whose hold could not begin, and of the following locks.
func (l *Attempt) rollBackBegin(a tenure.AcquireResult, o tenure.Outcome) tenure.Outcome {
	t, m := l.Tenure, l.Lock
	switch {
	case a.Path == tenure.LetIn && !t.IsLeft(): // other readers continue it
		l.Tenure = nil
		return l.explained(o)
	case o.IsOver():
		l.Tenure = nil
		t.LeaveOpen()
		m.Client.Calls.Go(t.ForgetInTurn)
		return o
	case a.Path != tenure.ByCall:
		t.LeaveOpen()
		m.Client.Leases.Stop(&t.Lease) // no hold stands on it, so its expiry is no loss
	}
	// The caller may leave before the release ends.
	_, _, _ = tenure.Leavable(l.Ctx, m, l.Limit, func(<-chan struct{}) (struct{}, error) {
		t.AwaitCallSlot()
		defer t.ReleaseCallSlot()
		l.giveBack()
		l.withdraw()
		return struct{}{}, nil
	}, func(_ struct{}, err error) {
		if err == nil {
			return
		}
		for x := l; x != nil; x = x.next { // not even begun, because Redis is silent
			x.Tenure.GivenBack(err)
		}
		l.withdraw()
	})
	return l.explained(o)
}
