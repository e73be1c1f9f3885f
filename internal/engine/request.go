package engine

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/internal/tenure"
	"github.com/go-rlock/rlock/lua"
	"github.com/go-rlock/rlock/pubsub"
)

// AcquireRequest is a caller's request to Redis. The script recognises a repeat, and a field belongs to one hold, so only the end of
// its calls matters.
type AcquireRequest struct {
	tenure.Caller
	Lock            *tenure.Lock
	Tenure          *tenure.Tenure
	within          *tenure.Hold          // the hold of the other side of a read/write lock that lets it in; nil: none
	Count           int32                 // the number of levels, including the requested level
	enqueue         bool                  // joins the queue in Redis if the lock is held; or leaves a mark, or reads other waiters' marks
	hasGrantChannel bool                  // with enqueue: on this process's own channel
	ticket          *string               // the ticket's field, to which the lock was exported; nil: none
	failed          atomic.Pointer[error] // the last call's error, if any
	contexts        calls.Contexts        // of its calls
}

// Send asks Redis, and retries after transient errors. It stops early when the caller has left.
func (q *AcquireRequest) Send(left <-chan struct{}) (tenure.AcquireResult, error) {
	m, c := q.Lock, q.Lock.Client
	args := acquireArgs(m, q.Tenure, int(q.Count))
	if q.within != nil {
		args.Within = q.within.Tenure.Field()
	}
	switch {
	case q.ticket != nil:
		args.Ticket, args.Publish = *q.ticket, lua.Publish(c.KnownChannel(m))
	case m.Kind.Queueing == kinds.PerWaiter && q.Count == 1:
		args.Fair, args.Join, args.Publish = m.Fair(), q.enqueue, lua.Publish(c.KnownChannel(m))
	case q.enqueue:
		args.Queue, args.GrantLease, args.Listens, args.Short = m.QueueKey(), c.GrantLease, q.hasGrantChannel, m.Short
		args.Publish = lua.Publish(c.KnownChannel(m))
	}
	if q.Count == 1 { // a re-entry adds nothing that a failover could give to another owner
		args.Replicas, args.ReplicaWait = c.Options.Replicas, c.Options.ReplicaTimeout
		args.Connections = &c.Connections
	}
	return q.repeat(left, args.ReplicaWait, func(ctx *calls.Context) (lua.AcquireReply, error) { return q.call(ctx, &args) })
}

// repeat makes a call until Redis answers or a retry is pointless. Redis takes longer than for other calls by the given time.
func (q *AcquireRequest) repeat(
	left <-chan struct{}, longer time.Duration, call func(*calls.Context) (lua.AcquireReply, error),
) (tenure.AcquireResult, error) {
	c := q.Lock.Client
	again := calls.Retry{Until: q.Limit, Least: calls.MinTries}
	for {
		sent := time.Now()
		reply, err := call(q.contexts.Next(q.Ctx, c.Calls, sent.Add(longer).Add(calls.Timeout)))
		if err == nil {
			return tenure.AcquireResult{AcquireReply: reply, Sent: sent}, nil
		}
		failed := err // a separate variable, so that only failing calls allocate
		q.failed.Store(&failed)
		if !again.Wait(err, left, c.Calls.Done()) {
			return tenure.AcquireResult{}, err
		}
	}
}

// call makes the call for one lock and records the result in the tenure.
func (q *AcquireRequest) call(ctx *calls.Context, args *lua.AcquireArgs) (lua.AcquireReply, error) {
	m, t, c := q.Lock, q.Tenure, q.Lock.Client
	reply, err := lua.Acquire(ctx, c.RDB, *args)
	repeated := args.Replicas == 0 && ctx.IsRepeated() // on a dedicated connection rueidis retries nothing
	switch {
	case q.Count == 1:
		if err != nil && calls.MayHaveRun(err) || repeated {
			t.LateAcquire(args.Lease)
		}
	case m.TTL > t.Lock.TTL:
		t.UnresolvedUntil(time.Now().Add(args.Lease)) // counts if no later call's end is known
	}
	if err != nil {
		return reply, err
	}
	if reply.NoQueue {
		c.Forbidden(args.Side).Store(true)
	}
	if (args.Queue != "" || args.Fair.List != "") && !reply.WithoutQueue && reply.Status == lua.Acquired {
		t.Queued = nil // not after a refusal: a late grant would be trusted from the next call on
	}
	if q.Count == 1 && t.Unresolved != nil {
		t.Unresolved.OutcomeUnknown = false
	}
	return reply, nil
}

func acquireArgs(m *tenure.Lock, t *tenure.Tenure, count int) lua.AcquireArgs {
	args := lua.AcquireArgs{Name: m.Key, Side: m.Kind.Side, Owner: t.Field(), Lease: t.Lock.Expiry(m.TTL), Count: count}
	if m.Fence != "" && !t.HasToken() { // a hold has one token
		args.Fence = m.Fence
	}
	return args
}

// gaveUp returns the error for a caller without the lock: its time is over (no error, or pubsub.ErrExpired), or err stopped it. refusal
// is the last reply naming the holder.
func gaveUp(m *tenure.Lock, who tenure.Caller, err error, refusal lua.AcquireReply) error {
	errs := m.Client.Errors
	var watched watcherError
	switch timeUp := who.Ctx.Err() != nil || who.Once || !who.Wait.IsZero() && !time.Now().Before(who.Wait); {
	case m.Client.Calls.IsClosed(), m.Client.IsTold(), errors.Is(err, pubsub.ErrClosed), errors.Is(err, errs.Closed):
		return m.FailClosed()
	case errors.Is(err, errs.Lost):
		return err
	case errors.As(err, &watched):
		return notAcquired(m, who, refusal, watched.error)
	case errors.Is(err, errs.NotReplicated):
		return m.Fail(err)
	case err == nil, errors.Is(err, pubsub.ErrExpired):
		if refusal.Status == 0 && m.Client.Calls.IsUnanswered(m.Slot()) { // it queued behind a caller that got no answer
			return notAcquired(m, who, refusal, errs.Unreachable(calls.ErrSilent))
		}
		return notAcquired(m, who, refusal)
	case errors.Is(err, lua.ErrNoConnection):
		return m.Fail(errs.NotReplicated, err)
	case timeUp && calls.IsTransient(err):
		return notAcquired(m, who, lua.AcquireReply{}, errs.Unreachable(err))
	}
	return m.FailUnreachable(err)
}

// notAcquired returns the error of a wait that ended.
func notAcquired(m *tenure.Lock, who tenure.Caller, refusal lua.AcquireReply, causes ...error) error {
	c := m.Client
	return c.Errors.NotAcquired(tenure.NotAcquired{
		Ctx: who.Ctx, Name: m.Name, Began: who.Began, Causes: causes,
		Holder: refusal.Holder, Label: c.LabelOf(refusal.Holder), TTL: refusal.TTL, Other: refusal.Other,
		Carried: c.IsOwn(refusal.Holder) && tenure.Carries(who.Ctx, refusal.Holder),
		Self:    c.IsSelf(who.Outer, refusal.Holder),
	})
}

// takeCalls takes the right to make calls for a live hold in the caller's ctx (I1), waiting until it is free. ok is false without an error if
// the hold is over.
func takeCalls(m *tenure.Lock, who tenure.Caller, h *tenure.Hold) (ok bool, err error) {
	wait, end := who.Ctx, who.Wait
	if who.Once { // those calls take no longer than an attempt
		end = who.Limit
	}
	if !end.IsZero() {
		bounded, cancel := context.WithDeadline(who.Ctx, end)
		defer cancel()
		wait = bounded
	}
	ok, turn := h.Tenure.CallSlot()
	for turn != nil && !ok {
		select {
		case _, ok = <-turn:
			if !ok { // it was lost
				ok, turn = h.Tenure.CallSlot()
			}
		case <-wait.Done():
			h.Tenure.LeaveCallSlot(turn)
			return false, gaveUp(m, who, nil, lua.AcquireReply{})
		case <-m.Client.Calls.Done():
			h.Tenure.LeaveCallSlot(turn)
			return false, m.FailClosed()
		}
	}
	if !ok {
		return false, h.LossSoFar() // a loss since then belongs to another hold
	}
	over, loss := h.IsOver()
	switch {
	case loss != nil:
		err = loss
	case over:
	case who.Ctx.Err() != nil:
		err = gaveUp(m, who, nil, lua.AcquireReply{})
	default:
		return true, nil
	}
	h.Tenure.ReleaseCallSlot()
	return false, err
}
