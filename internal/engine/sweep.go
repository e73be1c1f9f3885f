package engine

import (
	"slices"
	"time"

	"github.com/go-rlock/rlock/internal/sweep"
	"github.com/go-rlock/rlock/lua"
)

// Nothing may be left behind by a call that failed (G5), though a command that was sent cannot be
// called back. What a command without a reply may have done is found out and rolled back here:
//
//   - Its reply comes late: whoever waits for it gives the hold back (attempt.rollBack).
//   - Its reply is lost: the owner field is swept, that is released again and again, until the command can do nothing any more: as
//     long as the lease that it could have started lasts, or until the first answer if it was to end a hold.
//
// A field is used for one hold only (I3), so nobody else can be hurt by that, however late it comes.

// UnresolvedUntil returns what is unresolved of the tenure, which is so until then at least.
func (t *Tenure) UnresolvedUntil(until time.Time) *sweep.Unresolved {
	if t.Unresolved == nil {
		t.Unresolved = new(sweep.Unresolved)
	}
	if until.After(t.Unresolved.Until) {
		t.Unresolved.Until = until
	}
	return t.Unresolved
}

// lateAcquire notes that a first acquire that lasts for ttl was sent, and not answered.
func (t *Tenure) lateAcquire(ttl time.Duration) {
	t.UnresolvedUntil(time.Now().Add(min(ttl, sweep.Most))).Late = true
}

// SweepIfUnresolved sweeps the field of a hold that has ended, or did not come to be, if something of it is unresolved. A release also takes it out
// of the queue in Redis.
func (t *Tenure) SweepIfUnresolved() {
	if r := t.orphan(); r != nil {
		t.Spec.Engine.sweep(r)
	}
}

// forget ends a tenure that was lost on its way from one hold to the next. It may still be there in Redis, say because the reply of a renewal
// was lost.
func (t *Tenure) forget() {
	m := t.Spec
	t.UnresolvedUntil(time.Now().Add(longer(m.TTL(), m.Grace))).OutcomeUnknown = true
	t.Spec.Engine.sweepInCall(t.orphan())
}

// isClean reports whether all is known of the field, or nobody has asked for it.
func (t *Tenure) isClean() bool { return t == nil || t.Unresolved == nil && t.queued == nil }

// orphan is what of the field is to be swept, nil if there is nothing, or nobody has asked.
func (t *Tenure) orphan() *sweep.Orphan {
	if t == nil {
		return nil
	}
	var u sweep.Unresolved
	if t.Unresolved != nil {
		u = *t.Unresolved
	}
	if !u.Late && !u.OutcomeUnknown && t.queued == nil {
		return nil
	}
	r := t.orphanOf(t.releaseArgs())
	r.Unresolved = u
	if t.queued != nil {
		r.Place = time.Now().Add(sweep.Most)
	}
	return r
}

// orphanOf is what is to be swept by that release.
func (t *Tenure) orphanOf(args lua.ReleaseArgs) *sweep.Orphan {
	m := t.Spec
	r := &sweep.Orphan{Slot: m.Slot, Args: args}
	r.Gone = func() { m.Engine.Hub.Wake(m.waiters()) }
	r.Left = func(err error) {
		m.Engine.Options.Tell.Warn("rlock: a field may be left in Redis after a call without an answer; it ends with its lease",
			"name", m.Name, "owner", r.Args.Owner, "err", err)
	}
	return r
}

// sweep sweeps those that are not nil: of one lock, or of locks that one call can take. After Close there is one more try, here.
func (c *Engine) sweep(all ...*sweep.Orphan) {
	all = slices.DeleteFunc(all, func(r *sweep.Orphan) bool { return r == nil })
	switch {
	case len(all) == 0:
	case c.Calls.Start():
		c.sweepers.Add(all)
		c.Calls.Ended()
	default:
		c.sweepers.Once(all)
	}
}

// sweepInCall is sweep within a call that the Client counts, and that does not wait for the sweep, not even while the Client closes: Close does.
func (c *Engine) sweepInCall(all ...*sweep.Orphan) {
	if all = slices.DeleteFunc(all, func(r *sweep.Orphan) bool { return r == nil }); len(all) > 0 {
		c.sweepers.Add(all)
	}
}

// GiveBack releases a hold that was granted to nobody. It reports whether Redis has answered.
func (t *Tenure) GiveBack() (answered bool) {
	err := t.giveBack()
	t.SweepIfUnresolved()
	return err == nil
}

// giveBack is GiveBack, and sweeps nothing.
func (t *Tenure) giveBack() error {
	_, err := t.Spec.Engine.releaseOnce(t.Spec, t.releaseArgs())
	t.givenBack(err)
	return err
}

// givenBack notes what the release of a hold that was granted to nobody came to.
func (t *Tenure) givenBack(err error) {
	if err != nil {
		m := t.Spec
		t.UnresolvedUntil(time.Now().Add(m.expiry(m.TTL()))).OutcomeUnknown = true
	} else {
		t.queued = nil
		if t.Unresolved != nil {
			t.Unresolved.OutcomeUnknown = false
		}
	}
}
