package engine

import (
	"time"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/sweep"
	"github.com/go-rlock/rlock/lua"
	"github.com/go-rlock/rlock/pubsub"
)

// An unlock gives the hold to whoever is next. There are two queues: one in each process, of its goroutines, and one in Redis,
// of the processes that wait, where each has one place at most, under the owner that its first goroutine asked for. One script
// call moves the lock to the next goroutine of the same process, or, when that has had its run, to the first of the queue in
// Redis, whose process alone is told.
//
// The goroutine that unlocks, the claimant, stands for the next one of its process while its call is under way: it has the
// waiter's turn, and makes the calls for its hold (I1). A waiter that gives up meanwhile returns at once, and its
// claimant finishes for it.
//
// Inside of a process no call is needed either, as long as the tenure lasts and its next hold wants the same of Redis: the unlock passes
// the tenure on in memory. What Redis has stays as it is, and nobody there is told. A run of such sections is bounded (HandOff), and the
// call at its end gives way to other processes.
//
// If the reply is lost, the release that follows tells: if the owner still had the lock, it was not handed off,
// and cannot be any more; if it had not, the waiter asks whether it has it.

// passOn has the next waiter of the process go on with the tenure of a hold whose last level is closed, or keeps it for the next Lock (idle.go). It
// reports false if that cannot be: nobody waits, or not for the same, or the run is over; or a call is under way, or something is not known of the tenure, or too little is
// left of its lease. Then the hold is as it was.
func (h *hold) passOn() bool {
	t := h.tenure
	m := t.Spec
	c := m.Engine
	if !m.mayPassOn() {
		return false
	}
	left := time.Until(c.Leases.Until(&t.Lease))
	if left < t.given/3 || !h.detach() {
		return false
	}
	if !c.Hub.Pass(m.waiters(), h, left) && (h.first.spec.Linger == 0 || !h.keepsIdle()) {
		h.attach()
		return false
	}
	c.HoldEnds()
	return true
}

// detach takes the hold off its tenure, which nobody else then has to do with, but for a call for the count.
func (h *hold) detach() bool {
	t := h.tenure
	t.mu.Lock()
	defer t.mu.Unlock()
	busy := t.calling || t.callers != nil && len(t.callers.queue) > 0
	if busy || t.loss != nil || !t.isClean() || t.staysTaken() {
		return false
	}
	h.passed, h.count, t.hold = true, 0, nil
	return true
}

// attach undoes detach. What was lost meanwhile is a loss of the hold.
func (h *hold) attach() {
	t := h.tenure
	t.mu.Lock()
	h.passed, h.count, t.hold = false, 1, h
	loss := t.why()
	h.unlocked.loss.Store(t.loss)
	t.mu.Unlock()
	if loss != nil {
		t.Spec.Engine.lost(&h.first, t.Spec.Kind.Name, loss)
	}
}

// Take has the Lock go on with the tenure of a hold that ends. It reports false if that is not what it wants, or it has asked before, and
// there is something to settle. It sleeps, and looks at its tenure only behind the hub's mutex.
func (l *attempt) Take(from any, outsiders bool) bool {
	h := from.(*hold) //nolint:errcheck // no other value is ever given
	t, now, o := h.tenure, time.Now(), l.Spec.Engine.Options.HandOff
	if outsiders {
		o = o.besideOutsiders()
	}
	if l.Spec.Kind != t.Spec.Kind || !l.Spec.mayPassOn() || !l.Spec.canHave(t) || !l.Tenure.isClean() || t.run.over(o, now) {
		return false
	}
	handed := AcquireResult{how: passed}
	if l.Spec.Kind.Fence != nil {
		token, ok := t.run.token()
		if !ok {
			return false
		}
		handed.Token = token
	}
	t.run = t.run.next(true, now)
	if l.Trace != nil {
		t.run.by = &h.first
	}
	l.Tenure, l.delivered = t, handed
	return true
}

// claim tells the hub that the hold ends, and claims the waiter that is next in this process: nil if there is none. If
// stay is true, it gets the lock before other processes.
func (t *Tenure) claim(now time.Time, args *lua.ReleaseArgs) (next *attempt, stay bool) {
	c, q := t.Spec.Engine, t.Spec.waiters()
	stay = !t.run.over(c.Options.HandOff, now)
	switch {
	case !t.Spec.Kind.PassesOn || !args.Taken.IsZero():
		c.Hub.Ending(q)
		return nil, false
	case !c.handsOff():
		c.Hub.GiveWay(q, c.Options.HandOff.For)
		return nil, false
	case !stay && args.Key == "":
		c.Hub.GiveWay(q, 0)
		return nil, false
	}
	w, outsiders := c.Hub.Claim(q)
	if outsiders && args.Key != "" { // which have no hand-offs
		stay = !t.run.over(c.Options.HandOff.besideOutsiders(), now)
	}
	if w == nil {
		return nil, false
	}
	next = w.Value.(*attempt) //nolint:errcheck // no other value is ever set
	if !stay && !next.takePlace(now) {
		next.unclaim()
		return nil, false
	}
	return next, stay
}

// takePlace prepares for the call that puts the waiter in the queue in Redis.
func (l *attempt) takePlace(now time.Time) bool {
	l.needsTenure()
	if !l.waiter.TakePlace(l.Tenure.Field()) {
		return false
	}
	l.Tenure.mayQueue(now)
	return true
}

// mayQueue notes that a call is about to be sent that may leave the field in the queue, or a mark.
func (t *Tenure) mayQueue(now time.Time) {
	if t.queued == nil { // a grant may be for the first of several calls
		first := now // not now itself, which would be on the heap for all of them
		t.queued = &first
	}
}

// takesOver are the arguments of a release that has a next owner.
func (l *attempt) takesOver(args lua.ReleaseArgs, stay bool) lua.ReleaseArgs {
	m := l.Spec
	l.needsTenure()
	args.Fence, args.Lease, args.Next, args.Stay = m.fenceOf(), m.expiry(m.TTL()), l.Tenure.Field(), stay
	args.Short = m.isShort()
	if args.Fence != "" && m.mayPassOn() {
		args.Spare = l.waiter.Behind(m.Engine.Options.HandOff.Most)
	}
	return args
}

// handedOff is what came of such a release. Unless it failed, the claim is over.
func (t *Tenure) handedOff(next *attempt, stay bool, sent time.Time, reply lua.ReleaseReply, err error, repeated bool) ReleaseResult {
	c, m := t.Spec.Engine, next.Spec
	switch {
	case err == nil && reply.Status == lua.NotHeld && repeated:
		return ReleaseResult{Late: true, Err: calls.ErrRepeated}
	case err != nil:
		return ReleaseResult{Late: calls.MayHaveRun(err), Err: err}
	case reply.Status == lua.NotHeld:
		next.unclaim() // nobody knows who has the lock
		return ReleaseResult{}
	}
	var ok bool
	if reply.Status == lua.HandedOff {
		next.Tenure.run = t.run.next(stay, sent)
		next.Tenure.run.tokens = tokens{reply.Token + 1, reply.Spare}
		next.delivered = AcquireResult{AcquireReply: lua.AcquireReply{Status: lua.Acquired, Token: reply.Token}, Sent: sent}
		if !reply.WithoutQueue {
			next.Tenure.queued = nil
		}
		if next.Trace != nil {
			next.Tenure.run.by = &t.current().first
		}
		ok = next.waiter.Grant(m.expiry(m.TTL()))
	} else {
		ok = next.waiter.Queued(c.grantLease())
	}
	if !ok { // it has given up
		rollBack := func() { next.rollBack(next.delivered, nil) }
		if c.Calls.Start() { // not here: the hold has ended well, however long this takes
			go func() { // ends when Redis has answered, or with the call's time-out; Close waits for it
				defer c.Calls.Ended()
				rollBack()
			}()
		} else {
			rollBack()
		}
	}
	return ReleaseResult{Held: true}
}

// notHandedOff ends the claim after an attempt that failed, when it is known what came of the release
// instead.
func (l *attempt) notHandedOff(r ReleaseResult) {
	if r.Late && r.Err != nil { // it may still run
		l.Tenure.lateAcquire(l.Spec.expiry(l.Spec.TTL()))
	} else { // also a script that was refused: it may have been half-way
		l.Tenure.UnresolvedUntil(time.Now().Add(min(l.Spec.expiry(l.Spec.TTL()), sweep.Most))).OutcomeUnknown = true
	}
	l.unclaim()
}

// unclaim ends a claim of which it is not known what it came to.
func (l *attempt) unclaim() {
	if !l.waiter.Unclaim() {
		l.rollBack(AcquireResult{}, nil)
	}
}

// given is what a grant by another process comes to. The hold is trusted from when the process asked for its place, or saw it last, for
// the lease of the grant. If too little of that is left, or something is missing, Redis has to be asked first: that the lock is
// ours, it will say.
func (l *attempt) given(g *pubsub.Grant) (a AcquireResult, usable bool) {
	m, t := l.Spec, l.Tenure
	a = AcquireResult{Sent: l.queuedAt(), lease: min(g.Lease, m.TTL())}
	a.Status, a.Token = lua.Acquired, max(g.Token, 0)
	usable = !g.Crossed && m.usesGrants() && (g.Token >= 0 || m.Kind.Fence == nil) &&
		time.Until(a.Sent.Add(a.lease)) > a.lease/2
	if usable {
		t.queued = nil // it is out of the queue
	}
	return a, usable
}
