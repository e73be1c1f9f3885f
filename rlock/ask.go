package rlock

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

// caller is who called Lock, and how long it waits.
type caller struct {
	ctx   context.Context
	outer context.Context // that the user has given; ctx may be one inside of it
	began time.Time
	wait  time.Time // end of the waiting; zero: only ctx ends it
	limit time.Time // of an attempt that is under way, not before wait; zero: only ctx ends it
	once  bool      // no waiting: one attempt
	trace tracer    // nil: nobody wants to know
}

// callerNow is the caller of a Lock that is called now.
func callerNow(ctx context.Context) caller { return caller{ctx: ctx, outer: ctx, began: time.Now()} }

// upTo bounds the waiting. Its first attempt is given the least at least.
func (c caller) upTo(wait, least time.Duration) caller {
	c.once, c.limit = wait <= 0, c.began.Add(max(wait, least))
	if !c.once {
		c.wait = c.began.Add(wait)
	}
	return c
}

// leaveTo runs f, which unlocks what the caller has got and has no use for, for as long as the caller stays: until ctx is done, or the
// limit of an attempt is over. f goes on then, and ends as any unlock does. Close of the Clients concerned, which have been started, waits
// for it.
func (c caller) leaveTo(f func(), clients ...*engine) {
	if !calls.CanLeave(c.ctx, c.limit) {
		f()
		return
	}
	for _, c := range clients {
		c.calls.Also()
	}
	ended, left := make(chan any), make(chan struct{})
	defer close(left)
	go func() { // ends with f
		defer func() {
			for _, c := range clients {
				c.calls.Ended()
			}
		}()
		defer func() {
			v := recover() // what a Trace panics with is for the caller, if that is still here
			select {
			case ended <- v:
			case <-left:
				if v != nil {
					clients[0].options.Tell.Panicked(v, debug.Stack())
				}
			}
		}()
		f()
	}()
	var over <-chan time.Time
	if !c.limit.IsZero() {
		timer := time.NewTimer(time.Until(c.limit))
		defer timer.Stop()
		over = timer.C
	}
	select {
	case v := <-ended:
		if v != nil {
			panic(v)
		}
	case <-c.ctx.Done():
	case <-over:
	}
}

// minAttempt is what the first attempt of a TryLock is given at least, and what the replicas may take on top of it, so that one
// with a wait shorter than the way to Redis still asks once.
func (c *engine) minAttempt() time.Duration {
	return time.Second + c.replicaTimeout()
}

// replicaTimeout is how long an acquire may wait for the replicas.
func (c *engine) replicaTimeout() time.Duration {
	if c.options.Replicas == 0 {
		return 0
	}
	return c.options.ReplicaTimeout
}

// acquireRequest is what a caller asks Redis for.
type acquireRequest struct {
	caller
	spec            *spec
	tenure          *tenure
	count           int                   // the levels with the one that is asked for
	within          *hold                 // of the other side of a read/write lock, which lets it in; nil: none
	enqueue         bool                  // the queue in Redis, if the lock is held; or leaves a mark, or looks at those of others
	hasGrantChannel bool                  // with enqueue: on this process's own channel
	queued          bool                  // the waiter of a Lock is in the queue of the process
	warned          bool                  // that it waits for its own caller
	failed          atomic.Pointer[error] // what went wrong the last time, if it did
}

// acquireResult is what Redis replied to a request, or what the process itself can say in its place.
type acquireResult struct {
	lua.AcquireReply
	how   how
	sent  time.Time     // just before the call that was answered: the lease counts from here (G2)
	lease time.Duration // 0: what was asked for
}

// how a level is had.
type how int8

const (
	byCall   how = iota // Redis has answered, or another process has given the lock
	passed              // by the unlock before it: the tenure goes on
	shared              // beside the readers of the process: their tenure goes on
	letIn               // the same, by one of them: it goes on until this one has begun
	inMemory            // as one more of a hold
)

// granted reports whether the lock is theirs.
func (a *acquireResult) granted() bool { return a.Status == lua.Acquired }

// until is the end of the time for which what m was granted is trusted.
func (a *acquireResult) until(m *spec) time.Time {
	switch {
	case a.sent.IsZero():
		return time.Time{}
	case a.lease > 0:
		return a.sent.Add(a.lease)
	}
	return a.sent.Add(m.ttl())
}

// rollbacker ends a request whose caller has left, when there is an answer.
type rollbacker interface{ rollBack(acquireResult, error) }

// ask returns the answer. If the caller leaves first, left is true, and the rollbacker gets the answer instead; the error is
// what went wrong so far.
func (q *acquireRequest) ask(u rollbacker) (a acquireResult, left bool, err error) {
	if q.failed.Load() != nil {
		q.failed.Store(nil) // of an earlier ask
	}
	if !calls.CanLeave(q.ctx, q.limit) { // spares the closures below
		a, err = q.send(q.spec.engine.calls.Done())
		q.spec.engine.calls.Answered(q.spec.slot, err)
		return a, false, err
	}
	a, left, err = leavable(q.ctx, q.spec, q.limit, q.send, u.rollBack)
	if failed := q.failed.Load(); left && failed != nil {
		err = *failed
	}
	return a, left, err
}

// send asks Redis, again if something went wrong that may pass. It stops early when the caller has left.
func (q *acquireRequest) send(left <-chan struct{}) (acquireResult, error) {
	m, t, c := q.spec, q.tenure, q.spec.engine
	args := m.acquireArgs(t, q.count)
	if q.within != nil {
		args.Within = q.within.tenure.field()
	}
	switch {
	case m.kind.Queueing == kinds.PerWaiter && q.count == 1:
		args.Fair, args.Join, args.Publish = m.fair(), q.enqueue, lua.Publish(c.knownChannel(m))
	case q.enqueue:
		args.Queue, args.GrantLease, args.Listens, args.Short = m.queueKey(), c.grantLease(), q.hasGrantChannel, m.isShort()
		args.Publish = lua.Publish(c.knownChannel(m))
	}
	if q.count == 1 { // a re-entry adds nothing that a failover could let somebody else have
		args.Replicas, args.ReplicaWait = c.options.Replicas, c.options.ReplicaTimeout
		args.Connections = &c.connections
	}
	again := calls.Retry{Until: q.limit, Least: calls.MinTries}
	for {
		sent := time.Now()
		ctx := c.calls.Context(q.ctx, sent, args.ReplicaWait)
		reply, err := lua.Acquire(ctx, c.rdb, args)
		repeated := args.Replicas == 0 && ctx.IsRepeated() // on a connection of its own rueidis repeats nothing
		switch {
		case q.count == 1:
			if err != nil && calls.MayHaveRun(err) || repeated {
				t.lateAcquire(args.Lease)
			}
		case m.ttl() > t.spec.ttl():
			t.unresolvedUntil(time.Now().Add(args.Lease)) // if its end is not known, this one counts
		}
		if err == nil {
			if reply.NoQueue {
				c.forbidden(args.Side).Store(true)
			}
			if (args.Queue != "" || args.Fair.List != "") && !reply.WithoutQueue && reply.Status == lua.Acquired {
				t.queued = nil // not after a refusal: a late grant would be trusted from the next call on
			}
			if q.count == 1 && t.unresolved != nil {
				t.unresolved.OutcomeUnknown = false
			}
			return acquireResult{AcquireReply: reply, sent: sent}, nil
		}
		failed := err // of its own, so that no other call allocates
		q.failed.Store(&failed)
		if !again.Wait(err, left, c.calls.Done()) {
			return acquireResult{}, err
		}
	}
}

func (m *spec) acquireArgs(t *tenure, count int) lua.AcquireArgs {
	args := lua.AcquireArgs{Name: m.key, Side: m.kind.Side, Owner: t.field(), Lease: t.spec.expiry(m.ttl()), Count: count}
	if !t.hasToken() { // a hold has one token
		args.Fence = m.fenceOf()
	}
	return args
}

// gaveUp is the error of a caller that got nothing, because its time is over (no error, or pubsub.ErrExpired) or
// because of what went wrong. refusal is the last reply that said who holds the lock.
func (m *spec) gaveUp(who caller, err error, refusal lua.AcquireReply) error {
	errs := m.engine.errs
	switch timeUp := who.ctx.Err() != nil || who.once || !who.wait.IsZero() && !time.Now().Before(who.wait); {
	case m.engine.calls.IsClosed(), m.engine.isTold(), errors.Is(err, pubsub.ErrClosed), errors.Is(err, errs.Closed):
		return m.closed()
	case errors.Is(err, errs.Lost):
		return err
	case errors.Is(err, errs.NotReplicated):
		return m.fail(err)
	case err == nil, errors.Is(err, pubsub.ErrExpired):
		if refusal.Status == 0 && m.engine.calls.IsSilent(m.slot) { // it stood behind one that got no answer
			return m.notAcquired(who, refusal, errs.Unreachable(calls.ErrSilent))
		}
		return m.notAcquired(who, refusal)
	case errors.Is(err, lua.ErrNoConnection):
		return m.fail(errs.NotReplicated, err)
	case timeUp && calls.MayPass(err):
		return m.notAcquired(who, lua.AcquireReply{}, errs.Unreachable(err))
	}
	return m.unreachable(err)
}

// notAcquired is the error of a wait that ended.
func (m *spec) notAcquired(who caller, refusal lua.AcquireReply, causes ...error) error {
	c := m.engine
	return c.errs.NotAcquired(unacquired{
		Ctx: who.ctx, Name: m.name, Began: who.began, Causes: causes,
		Holder: refusal.Holder, TTL: refusal.TTL, Other: refusal.Other,
		Carried: c.isOwn(refusal.Holder) && carries(who.ctx, refusal.Holder),
		Self:    c.isSelf(who.outer, refusal.Holder),
	})
}
