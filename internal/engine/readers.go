package engine

import "time"

// Readers of one process share a tenure. A reader that Redis lets in leads: readers that arrived while it asked get in with it. For a while
// others join it in memory, as separate holds on its tenure, which ends with the last of them.
//
// The leader's call has checked the marks of waiting writers. So a writer waits only for readers let in by calls, and for those that joined
// within HandOff.For of the reply. After half of that time the next reader asks Redis and leads from its reply on; the others go on as
// before.
//
// A reader does not join if it would have to wait in the process's own queue, for example behind a writer.

// lead lets others join the tenure of a reader that a call has just let in.
func (i *insiders) lead(t *Tenure) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.of[t.Tag] != t { // lost or unlocked
		return
	}
	if i.readers == nil {
		i.readers = make(map[string]*readers)
	}
	i.readers[t.Lock.Key] = &readers{tenure: t, since: time.Now()}
}

// leading returns the tenure that a reader may join now; nil: the reader must ask Redis.
func (i *insiders) leading(key string, bound time.Duration) *Tenure {
	i.mu.Lock()
	defer i.mu.Unlock()
	r := i.readers[key]
	if r == nil {
		return nil
	}
	age := time.Since(r.since)
	if age >= bound || age >= bound/2 && !r.asking {
		r.asking = true
		return nil
	}
	return r.tenure.(*Tenure) //nolint:errcheck // no other value is ever set
}

// mayShare reports whether a Lock asks Redis for the same as every other reader (see Lock.shares), has nothing unresolved there, and is not
// inside the writer.
func (l *Attempt) mayShare() bool {
	m := l.Lock
	return m.shares && l.within == nil && l.Tenure.isClean()
}

// lead lets other readers join a Lock that a call let in.
func (l *Attempt) lead(a AcquireResult) {
	if a.how == byCall && l.mayShare() {
		l.leads = true
		l.Lock.Engine.insiders.lead(l.Tenure)
	}
}

// share joins the readers of this process. It returns ErrOver if there are none, their lease is too short, or they came too long ago.
func (l *Attempt) share() (*Level, error) {
	m := l.Lock
	if !l.mayShare() || !m.Engine.Hub.MayShare(m.Waiters()) {
		return nil, ErrOver
	}
	t := m.Engine.insiders.leading(m.Key, m.Engine.Options.HandOff.For)
	if t == nil {
		return nil, ErrOver
	}
	if !m.canHave(t) {
		return nil, ErrOver
	}
	if left := time.Until(m.Engine.Leases.Until(&t.Lease)); left < m.TTL/3 || left > m.TTL { // nor a longer one than it asks for
		return nil, ErrOver
	}
	ctx, cancel := m.levelCtx(l.Parent())
	s, err := t.admit(ctx, cancel, &l.Caller, m, AcquireResult{how: shared}, false)
	if err != nil {
		cancel(nil)
		if err != ErrOver { //nolint:errorlint // never wrapped
			err = l.Failure(err)
		}
		return nil, err
	}
	l.level = s
	l.Tenure = t
	l.observed(s.hold)
	l.isShared()
	return s, nil
}

// isShared reports to the tracer and the stats that the Lock joined other readers.
func (l *Attempt) isShared() {
	l.Took(PathShared)
	l.Lock.Engine.stats.shared.Add(1)
}

// Share makes the Lock join with, an earlier one that leads. The Lock sleeps, and reads its tenure only under the hub's mutex.
func (l *Attempt) Share(with any) bool {
	first := with.(*Attempt) //nolint:errcheck // no other value is ever set
	if !first.leads || !l.mayShare() || !l.Lock.canHave(first.Tenure) {
		return false
	}
	first.Tenure.coming.Add(1)
	l.Tenure, l.delivered = first.Tenure, AcquireResult{how: letIn}
	return true
}

// isLeft reports whether a Lock that was let in but cannot begin is the last user of the tenure, and must end it.
func (t *Tenure) isLeft() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.coming.Add(-1) == 0 && t.hold == nil
}

// leaveOthers ends a hold whose last level is closed if others use its tenure, or soon will; the tenure goes on. If the tenure is lost, err
// says so.
func (h *Hold) leaveOthers() (left bool, err error) {
	t := h.tenure
	if !t.Lock.Kind.Shares {
		return false, nil
	}
	c := t.Lock.Engine
	if until := c.Leases.Until(&t.Lease); !time.Now().Before(until) {
		c.Leases.CatchUp()                                                                 // usually reports the loss first;
		t.Lose(Loss{Reason: LostExpired, Since: until, Text: "lost: not renewed in time"}) // after Close nothing else does
	}
	t.mu.Lock()
	if o := t.several(); (o == nil || o.live == 1) && t.coming.Load() == 0 {
		t.mu.Unlock()
		return false, nil
	}
	h.leaves()
	loss := t.why()
	h.passed = loss == nil
	t.follow()
	t.mu.Unlock()
	c.HoldEnds()
	if loss != nil {
		return true, t.Lock.FailNotHeld(loss)
	}
	return true, nil
}
