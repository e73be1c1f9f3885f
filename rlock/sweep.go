package rlock

import (
	"context"
	"slices"
	"time"

	"github.com/go-rlock/rlock/internal/sweep"
	"github.com/go-rlock/rlock/lua"
)

// Nothing may be left behind by a call that failed (G5), though a command that was sent cannot be
// called back. What a command without a reply may have done is found out and rolled back here:
//
//   - Its reply comes late: whoever waits for it gives the hold back (locking.rollBack).
//   - Its reply is lost: the owner field is swept, that is released again and again, until the command can do nothing any more: as
//     long as the lease that it could have started lasts, or until the first answer if it was to end a hold.
//
// A field is used for one hold only (I3), so nobody else can be hurt by that, however late it comes.

// unresolvedUntil returns what is unresolved of the tenure, which is so until then at least.
func (t *tenure) unresolvedUntil(until time.Time) *sweep.Unresolved {
	if t.unresolved == nil {
		t.unresolved = new(sweep.Unresolved)
	}
	if until.After(t.unresolved.Until) {
		t.unresolved.Until = until
	}
	return t.unresolved
}

// lateAcquire notes that a first acquire that lasts for ttl was sent, and not answered.
func (t *tenure) lateAcquire(ttl time.Duration) {
	t.unresolvedUntil(time.Now().Add(min(ttl, sweep.Most))).Late = true
}

// sweepIfUnresolved sweeps the field of a hold that has ended, or did not come to be, if something of it is unresolved. A release also takes it out
// of the queue in Redis.
func (t *tenure) sweepIfUnresolved() {
	if r := t.orphan(); r != nil {
		t.spec.engine.sweep(r)
	}
}

// sweepInCall is sweepIfUnresolved within a call that the Client counts, and that does not wait for the sweep, not even while the Client closes:
// Close does.
func (t *tenure) sweepInCall() {
	if r := t.orphan(); r != nil {
		t.spec.engine.sweepers.Add([]*sweep.Orphan{r})
	}
}

// forget ends a tenure that was lost on its way from one hold to the next. It may still be there in Redis, say because the reply of a renewal
// was lost.
func (t *tenure) forget() {
	m := t.spec
	t.unresolvedUntil(time.Now().Add(longer(m.ttl(), m.grace))).OutcomeUnknown = true
	t.sweepInCall()
}

// isClean reports whether all is known of the field, or nobody has asked for it.
func (t *tenure) isClean() bool { return t == nil || t.unresolved == nil && t.queued == nil }

// orphan is what of the field is to be swept, nil if there is nothing, or nobody has asked.
func (t *tenure) orphan() *sweep.Orphan {
	if t == nil {
		return nil
	}
	var u sweep.Unresolved
	if t.unresolved != nil {
		u = *t.unresolved
	}
	if !u.Late && !u.OutcomeUnknown && t.queued == nil {
		return nil
	}
	m := t.spec
	r := &sweep.Orphan{Unresolved: u, Slot: m.slot, Args: t.releaseArgs()}
	r.Gone = func() { m.engine.hub.Wake(m.waiters()) }
	r.Left = func(err error) {
		m.engine.options.Tell.Warn("rlock: a field may be left in Redis after a call without an answer; it ends with its lease",
			"name", m.name, "owner", r.Args.Owner, "err", err)
	}
	if t.queued != nil {
		r.Place = time.Now().Add(sweep.Most)
	}
	return r
}

// sweep sweeps those that are not nil: of one lock, or of locks that one call can take. After Close there is one more try, here.
func (c *engine) sweep(all ...*sweep.Orphan) {
	all = slices.DeleteFunc(all, func(r *sweep.Orphan) bool { return r == nil })
	switch {
	case len(all) == 0:
	case c.calls.Start():
		c.sweepers.Add(all)
		c.calls.Ended()
	default:
		c.sweepers.Once(all)
	}
}

// giveBack releases a hold that was granted to nobody. It reports whether Redis has answered.
func (t *tenure) giveBack() (answered bool) {
	_, err := t.spec.engine.releaseOnce(t.spec, t.releaseArgs())
	t.givenBack(err)
	t.sweepIfUnresolved()
	return err == nil
}

// givenBack notes what the release of a hold that was granted to nobody came to.
func (t *tenure) givenBack(err error) {
	if err != nil {
		m := t.spec
		t.unresolvedUntil(time.Now().Add(m.expiry(m.ttl()))).OutcomeUnknown = true
	} else {
		t.queued = nil
		if t.unresolved != nil {
			t.unresolved.OutcomeUnknown = false
		}
	}
}

// releaseOnce sends a release that is to arrive even if the client is closing.
func (c *engine) releaseOnce(m *spec, args lua.ReleaseArgs) (held bool, err error) {
	ctx, cancel := c.calls.Last()
	defer cancel()
	reply, err := c.release(ctx, m, args)
	return reply.Status != lua.NotHeld, err
}

func (c *engine) release(ctx context.Context, m *spec, args lua.ReleaseArgs) (lua.ReleaseReply, error) {
	reply, err := lua.Release(ctx, c.rdb, args)
	c.calls.Answered(m.slot, err)
	if reply.NoQueue && err == nil {
		c.forbidden(args.Side).Store(true)
	}
	return reply, err
}
