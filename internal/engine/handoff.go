package engine

import (
	"time"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/sweep"
	"github.com/go-rlock/rlock/internal/tenure"
	"github.com/go-rlock/rlock/lua"
	"github.com/go-rlock/rlock/pubsub"
)

// An unlock hands the lock to the next waiter. There are two queues: each process has one for its goroutines, and Redis has one for
// waiting processes. A process has at most one place in Redis, under the owner its first goroutine asked for. One script call moves the
// lock to the next goroutine of the same process. When that process's run is over, the call moves it to the head of the queue in Redis
// and wakes only that process.
//
// The unlocking goroutine is the claimant: during its call it acts for the next waiter of its process. It has the waiter's turn and
// makes the calls for its hold (I1). A waiter that gives up meanwhile returns at once, and its claimant finishes the work.
//
// Within a process even that call is saved while the tenure lasts and the next hold needs the same state in Redis: the unlock passes
// the tenure on in memory. Redis keeps its state and publishes nothing. HandOff bounds the run of such sections; the call at its end
// gives way to other processes.
//
// If the reply is lost, the following release decides. If the owner still had the lock, there was no hand-off, and there can be none
// later. If not, the waiter asks Redis whether it has the lock.

// passOn passes the tenure of h, which has no open levels to the process's next waiter, or has it kept for the next Lock (Cache). It
// reports false, with the hold unchanged, if there is no waiter that needs the same state, if the run is over, or if a call is under
// way. It also reports false if a call is unresolved or too little of the lease is left.
func passOn(t *tenure.Tenure, h *tenure.Hold, q pubsub.Queue, now time.Time) bool {
	c := t.Lock.Client
	if h.First.Lock.Linger == 0 && !c.Hub.IsAwaited(q) {
		return false
	}
	left := c.Leases.Until(&t.Lease).Sub(now)
	if left < t.FirstLease/3 || !h.Unlink() {
		return false
	}
	if !c.Hub.Pass(q, h, left) && !h.IsKept() {
		h.Relink()
		return false
	}
	c.HoldEnds()
	return true
}

// Take makes the Lock continue the tenure of an ending hold. It reports false if that tenure does not fit, or if an earlier call of the
// Lock is unresolved. The Lock sleeps, and reads its tenure only under the hub's mutex.
func (l *Attempt) Take(from any, outsiders bool) bool {
	h := from.(*tenure.Hold) //nolint:errcheck // no other value is ever given
	t, now, o := h.Tenure, time.Now(), l.Lock.Client.Options.HandOff
	if outsiders {
		o = o.BesideOutsiders()
	}
	if l.Lock.Kind != t.Lock.Kind || !l.Lock.Passes || !l.Lock.CanHave(t) || !l.Tenure.IsClean() || t.Run.Over(o, now) {
		return false
	}
	handed := tenure.AcquireResult{Path: tenure.Passed}
	if l.Lock.Kind.Fence != nil {
		token, ok := t.Run.Token()
		if !ok {
			return false
		}
		handed.Token = token
	}
	t.Run = t.Run.Next(true, now)
	if l.Trace != nil {
		t.Run.By = &h.First
	}
	l.Tenure, l.delivered = t, handed
	return true
}

// claim reports the hold's end to the hub and claims the next waiter of this process, if there is one.
func (u *unlocking) claim(now time.Time) {
	t, m := u.tenure, u.tenure.Lock
	c := m.Client
	bound := c.Options.HandOff
	switch {
	case m.Kind.Side == lua.Writer:
		u.toAll = true
		u.args.Listens = c.Hub.EndingForAll(u.waiters, 0)
		return
	case !m.Kind.PlainScripts || !u.args.Taken.IsZero():
		c.Hub.Ending(u.waiters)
		return
	case !c.HandsOff:
		u.toAll = true
		c.Hub.EndingForAll(u.waiters, bound.For)
		return
	case u.args.Key == "" && t.Run.Over(bound, now):
		u.toAll = true
		c.Hub.EndingForAll(u.waiters, 0)
		return
	}
	w, outsiders := c.Hub.Claim(u.waiters)
	if w == nil {
		return
	}
	if outsiders && u.args.Key != "" { // outsiders do not hand off
		bound = bound.BesideOutsiders()
	}
	insideRun := !t.Run.Over(bound, now)
	next := w.Value.(*Attempt) //nolint:errcheck // no other value is ever set
	if !insideRun && !next.takePlace(now) {
		next.unclaim()
		return
	}
	u.next, u.insideRun = next, insideRun
}

// takePlace prepares for the call that puts the waiter in the queue in Redis.
func (l *Attempt) takePlace(now time.Time) bool {
	l.needsTenure()
	if !l.waiter.TakePlace(l.Tenure.Field()) {
		return false
	}
	l.Tenure.MayQueue(now)
	return true
}

func (l *Attempt) takesOver(args lua.ReleaseArgs, insideRun bool) lua.ReleaseArgs {
	m := l.Lock
	l.needsTenure()
	args.Fence, args.Lease, args.Next, args.Stay = m.Fence, m.Expires, l.Tenure.Field(), insideRun
	args.Short = m.Short
	if args.Fence != "" && m.Passes {
		args.Spare = l.waiter.Behind(m.Client.Options.HandOff.Most)
	}
	return args
}

// handedOff handles the reply to such a release. Unless it failed, the claim is over.
func handedOff(t *tenure.Tenure, next *Attempt, insideRun bool, sent time.Time, reply lua.ReleaseReply, err error, repeated bool) tenure.ReleaseResult {
	c, m := t.Lock.Client, next.Lock
	switch {
	case err == nil && reply.Status == lua.NotHeld && repeated:
		return tenure.ReleaseResult{Late: true, Err: calls.ErrRepeated}
	case err != nil:
		return tenure.ReleaseResult{Late: calls.MayHaveRun(err), Err: err}
	case reply.Status == lua.NotHeld:
		next.unclaim() // the owner is unknown
		return tenure.ReleaseResult{}
	}
	var ok bool
	if reply.Status == lua.HandedOff {
		next.Tenure.Run = t.Run.Next(insideRun, sent)
		next.Tenure.Run.Tokens = tenure.Tokens{Next: reply.Token + 1, Left: reply.Spare}
		next.delivered = tenure.AcquireResult{AcquireReply: lua.AcquireReply{Status: lua.Acquired, Token: reply.Token}, Sent: sent}
		if !reply.WithoutQueue {
			next.Tenure.Queued = nil
		}
		if next.Trace != nil {
			next.Tenure.Run.By = t.Section()
		}
		ok = next.waiter.Grant(m.Expires)
	} else {
		ok = next.waiter.Queued(c.GrantLease)
	}
	if !ok { // it has given up
		// The unlock succeeded and need not wait. It ends when Redis has answered, or with the call's time-out.
		c.Calls.Go(func() { next.rollBack(next.delivered) })
	}
	return tenure.ReleaseResult{Held: true}
}

// notHandedOff ends the claim after a failed hand-off, once the result of the release is known.
func (l *Attempt) notHandedOff(r tenure.ReleaseResult) {
	if r.Late && r.Err != nil { // it may still run
		l.Tenure.LateAcquire(l.Lock.Expires)
	} else { // also after a refused script, which may have run in part
		l.Tenure.UnresolvedUntil(time.Now().Add(min(l.Lock.Expires, sweep.Most))).OutcomeUnknown = true
	}
	l.unclaim()
}

// unclaim ends a claim with an unknown result.
func (l *Attempt) unclaim() {
	if !l.waiter.Unclaim() {
		l.rollBack(tenure.AcquireResult{})
	}
}

// given turns a grant by another process into a result. The hold is trusted for the grant's lease, counted from when this process asked
// for its place or last saw it. If too little is left, or data is missing, usable is false: Redis must be asked first, and will confirm
// the lock is ours.
func (l *Attempt) given(g *pubsub.Grant) (a tenure.AcquireResult, usable bool) {
	m, t := l.Lock, l.Tenure
	a = tenure.AcquireResult{Sent: l.queuedAt(), Lease: min(g.Lease, m.TTL)}
	a.Status, a.Token = lua.Acquired, max(g.Token, 0)
	usable = !g.Crossed && m.Grants && (g.Token >= 0 || m.Kind.Fence == nil) &&
		time.Until(a.Sent.Add(a.Lease)) > a.Lease/2
	if usable {
		t.Queued = nil // it is out of the queue
	}
	return a, usable
}
