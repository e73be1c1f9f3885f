package tenure

import (
	"slices"
	"time"

	"github.com/go-rlock/rlock/internal/sweep"
	"github.com/go-rlock/rlock/lua"
)

// A failed call must leave nothing behind (G5), though a sent command cannot be recalled. Effects of commands without a reply are rolled
// back here:
//
//   - The reply comes late: the goroutine that waits for it gives the hold back (attempt.rollBack).
//   - The reply is lost: the owner field is swept, that is, released repeatedly until the command can have no more effect. For a release,
//     that is the first answer; otherwise, the end of the lease that the command could have started.
//
// A field serves one hold only (I3), so a sweep harms no other hold, however late it runs.

// UnresolvedUntil returns the tenure's unresolved state, extended to last until then at least.
func (t *Tenure) UnresolvedUntil(until time.Time) *sweep.Unresolved {
	if t.Unresolved == nil {
		t.Unresolved = new(sweep.Unresolved)
	}
	if until.After(t.Unresolved.Until) {
		t.Unresolved.Until = until
	}
	return t.Unresolved
}

// LateAcquire records an unanswered first acquire with the lease ttl.
func (t *Tenure) LateAcquire(ttl time.Duration) {
	t.UnresolvedUntil(time.Now().Add(min(ttl, sweep.Most))).Late = true
}

// SweepIfUnresolved sweeps the field of a hold that has ended or never began, if anything about it is unresolved. A release also removes it
// from the queue in Redis.
func (t *Tenure) SweepIfUnresolved() {
	if r := t.Orphan(); r != nil {
		t.Lock.Client.Sweep(r)
	}
}

// ForgetInTurn ends a tenure that was lost between one hold and the next. It may still exist in Redis, for example if a renewal's reply was
// lost. It first waits for a call under way, which may be for a level of an earlier hold (I1).
func (t *Tenure) ForgetInTurn() {
	t.AwaitCallSlot()
	defer t.ReleaseCallSlot()
	m := t.Lock
	t.UnresolvedUntil(time.Now().Add(Longer(m.TTL, m.Grace))).OutcomeUnknown = true
	m.Client.Sweep(t.Orphan())
}

// IsClean reports whether nothing about the field is unresolved.
func (t *Tenure) IsClean() bool { return t == nil || t.Unresolved == nil && t.Queued == nil }

// Orphan returns the field as an orphan to be swept; nil if there is nothing to sweep.
func (t *Tenure) Orphan() *sweep.Orphan {
	if t == nil {
		return nil
	}
	var u sweep.Unresolved
	if t.Unresolved != nil {
		u = *t.Unresolved
	}
	if !u.Late && !u.OutcomeUnknown && t.Queued == nil {
		return nil
	}
	r := t.OrphanOf(t.ReleaseArgs())
	r.Unresolved = u
	if t.Queued != nil {
		r.Place = time.Now().Add(sweep.Most)
	}
	return r
}

// OrphanOf returns an orphan that is swept by that release.
func (t *Tenure) OrphanOf(args lua.ReleaseArgs) *sweep.Orphan {
	m := t.Lock
	r := &sweep.Orphan{Slot: m.Slot(), Args: args}
	r.Gone = func() { m.Client.Hub.Wake(m.Waiters()) }
	r.Released = m.Released
	r.Left = func(err error) {
		m.Client.Options.Tell.Warn("rlock: a field may be left in Redis after a call without an answer; it ends with its lease",
			"name", m.Name, "owner", r.Args.Owner, "err", err)
	}
	return r
}

// Sweep sweeps the non-nil orphans: of one lock, or of locks that one call can take. Close waits for that. After Close it makes one last
// try itself.
func (c *Client) Sweep(all ...*sweep.Orphan) {
	all = slices.DeleteFunc(all, func(r *sweep.Orphan) bool { return r == nil })
	switch {
	case len(all) == 0:
	case c.Calls.Also():
		c.sweepers.Add(all)
		c.Calls.Ended()
	default:
		c.sweepers.Once(all)
	}
}

// GiveBack releases a granted hold that no Lock took, or its place. What remains is to be swept.
func (t *Tenure) GiveBack() {
	ctx, cancel := t.Lock.Client.Calls.Last() // also while the Client closes
	defer cancel()
	_, err := t.Lock.SendRelease(ctx, t.ReleaseArgs())
	t.GivenBack(err)
}

// GivenBack records the result of such a release.
func (t *Tenure) GivenBack(err error) {
	if err != nil {
		m := t.Lock
		t.UnresolvedUntil(time.Now().Add(m.Expires)).OutcomeUnknown = true
	} else {
		t.Queued = nil
		if t.Unresolved != nil {
			t.Unresolved.OutcomeUnknown = false
		}
	}
}
