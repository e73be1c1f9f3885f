package rlock

import (
	"context"
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

// maxGrantLease bounds for how long a lock is given to another process, until that renews it: it may have died.
const maxGrantLease = 2 * time.Second

func (c *engine) grantLease() time.Duration { return grantLease(c.options.WatchdogTimeout) }

// grantLease is for how long a lock is given to another process that has that watchdog time.
func grantLease(watchdog time.Duration) time.Duration { return min(maxGrantLease, watchdog) }

// runBound bounds a run.
type runBound struct {
	Most int           // hand-offs that may follow each other; 0: there are none, to other processes either
	For  time.Duration // for how long they may
}

const (
	// mostBesideOutsiders bounds a run while somebody waits who does not hand off.
	mostBesideOutsiders = 2
	// openRun bounds a run of unlocks that notify everybody, and openRunFor its time: then others go first for a tenth of that.
	openRun    = 8
	openRunFor = 100 * time.Millisecond
)

// run is how many hand-offs inside of the process followed each other, and since when. The holds pass it on to each other.
type run struct {
	length int
	began  time.Time
	by     *level // of the section that the last one ended, for the Trace of the waiter that got it; nil without one
}

// section is the one that the last hand-off ended; nil if nobody wants to know. It is told once.
func (r *run) section() context.Context {
	by := r.by
	if r.by = nil; by == nil {
		return nil
	}
	return by
}

// besideOutsiders is what a run is bounded by while others wait who are not in line: they get a fifth of the sections at least, if they
// are there for them.
func (b runBound) besideOutsiders() runBound {
	b.Most = min(b.Most, mostBesideOutsiders)
	return b
}

// over reports whether there should be no further hand-off. A nil run is one that has not begun.
func (r *run) over(o runBound, now time.Time) bool {
	return r != nil && (r.length >= o.Most || now.Sub(r.began) >= o.For)
}

// passOn has the next waiter of the process go on with the tenure of a hold whose last level is closed. It reports false if that cannot be:
// nobody waits, or not for the same, or the run is over; or a call is under way, or something is not known of the tenure, or too little is
// left of its lease. Then the hold is as it was.
func (h *hold) passOn() bool {
	t := h.tenure
	m := t.spec
	c := m.engine
	if !m.mayPassOn() {
		return false
	}
	left := time.Until(c.leases.Until(&t.lease))
	if left < t.given/3 || !h.detach() {
		return false
	}
	if !c.hub.Pass(m.waiters(), h, left) {
		h.attach()
		return false
	}
	c.holdEnds()
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
		t.spec.engine.lost(&h.first, t.spec.kind.Name, loss)
	}
}

// Take has the Lock go on with the tenure of a hold that ends. It reports false if that is not what it wants, or it has asked before, and
// there is something to settle. It sleeps, and looks at its tenure only behind the hub's mutex.
func (l *locking) Take(from any, outsiders bool) bool {
	h := from.(*hold) //nolint:errcheck // no other value is ever given
	t, now, o := h.tenure, time.Now(), l.spec.engine.options.HandOff
	if outsiders {
		o = o.besideOutsiders()
	}
	if l.spec.kind != t.spec.kind || !l.spec.mayPassOn() || !l.tenure.isClean() || t.run.over(o, now) {
		return false
	}
	handed := acquireResult{how: passed}
	if l.spec.kind.Fence != nil {
		token, ok := t.tokens.take()
		if !ok {
			return false
		}
		handed.Token = token
	}
	t.run = t.run.next(true, now)
	if l.trace != nil {
		t.run.by = &h.first
	}
	l.tenure, l.delivered = t, handed
	return true
}

// mayPassOn reports whether a Lock wants of Redis what every other one does, so that it can have the tenure of another one, and another one
// its: it is renewed, and has no bound of its own.
func (m *spec) mayPassOn() bool {
	return m.kind.PassesOn && m.engine.handsOff() && m.usesGrants() && m.maxHold == 0
}

// claim tells the hub that the hold ends, and claims the waiter that is next in this process: nil if there is none. If
// stay is true, it gets the lock before other processes.
func (t *tenure) claim(now time.Time, args *lua.ReleaseArgs) (next *locking, stay bool) {
	c, q := t.spec.engine, t.spec.waiters()
	stay = !t.run.over(c.options.HandOff, now)
	switch {
	case !t.spec.kind.PassesOn || !args.Taken.IsZero():
		c.hub.Ending(q)
		return nil, false
	case !c.handsOff():
		c.hub.GiveWay(q, min(c.options.HandOff.Most, openRun))
		return nil, false
	case !stay && args.Key == "":
		c.hub.GiveWay(q, 1)
		return nil, false
	}
	w, outsiders := c.hub.Claim(q)
	if outsiders && args.Key != "" { // which have no hand-offs
		stay = !t.run.over(c.options.HandOff.besideOutsiders(), now)
	}
	if w == nil {
		return nil, false
	}
	next = w.Value.(*locking) //nolint:errcheck // no other value is ever set
	if !stay && !next.takePlace(now) {
		next.unclaim()
		return nil, false
	}
	return next, stay
}

// takePlace prepares for the call that puts the waiter in the queue in Redis.
func (l *locking) takePlace(now time.Time) bool {
	l.needsTenure()
	if !l.waiter.TakePlace(l.tenure.field()) {
		return false
	}
	l.tenure.mayQueue(now)
	return true
}

// mayQueue notes that a call is about to be sent that may leave the field in the queue, or a mark.
func (t *tenure) mayQueue(now time.Time) {
	if t.queued == nil { // a grant may be for the first of several calls
		first := now // not now itself, which would be on the heap for all of them
		t.queued = &first
	}
}

// handOff makes the one attempt to end the hold with a waiter claimed. Unless it fails, the claim is over.
func (t *tenure) handOff(next *locking, stay bool, args lua.ReleaseArgs, by *unlocker) releaseResult {
	sent := time.Now()
	ctx := t.releaseCall(sent, by)
	reply, err := t.spec.engine.release(ctx, t.spec, next.takesOver(args, stay))
	return t.handedOff(next, stay, sent, reply, err, ctx.IsRepeated())
}

// takesOver are the arguments of a release that has a next owner.
func (l *locking) takesOver(args lua.ReleaseArgs, stay bool) lua.ReleaseArgs {
	m := l.spec
	l.needsTenure()
	args.Fence, args.Lease, args.Next, args.Stay = m.fenceOf(), m.expiry(m.ttl()), l.tenure.field(), stay
	args.Short = m.isShort()
	if args.Fence != "" && m.mayPassOn() {
		args.Spare = l.waiter.Behind(m.engine.options.HandOff.Most)
	}
	return args
}

// handedOff is what came of such a release.
func (t *tenure) handedOff(next *locking, stay bool, sent time.Time, reply lua.ReleaseReply, err error, repeated bool) releaseResult {
	c, m := t.spec.engine, next.spec
	switch {
	case err == nil && reply.Status == lua.NotHeld && repeated:
		return releaseResult{late: true, err: calls.ErrRepeated}
	case err != nil:
		return releaseResult{late: calls.MayHaveRun(err), err: err}
	case reply.Status == lua.NotHeld:
		next.unclaim() // nobody knows who has the lock
		return releaseResult{}
	}
	var ok bool
	if reply.Status == lua.HandedOff {
		next.tenure.run, next.tenure.tokens = t.run.next(stay, sent), tokens{reply.Token + 1, reply.Spare}
		next.delivered = acquireResult{AcquireReply: lua.AcquireReply{Status: lua.Acquired, Token: reply.Token}, sent: sent}
		if !reply.WithoutQueue {
			next.tenure.queued = nil
		}
		if next.trace != nil {
			next.tenure.run.by = &t.current().first
		}
		ok = next.waiter.Grant(m.expiry(m.ttl()))
	} else {
		ok = next.waiter.Queued(c.grantLease())
	}
	if !ok { // it has given up
		rollBack := func() { next.rollBack(next.delivered, nil) }
		if c.calls.Start() { // not here: the hold has ended well, however long this takes
			go func() { // ends when Redis has answered, or with the call's time-out; Close waits for it
				defer c.calls.Ended()
				rollBack()
			}()
		} else {
			rollBack()
		}
	}
	return releaseResult{sent: sent, held: true}
}

// next is the run with one hand-off more, or a new one.
func (r *run) next(stay bool, now time.Time) *run {
	if r == nil || !stay {
		r = &run{began: now}
	}
	if stay {
		r.length++
	}
	return r
}

// notHandedOff ends the claim after an attempt that failed, when it is known what came of the release
// instead.
func (l *locking) notHandedOff(r releaseResult) {
	if r.late && r.err != nil { // it may still run
		l.tenure.lateAcquire(l.spec.expiry(l.spec.ttl()))
	} else { // also a script that was refused: it may have been half-way
		l.tenure.unresolvedUntil(time.Now().Add(min(l.spec.expiry(l.spec.ttl()), sweep.Most))).OutcomeUnknown = true
	}
	l.unclaim()
}

// unclaim ends a claim of which it is not known what it came to.
func (l *locking) unclaim() {
	if !l.waiter.Unclaim() {
		l.rollBack(acquireResult{}, nil)
	}
}

// usesGrants reports whether a grant is what a Lock asks for: it is renewed, for no shorter time, and has no grace.
func (m *spec) usesGrants() bool {
	return m.lease == 0 && m.grace == 0 && m.ttl() == m.engine.options.WatchdogTimeout
}

// isShort reports whether a Lock is to last for less than a grant may. So its field must not be trusted to be a hold when it is
// granted: the Lock asks, and has its own lease from then on.
func (m *spec) isShort() bool { return !m.usesGrants() && m.expiry(m.ttl()) < maxGrantLease }

// given is what a grant by another process comes to. The hold is trusted from when the process asked for its place, or saw it last, for
// the lease of the grant. If too little of that is left, or something is missing, Redis has to be asked first: that the lock is
// ours, it will say.
func (l *locking) given(g *pubsub.Grant) (a acquireResult, usable bool) {
	m, t := l.spec, l.tenure
	a = acquireResult{sent: l.queuedAt(), lease: min(g.Lease, m.ttl())}
	a.Status, a.Token = lua.Acquired, max(g.Token, 0)
	usable = !g.Crossed && m.usesGrants() && (g.Token >= 0 || m.kind.Fence == nil) &&
		time.Until(a.sent.Add(a.lease)) > a.lease/2
	if usable {
		t.queued = nil // it is out of the queue
	}
	return a, usable
}
