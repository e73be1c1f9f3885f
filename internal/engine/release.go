package engine

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

// unlocking is the unlock of what was the last open level, by whoever has the right to make calls for its hold.
type unlocking struct {
	releasing

	by   *unlocker
	hold *hold
	loss error // the hold was lost before
}

// unlocking begins one, with the first call, unless the hold was lost.
func (l *Level) unlocking(by *unlocker) unlocking {
	u := l.toUnlock(by)
	if u.ends() {
		u.releasing = u.tenure.beginRelease(by)
	}
	return u
}

// ends reports whether there is a hold to be ended.
func (u *unlocking) ends() bool { return u.loss == nil }

// toUnlock is unlocking without that call.
func (l *Level) toUnlock(by *unlocker) unlocking {
	h := l.hold
	t := h.tenure
	t.mu.Lock()
	u := unlocking{by: by, hold: h, loss: h.loss()}
	t.mu.Unlock()
	u.tenure = t
	if u.ends() {
		// No renewal starts from here on, but the end of the lease is still watched.
		l.spec.Engine.Leases.Releasing(&t.Lease)
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
	h, t, r := u.hold, u.tenure, u.ReleaseResult
	if u.loss != nil {
		return h.releaseLost()
	}
	m := t.Spec
	c := m.Engine
	switch {
	case r.Err != nil:
		c.Leases.CatchUp() // if the end of the lease was the reason, the hold is lost, whoever notices first
	case !r.Held && u.by.isLeft(): // maybe the lease has ended; there is nobody to be told
		c.Hub.Wake(m.waiters())
	case !r.Held:
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
	defer c.HoldEnds()
	c.Leases.Stop(&t.Lease)
	if r.Err != nil {
		t.UnresolvedUntil(c.Leases.Until(&t.Lease).Add(m.Grace)).OutcomeUnknown = true
	}
	rest = t.orphan()
	switch {
	case r.Err == nil:
	case isOver(r.Err):
		err = m.unreachable(u.by.cause())
	default:
		err = m.unreachable(r.Err)
	}
	return rest, err
}

// releaseLost is the unlock of a hold that was lost. It may still be there in Redis, say because the reply of a renewal was
// lost, or something of it, if somebody deleted the key. That is removed when the last level is unlocked, so not before the sections
// have ended.
func (h *hold) releaseLost() (rest *sweep.Orphan, err error) {
	t := h.tenure
	m := t.Spec
	t.mu.Lock()
	loss, last := h.loss(), h.levels == nil && h.count > 0
	if last {
		h.count = 0 // of several unlocks that find the loss, one is the last
	}
	t.mu.Unlock()
	if last {
		defer m.Engine.HoldEnds()
		t.UnresolvedUntil(time.Now().Add(longer(max(m.TTL(), m.Engine.Options.WatchdogTimeout), m.Grace))).OutcomeUnknown = true
		rest = t.orphan()
	}
	return rest, m.notHeld(loss)
}

// ReleaseResult is what came of a release.
type ReleaseResult struct {
	sent time.Time // before the call that was answered
	Held bool      // the owner held the lock
	Late bool      // a call without a reply may have run, or may still
	Err  error     // what the last call failed with
}

// releasing is a release under way.
type releasing struct {
	ReleaseResult // what came of it so far

	tenure *Tenure
	args   lua.ReleaseArgs
	next   *locking // of this process, claimed until it is known what came of the release; nil: none
	more   calls.Retry
	last   bool // no other call follows: the Client is closed
}

func (t *Tenure) toRelease() releasing {
	return releasing{tenure: t, args: t.ReleaseArgs(), more: calls.Retry{Until: t.Spec.Engine.Leases.Until(&t.Lease)}}
}

// beginRelease makes the first call of those that end a hold: it goes to a waiter of this process, if there is one.
func (t *Tenure) beginRelease(by *unlocker) releasing {
	r := t.toRelease()
	if next, stay := t.claim(time.Now(), &r.args); next != nil {
		if r.ReleaseResult = t.handOff(next, stay, r.args, by); r.Err != nil {
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
			next.notHandedOff(r.ReleaseResult)
			r.next = nil
		}()
		r.call(by)
	}
	for r.Err != nil && !r.last && by.again(r.tenure, &r.more, r.Err) {
		r.call(by)
	}
}

func (r *releasing) call(by *unlocker) {
	t := r.tenure
	c := t.Spec.Engine
	r.sent, r.last = time.Now(), c.Calls.IsClosed()
	if r.last { // Close may wait for this
		r.Held, r.Err = c.ReleaseOnce(t.Spec, r.args)
	} else {
		ctx := t.releaseCall(r.sent, by)
		var reply lua.ReleaseReply
		reply, r.Err = c.release(ctx, t.Spec, r.args)
		r.Held = reply.Status != lua.NotHeld
		t.Spec.wakeIfAlone(reply)
		r.Late = r.Late || ctx.IsRepeated()
	}
	if r.Err != nil {
		r.Late = r.Late || calls.MayHaveRun(r.Err)
	} else {
		r.Held = r.Held || r.Late // not there after a call without a reply: that call has released it
	}
}

// wakeIfAlone spares those that wait here the courtesy towards other processes if a release has told none.
func (m *Spec) wakeIfAlone(r lua.ReleaseReply) {
	c := m.Engine
	if r.Status == lua.Freed && !r.Several && (c.Cluster == nil || c.KnownChannel(m).Sharded) {
		c.Hub.Alone(m.waiters())
	}
}

// releaseCall is the context of a command that ends a tenure. On a connection that nobody else uses it is
// given half the time of an unlock, so that a new connection has the rest.
func (t *Tenure) releaseCall(now time.Time, by *unlocker) *calls.Context {
	c := t.Spec.Engine
	ctx := by.contexts.Next(t.section(), c.Calls, now, 0)
	deadline := now.Add(max(minOwn, min(calls.Timeout, c.Options.UnlockTimeout/2)))
	if !by.over.IsZero() {
		deadline = calls.Earlier(deadline, by.over.Add(-spareOwn))
		ctx.EndWith(by.left)
	}
	ctx.EndAt(deadline)
	return ctx
}
