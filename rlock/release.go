package rlock

import (
	"time"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/sweep"
	"github.com/go-rlock/rlock/lua"
)

// An unlock closes its level. That is all, unless it is the last one of its hold. For how long its caller then waits for it, see unlock.go:
//
//	state                event                                next
//	open                 unlock                               closed: the section's ctx ends before anything is sent
//	closed, not last                                          done: nil, or ErrLost and ErrNotHeld; the count in Redis follows (count.go)
//	closed, last         the lock is to stay taken            releasing: the lock passes to the placeholder owner <id>:00
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

// unlock closes the level, and ends the hold with the last one.
func (l *level) unlock() error {
	switch closed, last := l.close(); {
	case last:
		return l.traced((*level).release)
	case closed:
		return l.traced((*level).outlived)
	case l.downgraded():
		return nil
	}
	return l.spec.notHeld(errUnlockedBefore)
}

// outlived is the unlock of a level that is closed while others of its hold are open.
func (l *level) outlived() error {
	h, leases := l.hold, l.spec.engine.leases
	if !time.Now().Before(leases.Until(&h.tenure.lease)) {
		leases.CatchUp() // it is lost, whoever notices first
	}
	if loss := h.lossSoFar(); loss != nil {
		return l.spec.notHeld(loss)
	}
	return nil
}

// giveBack unlocks a level that the caller was not told of. Its hold does not stay taken, see WithMinHold.
func (l *level) giveBack() {
	l.untaken()
	_ = l.unlock()
}

// untaken has the hold not stay taken, unless it is one that the caller had before.
func (l *level) untaken() {
	if l == &l.hold.first && l.spec.minHold > 0 {
		l.hold.tenure.taken = nil
	}
}

// unlocking is the unlock of what was the last open level, by whoever has the right to make calls for its hold.
type unlocking struct {
	releasing

	by   *unlocker
	hold *hold
	loss error // the hold was lost before
}

// unlocking begins one, with the first call, unless the hold was lost.
func (l *level) unlocking(by *unlocker) unlocking {
	u := l.toUnlock(by)
	if u.ends() {
		u.releasing = u.tenure.beginRelease(by)
	}
	return u
}

// ends reports whether there is a hold to be ended.
func (u *unlocking) ends() bool { return u.loss == nil }

// toUnlock is unlocking without that call.
func (l *level) toUnlock(by *unlocker) unlocking {
	h := l.hold
	t := h.tenure
	t.mu.Lock()
	u := unlocking{by: by, hold: h, loss: h.loss()}
	t.mu.Unlock()
	u.tenure = t
	if u.ends() {
		// No renewal starts from here on, but the end of the lease is still watched.
		l.spec.engine.leases.Releasing(&t.lease)
	}
	return u
}

// finish makes the other calls.
func (u *unlocking) finish(by *unlocker) {
	if u.by = by; u.ends() {
		u.releasing.finish(by)
	}
}

// end is what the hold and the caller learn of it. What is left to be swept, if anything, is for the caller.
func (u *unlocking) end() (rest *sweep.Orphan, err error) {
	h, t, r := u.hold, u.tenure, u.releaseResult
	if u.loss != nil {
		return h.releaseLost()
	}
	m := t.spec
	c := m.engine
	switch {
	case r.err != nil:
		c.leases.CatchUp() // if the end of the lease was the reason, the hold is lost, whoever notices first
	case !r.held && u.by.isLeft(): // maybe the lease has ended; there is nobody to be told
		c.hub.Wake(m.waiters())
	case !r.held:
		t.gone()
	}
	t.mu.Lock()
	lost := t.loss != nil // maybe while the release was on its way
	if !lost {
		h.count = 0
	}
	t.mu.Unlock()
	if lost {
		return h.releaseLost()
	}
	defer c.holdEnds()
	c.leases.Stop(&t.lease)
	if r.err != nil {
		t.unresolvedUntil(c.leases.Until(&t.lease).Add(m.grace)).OutcomeUnknown = true
	}
	rest = t.orphan()
	switch {
	case r.err == nil:
	case isOver(r.err):
		err = m.unreachable(u.by.cause())
	default:
		err = m.unreachable(r.err)
	}
	return rest, err
}

// releaseLost is the unlock of a hold that was lost. It may still be there in Redis, say because the reply of a renewal was
// lost, or something of it, if somebody deleted the key. That is removed when the last level is unlocked, so not before the sections
// have ended.
func (h *hold) releaseLost() (rest *sweep.Orphan, err error) {
	t := h.tenure
	m := t.spec
	t.mu.Lock()
	loss, last := h.loss(), h.levels == nil && h.count > 0
	if last {
		h.count = 0 // of several unlocks that find the loss, one is the last
	}
	t.mu.Unlock()
	if last {
		defer m.engine.holdEnds()
		t.unresolvedUntil(time.Now().Add(longer(max(m.ttl(), m.engine.options.WatchdogTimeout), m.grace))).OutcomeUnknown = true
		rest = t.orphan()
	}
	return rest, m.notHeld(loss)
}

// releaseResult is what came of a release.
type releaseResult struct {
	sent time.Time // before the call that was answered
	held bool      // the owner held the lock
	late bool      // a call without a reply may have run, or may still
	err  error     // what the last call failed with
}

// releasing is a release under way.
type releasing struct {
	releaseResult // what came of it so far

	tenure *tenure
	args   lua.ReleaseArgs
	next   *locking // of this process, claimed until it is known what came of the release; nil: none
	more   calls.Retry
	last   bool // no other call follows: the Client is closed
}

func (t *tenure) toRelease() releasing {
	return releasing{tenure: t, args: t.releaseArgs(), more: calls.Retry{Until: t.spec.engine.leases.Until(&t.lease)}}
}

// beginRelease makes the first call of those that end a hold: it goes to a waiter of this process, if there is one.
func (t *tenure) beginRelease(by *unlocker) releasing {
	r := t.toRelease()
	if next, stay := t.claim(time.Now(), &r.args); next != nil {
		if r.releaseResult = t.handOff(next, stay, r.args, by); r.err != nil {
			r.next = next
		}
		return r
	}
	r.call(by)
	return r
}

// finish makes the other calls: one without the next owner, and more if something went wrong that may pass and the lease lasts.
func (r *releasing) finish(by *unlocker) {
	if next := r.next; next != nil {
		defer func() {
			next.notHandedOff(r.releaseResult)
			r.next = nil
		}()
		r.call(by)
	}
	for r.err != nil && !r.last && by.again(r.tenure, &r.more, r.err) {
		r.call(by)
	}
}

func (r *releasing) call(by *unlocker) {
	t := r.tenure
	c := t.spec.engine
	r.sent, r.last = time.Now(), c.calls.IsClosed()
	if r.last { // Close may wait for this
		r.held, r.err = c.releaseOnce(t.spec, r.args)
	} else {
		ctx := t.releaseCall(r.sent, by)
		var reply lua.ReleaseReply
		reply, r.err = c.release(ctx, t.spec, r.args)
		r.held = reply.Status != lua.NotHeld
		t.spec.wakeIfAlone(reply)
		r.late = r.late || ctx.IsRepeated()
	}
	if r.err != nil {
		r.late = r.late || calls.MayHaveRun(r.err)
	} else {
		r.held = r.held || r.late // not there after a call without a reply: that call has released it
	}
}

// wakeIfAlone spares those that wait here the courtesy towards other processes if a release has told none.
func (m *spec) wakeIfAlone(r lua.ReleaseReply) {
	c := m.engine
	if r.Status == lua.Freed && !r.Several && (c.cluster == nil || c.knownChannel(m).Sharded) {
		c.hub.Alone(m.waiters())
	}
}

// releaseCall is the context of a command that ends a tenure. On a connection that nobody else uses it is
// given half the time of an unlock, so that a new connection has the rest.
func (t *tenure) releaseCall(now time.Time, by *unlocker) *calls.Context {
	c := t.spec.engine
	ctx := c.calls.Context(t.section(), now, 0)
	deadline := now.Add(max(minOwn, min(calls.Timeout, c.options.UnlockTimeout/2)))
	if !by.over.IsZero() {
		deadline = calls.Earlier(deadline, by.over.Add(-minOwn))
		ctx.EndWith(by.left)
	}
	ctx.EndAt(deadline)
	return ctx
}

// staysTaken reports whether the lock is to stay taken after an unlock now, see WithMinHold.
func (t *tenure) staysTaken() bool { return t.taken != nil && time.Now().Before(*t.taken) }

// releaseArgs are those of a release that ends the tenure.
func (t *tenure) releaseArgs() lua.ReleaseArgs {
	m := t.spec
	args := lua.ReleaseArgs{
		Name: m.key, Side: m.kind.Side, Owner: t.field(), Publish: lua.Publish(m.engine.knownChannel(m)), Fair: m.fair(),
	}
	if key := m.queueKey(); key != "" {
		args.Fence = m.fenceOf()
		args.Queue = lua.Queue{Key: key, GrantLease: m.engine.grantLease()}
	}
	if t.staysTaken() && t.lossSoFar() == nil { // a lost one ends with its lease, and not later
		args.Next, args.Taken = m.kind.Placeholder(m.engine.id), *t.taken
	}
	return args
}
