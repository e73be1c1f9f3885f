package engine

import (
	"context"
	"errors"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/lua"
	"github.com/go-rlock/rlock/pubsub"
)

// A request asks Redis for a level of a hold, on behalf of a caller who may leave before the answer comes:
//
//	state      event                        next
//	sent       reply                        answered: the caller goes on
//	           error that may pass          sent again, for 3 s after the first error, or until the caller's limit
//	           other error, 3 s over        answered: the caller fails
//	           ctx, limit or Close          left: the caller fails at once, with ErrUnreachable if there was time for an answer
//	left       reply that grants            rolled back: the level is released
//	           reply that does not          rolled back
//	           error                        rolled back: if the call may have run, the field is swept
//
// The script recognises a repeat, and a field belongs to one hold, so only the end matters: nothing is left in Redis that
// its caller does not know of.

// Caller is who called Lock, and how long it waits.
type Caller struct {
	Ctx   context.Context
	Outer context.Context // that the user has given; ctx may be one inside of it
	Began time.Time
	Wait  time.Time // end of the waiting; zero: only ctx ends it
	Limit time.Time // of an attempt that is under way, not before wait; zero: only ctx ends it
	Once  bool      // no waiting: one attempt
	Trace Tracer    // nil: nobody wants to know
}

// CallerNow is the caller of a Lock that is called now.
func CallerNow(ctx context.Context) Caller { return Caller{Ctx: ctx, Outer: ctx, Began: time.Now()} }

// UpTo bounds the waiting. Its first attempt is given the least at least.
func (c Caller) UpTo(wait, least time.Duration) Caller {
	c.Once, c.Limit = wait <= 0, c.Began.Add(max(wait, least))
	if !c.Once {
		c.Wait = c.Began.Add(wait)
	}
	return c
}

// LeaveTo runs f, which unlocks what the caller has got and has no use for, for as long as the caller stays: until ctx is done, or the
// limit of an attempt is over. f goes on then, and ends as any unlock does. Close of the Clients concerned, which have been started, waits
// for it.
func (c Caller) LeaveTo(f func(), clients ...*Engine) {
	if !calls.CanLeave(c.Ctx, c.Limit) {
		f()
		return
	}
	for _, c := range clients {
		c.Calls.Also()
	}
	ended, left := make(chan any), make(chan struct{})
	defer close(left)
	go func() { // ends with f
		defer func() {
			for _, c := range clients {
				c.Calls.Ended()
			}
		}()
		defer func() {
			v := recover() // what a Trace panics with is for the caller, if that is still here
			select {
			case ended <- v:
			case <-left:
				if v != nil {
					clients[0].Options.Tell.Panicked(v, debug.Stack())
				}
			}
		}()
		f()
	}()
	var over <-chan time.Time
	if !c.Limit.IsZero() {
		timer := time.NewTimer(time.Until(c.Limit))
		defer timer.Stop()
		over = timer.C
	}
	select {
	case v := <-ended:
		if v != nil {
			panic(v)
		}
	case <-c.Ctx.Done():
	case <-over:
	}
}

// Waits tells that the Lock waits from here on.
func (c Caller) Waits(holder string) {
	if c.Trace != nil {
		c.Trace.Waits(holder)
	}
}

// Stopped is closed when the Lock is to stop waiting, though it has time.
func (c Caller) Stopped() <-chan struct{} {
	if c.Trace == nil {
		return nil
	}
	return c.Trace.Over()
}

// Took tells how the lock was got.
func (c Caller) Took(p Path) {
	if c.Trace != nil {
		c.Trace.Took(p)
	}
}

// MinAttempt is what the first attempt of a TryLock is given at least, and what the replicas may take on top of it, so that one
// with a wait shorter than the way to Redis still asks once.
func (c *Engine) MinAttempt() time.Duration {
	return time.Second + c.ReplicaTimeout()
}

// ReplicaTimeout is how long an acquire may wait for the replicas.
func (c *Engine) ReplicaTimeout() time.Duration {
	if c.Options.Replicas == 0 {
		return 0
	}
	return c.Options.ReplicaTimeout
}

// AcquireRequest is what a caller asks Redis for.
type AcquireRequest struct {
	Caller
	Spec            *Spec
	Tenure          *Tenure
	Count           int                   // the levels with the one that is asked for
	within          *hold                 // of the other side of a read/write lock, which lets it in; nil: none
	enqueue         bool                  // the queue in Redis, if the lock is held; or leaves a mark, or looks at those of others
	hasGrantChannel bool                  // with enqueue: on this process's own channel
	queued          bool                  // the waiter of a Lock is in the queue of the process
	warned          bool                  // that it waits for its own caller
	failed          atomic.Pointer[error] // what went wrong the last time, if it did
	contexts        calls.Contexts        // of its calls
}

// rollbacker ends a request whose caller has left, when there is an answer.
type rollbacker interface{ rollBack(AcquireResult, error) }

// ask returns the answer. If the caller leaves first, left is true, and the rollbacker gets the answer instead; the error is
// what went wrong so far.
func (q *AcquireRequest) ask(u rollbacker) (a AcquireResult, left bool, err error) {
	if q.failed.Load() != nil {
		q.failed.Store(nil) // of an earlier ask
	}
	if !calls.CanLeave(q.Ctx, q.Limit) { // spares the closures below
		a, err = q.Send(q.Spec.Engine.Calls.Done())
		q.Spec.Engine.Calls.Answered(q.Spec.Slot, err)
		return a, false, err
	}
	a, left, err = Leavable(q.Ctx, q.Spec, q.Limit, q.Send, u.rollBack)
	if failed := q.failed.Load(); left && failed != nil {
		err = *failed
	}
	return a, left, err
}

// Send asks Redis, again if something went wrong that may pass. It stops early when the caller has left.
func (q *AcquireRequest) Send(left <-chan struct{}) (AcquireResult, error) {
	m, t, c := q.Spec, q.Tenure, q.Spec.Engine
	args := m.acquireArgs(t, q.Count)
	if q.within != nil {
		args.Within = q.within.tenure.Field()
	}
	switch {
	case m.Kind.Queueing == kinds.PerWaiter && q.Count == 1:
		args.Fair, args.Join, args.Publish = m.fair(), q.enqueue, lua.Publish(c.KnownChannel(m))
	case q.enqueue:
		args.Queue, args.GrantLease, args.Listens, args.Short = m.queueKey(), c.grantLease(), q.hasGrantChannel, m.isShort()
		args.Publish = lua.Publish(c.KnownChannel(m))
	}
	if q.Count == 1 { // a re-entry adds nothing that a failover could let somebody else have
		args.Replicas, args.ReplicaWait = c.Options.Replicas, c.Options.ReplicaTimeout
		args.Connections = &c.connections
	}
	again := calls.Retry{Until: q.Limit, Least: calls.MinTries}
	for {
		sent := time.Now()
		ctx := q.contexts.Next(q.Ctx, c.Calls, sent, args.ReplicaWait)
		reply, err := lua.Acquire(ctx, c.rdb, args)
		repeated := args.Replicas == 0 && ctx.IsRepeated() // on a connection of its own rueidis repeats nothing
		switch {
		case q.Count == 1:
			if err != nil && calls.MayHaveRun(err) || repeated {
				t.lateAcquire(args.Lease)
			}
		case m.TTL() > t.Spec.TTL():
			t.UnresolvedUntil(time.Now().Add(args.Lease)) // if its end is not known, this one counts
		}
		if err == nil {
			if reply.NoQueue {
				c.forbidden(args.Side).Store(true)
			}
			if (args.Queue != "" || args.Fair.List != "") && !reply.WithoutQueue && reply.Status == lua.Acquired {
				t.queued = nil // not after a refusal: a late grant would be trusted from the next call on
			}
			if q.Count == 1 && t.Unresolved != nil {
				t.Unresolved.OutcomeUnknown = false
			}
			return AcquireResult{AcquireReply: reply, Sent: sent}, nil
		}
		failed := err // of its own, so that no other call allocates
		q.failed.Store(&failed)
		if !again.Wait(err, left, c.Calls.Done()) {
			return AcquireResult{}, err
		}
	}
}

func (m *Spec) acquireArgs(t *Tenure, count int) lua.AcquireArgs {
	args := lua.AcquireArgs{Name: m.Key, Side: m.Kind.Side, Owner: t.Field(), Lease: t.Spec.expiry(m.TTL()), Count: count}
	if !t.hasToken() { // a hold has one token
		args.Fence = m.fenceOf()
	}
	return args
}

// gaveUp is the error of a caller that got nothing, because its time is over (no error, or pubsub.ErrExpired) or
// because of what went wrong. refusal is the last reply that said who holds the lock.
func (m *Spec) gaveUp(who Caller, err error, refusal lua.AcquireReply) error {
	errs := m.Engine.errs
	switch timeUp := who.Ctx.Err() != nil || who.Once || !who.Wait.IsZero() && !time.Now().Before(who.Wait); {
	case m.Engine.Calls.IsClosed(), m.Engine.IsTold(), errors.Is(err, pubsub.ErrClosed), errors.Is(err, errs.Closed):
		return m.closed()
	case errors.Is(err, errs.Lost):
		return err
	case errors.Is(err, errs.NotReplicated):
		return m.Fail(err)
	case err == nil, errors.Is(err, pubsub.ErrExpired):
		if refusal.Status == 0 && m.Engine.Calls.IsSilent(m.Slot) { // it stood behind one that got no answer
			return m.notAcquired(who, refusal, errs.Unreachable(calls.ErrSilent))
		}
		return m.notAcquired(who, refusal)
	case errors.Is(err, lua.ErrNoConnection):
		return m.Fail(errs.NotReplicated, err)
	case timeUp && calls.MayPass(err):
		return m.notAcquired(who, lua.AcquireReply{}, errs.Unreachable(err))
	}
	return m.unreachable(err)
}

// notAcquired is the error of a wait that ended.
func (m *Spec) notAcquired(who Caller, refusal lua.AcquireReply, causes ...error) error {
	c := m.Engine
	return c.errs.NotAcquired(NotAcquired{
		Ctx: who.Ctx, Name: m.Name, Began: who.Began, Causes: causes,
		Holder: refusal.Holder, TTL: refusal.TTL, Other: refusal.Other,
		Carried: c.IsOwn(refusal.Holder) && Carries(who.Ctx, refusal.Holder),
		Self:    c.isSelf(who.Outer, refusal.Holder),
	})
}
