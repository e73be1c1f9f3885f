package engine

import (
	"errors"
	"strings"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/internal/tenure"
	"github.com/go-rlock/rlock/lua"
	"github.com/go-rlock/rlock/pubsub"
)

// An attempt is a Lock on its way to a hold. Under a ctx that carries no hold of the lock it competes: it queues in its process, asks Redis
// when it has the turn, and waits in the queue again if the lock is held.
//
//	state     event                                    next
//	waiting   turn: nobody before it, a message,
//	          a timer, a new connection                asking
//	          claimed: an unlock here hands off        entered; or waiting or asking, if that came to nothing
//	          ctx, time over, Close                    out; if claimed, the claimant finishes for it
//	asking    granted                                  entered
//	          held by another                          waiting; TryLock(0): out
//	          refused, or unanswered for too long      out; with WithWaitForRedis it asks again
//	          ctx, limit, Close                        out; the request is rolled back when it is answered
//	entered   the lease lasts                          a live hold
//	          answered after the lease, too few
//	          replicas, Close                          out; given back
//
// Each way out leaves the queue, passes the turn on if it had it, and sweeps what is unresolved.
//
// How it ends, and what becomes of a lock that comes when its caller leaves, is in outcome.go. When it leaves is here: a bounded wait leaves
// the line a little early, and waits out the rest.
//
// Locks of one Client, and on a cluster of one slot, can be taken by one call, all or none (TakeTogether). Their attempts are a chain,
// whose first one asks, enters and leaves for all. Each has a waiter, a tenure and a level of its own, and is under the same rules as if it
// were alone.
//
// Other Locks share the ways of an attempt, without its queue: a reader within the writer asks, and enters; a re-entry asks for one more
// level of a tenure that is live. A Lock for a share asks without the turn if nobody waits, or if the one before it got a share.

// Attempt is a Lock of one lock, or its part in one of several.
type Attempt struct {
	AcquireRequest                      // its tenure is nil until the first request for it
	next           *Attempt             // the next lock taken by the same call; nil: none, as for most
	waiter         *pubsub.Waiter       // its place in the process's queue, or the last one; nil: it had none
	first          pubsub.Waiter        // the first of them, embedded to save an allocation
	queued         bool                 // the waiter is in the process's queue
	warned         bool                 // the warning about waiting for its own caller was given
	leads          bool                 // others may share its tenure
	waited         bool                 // watchers know of it
	apart          bool                 // Redis refused the call for several locks: calls for each alone show which lock caused that
	refused        *lua.AcquireReply    // the last refusal naming the holder; nil: none, as for most waiters in line
	place          *tenure.PlaceKeeper  // of its own in the queue in Redis; nil: none that is known of
	delivered      tenure.AcquireResult // of its last request, or what another attempt got for it: its claimant, or the first of its chain
	level          *tenure.Level        // the level it opened
}

// compete takes the lock for a new owner. If within is not nil, its reader becomes the writer.
func compete(m *tenure.Lock, who tenure.Caller, within *tenure.Hold) (*tenure.Level, error) {
	l := &Attempt{AcquireRequest: AcquireRequest{Caller: who, Lock: m, Count: 1, within: within}}
	if err := l.begins(); err != nil {
		return nil, err
	}
	if m.Client.Kept.Load() != 0 {
		if o := l.continueKept(); !o.IsOver() {
			return o.Level, o.Err
		}
	}
	defer func() { // also if a Trace panics
		if l.waited {
			for w := range watchers(m.Client) {
				w.WaitOver(l)
			}
		}
	}()
	return l.compete()
}

// begins returns nil, or the reason not to start.
func (l *Attempt) begins() error {
	m, c := l.Lock, l.Lock.Client
	switch {
	case l.within == nil && c.IsShut():
		return m.FailClosed()
	case l.Ctx.Err() != nil:
		return l.Failure(nil)
	case c.Cluster.IsUnknown():
		if known, err := c.Cluster.Learn(l.Ctx, l.Limit, m); !known {
			return l.Failure(err)
		}
		if err := m.Fits(); err != nil {
			return m.Fail(err)
		}
	}
	return nil
}

// Connect learns of the Redis of a lock, as the first Lock does. The caller has started a call.
func Connect(m *tenure.Lock, who tenure.Caller) error {
	return (&Attempt{AcquireRequest: AcquireRequest{Caller: who, Lock: m}}).begins()
}

// compete runs the states above until the attempt is over. Only the process's first waiter asks Redis, except for waiters that may get
// a share.
func (l *Attempt) compete() (*tenure.Level, error) {
	for {
		o, turn := l.waitForTurn()
		if turn {
			o = l.askInTurn()
		}
		if !o.IsOver() {
			return o.Level, o.Err
		}
	}
}

// waitForTurn queues until the attempt has the turn, or gets the lock without it. A lock given to it may be over.
func (l *Attempt) waitForTurn() (o tenure.Outcome, turn bool) {
	if !l.queued {
		if l.Lock.Shares {
			if o = l.share(); !o.IsOver() {
				return o, false
			}
		}
		switch turn = l.join(l.Once); {
		case turn:
			return o, true
		case l.Once:
			return failed(l.Failure(nil)), false
		}
	}
	granted, gone, err := l.awaitTurn()
	return l.afterWait(granted, gone, err)
}

// afterWait goes on when the wait for the turn is over. It is apart from that, so that its frame is no part of a waiter's stack, which
// would be twice as large.
//
//go:noinline
func (l *Attempt) afterWait(granted, gone bool, err error) (o tenure.Outcome, turn bool) {
	if gone && l.leaveInTime(errors.Is(err, pubsub.ErrExpired)) {
		return failed(l.Failure(err)), false
	}
	if !granted && !gone { // if gone, it was too late to leave
		return o, true
	}
	l.queued = false
	g := l.waiter.Given()
	if g == nil {
		return l.enterDelivered(), false
	}
	a, usable := l.given(g)
	if !usable {
		return o, true
	}
	if o = l.enter(a); o.Level != nil {
		l.Took(tenure.PathGrant)
		l.Lock.Client.Counts.Grants.Add(1)
	}
	return o, false
}

// askInTurn asks Redis. The attempt goes on, and waits, if another owner holds the lock.
func (l *Attempt) askInTurn() tenure.Outcome {
	for {
		l.needsTenure()
		l.enqueue = l.queued && l.enqueues()
		a, left, err := l.ask()
		switch {
		case left:
			return failed(l.Failure(err))
		case err != nil:
			goesOn := calls.IsTransient(err) && l.GoesOn() && !l.Lock.Client.IsShut()
			if calls.IsTransient(err) && l.queued { // it failed for longer than other waiters should wait for their turn
				l.waiter.Unanswered(err)
			}
			if goesOn { // with the same owner, in the same place
				continue
			}
			l.withdraw()
			return failed(l.Failure(err))
		case a.Status == lua.Acquired:
			if !l.queued {
				l.Tenure.Queued = nil // the grant has taken it out
			}
			return l.enter(a)
		case a.Status == lua.Lost:
			l.withdraw()
			return failed(l.readerGone())
		}
		refusal := a.AcquireReply
		l.refused = &refusal
		l.Caller = l.Caller.Answered()
		l.suspect()
		switch {
		case l.Once:
			l.refusedOnce()
			l.withdraw()
			return failed(l.Failure(nil))
		case !l.queued: // an expired grant: this process does not have the lock
			l.withdraw()
			l.Tenure = nil
			return tenure.Outcome{}
		case l.Lock.Kind.Queueing != kinds.PerWaiter || l.keepsPlace(a):
			l.saw(a)
			l.waiter.Held(l.sleeps(a), a.Joined)
			return tenure.Outcome{}
		}
		l.leavePlace() // it is gone in Redis: the next request is for a new one
		l.Tenure.SweepIfUnresolved()
		l.Tenure = nil
	}
}

// unmarkedLook is how often an upgrade asks whose mark Redis refuses.
const unmarkedLook = time.Second

// sleeps returns for how long a refused attempt sleeps, unless it is woken; negative: the lock has no expiry. The last other reader wakes
// an upgrade only by its mark.
func (l *Attempt) sleeps(a tenure.AcquireResult) time.Duration {
	if l.within != nil && l.enqueue && !a.Joined && (a.TTL < 0 || a.TTL > unmarkedLook) {
		return unmarkedLook
	}
	return a.TTL
}

// saw notes who else wants the lock, for the order in which processes ask.
func (l *Attempt) saw(a tenure.AcquireResult) {
	client := ""
	if owner, writes := strings.CutSuffix(a.Holder, kinds.WriterSuffix); writes && !l.Lock.Client.IsOwn(a.Holder) {
		client, _, _ = strings.Cut(owner, ":")
	}
	l.waiter.Saw(a.Place, client)
}

// enterDelivered enters with the result another goroutine of this process got for it.
func (l *Attempt) enterDelivered() tenure.Outcome {
	run := l.Tenure.Run
	o := l.enter(l.delivered)
	switch {
	case o.Level == nil:
	case l.delivered.Path == tenure.LetIn:
		l.isShared()
	default:
		if l.Trace != nil {
			l.Trace.HandedBy(run.Section())
		}
		l.Lock.Client.Counts.HandOffs.Add(1)
	}
	return o
}

// needsTenure makes the tenure before the first request.
func (l *Attempt) needsTenure() {
	if l.Tenure == nil {
		l.Tenure = l.Lock.NewTenure()
	}
}

// readerGone returns the error of an upgrade whose reader is missing in Redis. A concurrent unlock may have released the reader;
// otherwise it was lost.
func (l *Attempt) readerGone() error {
	switch ok, err := takeCalls(l.Lock, l.Caller, l.within); {
	case err != nil:
		return err
	case !ok:
		return l.Lock.Fail(l.Lock.Client.Errors.Upgrade, errors.New("the reader was unlocked meanwhile"))
	}
	defer l.within.Tenure.ReleaseCallSlot()
	l.within.Tenure.Gone()
	return l.within.LossSoFar()
}

// suspect warns of a Lock that may wait for its own caller, because the section's ctx was not passed on.
func (l *Attempt) suspect() {
	c, waited, holder := l.Lock.Client, time.Since(l.Began), l.Refusal().Holder
	if !l.warned && waited >= c.Options.WatchdogTimeout && c.IsSelf(l.Outer, holder) {
		l.warned = true
		c.Options.Tell.Warn("rlock: a Lock waits for a hold of this client that was taken under the same ctx; "+
			"does its caller already hold it, without passing on the section's ctx?",
			"name", l.Lock.Name, "owner", holder, "waited", waited)
	}
}

// join enters the process's queue. With onlyFirst, it enters only if the queue is empty.
func (l *Attempt) join(onlyFirst bool) (turn bool) {
	m := l.Lock
	if l.waiter == nil {
		l.waiter = &l.first
	} else {
		l.waiter = new(pubsub.Waiter) // a Watcher may look at the one before
	}
	*l.waiter = pubsub.Waiter{Value: l, Until: l.leaves(), Shared: m.Kind.Side == lua.Reader, Ahead: l.within != nil, Persists: l.Persists}
	if end, ok := l.Ctx.Deadline(); ok {
		l.waiter.Hurry = end.UnixMilli()
	}
	if onlyFirst {
		l.queued = m.Client.Hub.JoinFirst(l.waiter, m.Waiters())
		return l.queued
	}
	l.queued = true
	l.waiter.Joint = m.Shares && l.mayShare() && !l.Limit.After(l.Wait) // otherwise it asks itself, without time to wait for another's answer
	return m.Client.Hub.Join(l.waiter, m.Waiters())
}

// enqueues reports whether a refused request leaves a place or mark in Redis, or heeds those of others. It does not if a grant could
// not reach this process.
func (l *Attempt) enqueues() bool {
	switch l.Lock.Kind.Queueing {
	case kinds.PerProcess:
		return !l.Once && (l.Tenure.Queued != nil || l.waiter.Listens()) && l.Lock.QueueKey() != "" && l.takePlace(time.Now())
	case kinds.PerWaiter: // an owner joins once
		return !l.Once && l.Tenure.Queued == nil && l.waiter.Listens() && l.takePlace(time.Now())
	case kinds.LeavesMark:
		return l.leavesMark()
	case kinds.HeedsMarks: // those that come together enter together
		return l.Lock.QueueKey() != "" && !l.waiter.Follows()
	}
	return false
}

// Inherit makes the Lock continue with the owner, and the place in Redis, of another Lock that gives up, so that the process keeps its
// place. The two swap tenures, with their unresolved calls. This Lock sleeps, and reads its tenure only under the hub's mutex.
func (l *Attempt) Inherit(from any) bool {
	other := from.(*Attempt) //nolint:errcheck // no other value is ever set
	if l.Lock.Kind != other.Lock.Kind || l.Lock.Short != other.Lock.Short || l.Lock.Mark() != other.Lock.Mark() || other.Tenure.Unresolved != nil {
		return false
	}
	if l.Tenure, other.Tenure = other.Tenure, l.Tenure; other.Tenure != nil {
		other.Tenure.Lock = other.Lock
	}
	l.Tenure.Lock = l.Lock
	return true
}

// leavesMark is enqueues for a writer, whose mark readers heed.
func (l *Attempt) leavesMark() bool {
	m := l.Lock
	l.hasGrantChannel = l.waiter.Listens()
	if l.Once || m.QueueKey() == "" || l.Tenure.Queued == nil && !l.hasGrantChannel && m.SeesProcesses() {
		return false
	}
	l.Tenure.MayQueue(time.Now())
	return true
}

// Refusal returns the last refusal, or a zero reply.
func (l *Attempt) Refusal() lua.AcquireReply {
	if l.refused == nil {
		return lua.AcquireReply{}
	}
	return *l.refused
}

// Failure returns the error of a Lock without a grant. It is not inlined: see afterWait.
//
//go:noinline
func (l *Attempt) Failure(err error) error { return gaveUp(l.Lock, l.Caller, err, l.Refusal()) }

func (l *Attempt) awaitTurn() (granted, gone bool, err error) {
	fails := l.watched()
	holder := ""
	if l.refused != nil {
		holder = l.refused.Holder
	}
	l.Waits(holder)
	l.Lock.Client.FreeKept(l.Lock.Key) // since it looked
	select {
	case <-l.waiter.Turn():
		granted, err = l.waiter.News()
		return granted, err != nil, err
	case <-l.Ctx.Done():
	case <-l.Stopped():
	case err := <-fails:
		return false, true, watcherError{err}
	}
	return false, true, nil
}

// leaveEarlyBy is how long before the end of its wait a TryLock leaves the line: at most this, or a quarter of the wait. So its place in Redis
// is usually gone when it returns. Otherwise an unlock could still grant it the lock, and another TryLock(0) would find the lock taken
// without a holder.
const leaveEarlyBy = 10 * time.Millisecond

// leaves returns when a waiter gives up; zero: only ctx ends its wait.
func (l *Attempt) leaves() time.Time {
	if l.Wait.IsZero() {
		return l.Wait
	}
	return l.Wait.Add(-max(min(time.Until(l.Wait)/4, leaveEarlyBy), 0))
}

// waitOut waits for the end of the wait after leaving early.
func (l *Attempt) waitOut() {
	timer := time.NewTimer(time.Until(l.Wait))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-l.Ctx.Done():
	case <-l.Lock.Client.Calls.Done():
	}
}
