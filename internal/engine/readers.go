package engine

import "time"

// Readers of one process share a tenure. A reader that Redis lets in leads: those that came while it asked are let in with it, and others
// join it for a while, in memory, as holds of their own on its tenure, which ends with the last of them. Its call has looked at the marks of
// writers that wait; so a writer waits for readers that came within a bound since its answer (HandOff.For), and for those that were let in by
// calls. When half of that time is over, the next reader asks Redis, and leads from its answer on, while the others go on as before.
//
// Nobody joins who would have to wait in the process's own queue, say behind a writer.

// lead has others join the reader that was just let in by a call.
func (i *insiders) lead(t *Tenure) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.of[t.Tag] != t { // it was lost, or unlocked
		return
	}
	if i.readers == nil {
		i.readers = make(map[string]*readers)
	}
	i.readers[t.Spec.Key] = &readers{tenure: t, since: time.Now()}
}

// leading is the tenure that a reader may join now; nil: it is to ask.
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

// mayShare reports whether a Lock wants of Redis what every other reader does, see mayPassOn, has nothing to be settled there, and is not
// inside of the writer.
func (l *attempt) mayShare() bool {
	m := l.Spec
	return m.Kind.Shares && !m.alone && l.within == nil && l.Tenure.isClean() &&
		m.Engine.handsOff() && m.usesGrants() && m.MaxHold == 0
}

// lead has others join a Lock that was let in by a call.
func (l *attempt) lead(a AcquireResult) {
	if a.how == byCall && l.mayShare() {
		l.leads = true
		l.Spec.Engine.insiders.lead(l.Tenure)
	}
}

// share has a reader join those of its process. It returns ErrOver if there are none, or too little is left of their lease, or they came too
// long ago.
func (l *attempt) share() (*Level, error) {
	m := l.Spec
	if !l.mayShare() || !m.Engine.Hub.MayShare(m.waiters()) {
		return nil, ErrOver
	}
	t := m.Engine.insiders.leading(m.Key, m.Engine.Options.HandOff.For)
	if t == nil {
		return nil, ErrOver
	}
	if !m.canHave(t) {
		return nil, ErrOver
	}
	if left := time.Until(m.Engine.Leases.Until(&t.Lease)); left < m.TTL()/3 || left > m.TTL() { // nor a longer one than it asks for
		return nil, ErrOver
	}
	ctx, cancel := m.levelCtx(l.Parent())
	s, err := t.admit(ctx, cancel, &l.Caller, m, AcquireResult{how: shared}, false)
	if err != nil {
		cancel(nil)
		if err != ErrOver { //nolint:errorlint // never wrapped
			err = l.failure(err)
		}
		return nil, err
	}
	l.level = s
	l.Tenure = t
	l.mayBeAsked(AcquireResult{how: shared})
	l.isShared()
	return s, nil
}

// isShared tells that it joined other readers.
func (l *attempt) isShared() {
	l.Took(PathShared)
	l.Spec.Engine.stats.shared.Add(1)
}

// Share has the Lock join one before it, which leads. It sleeps, and looks at its tenure only behind the hub's mutex.
func (l *attempt) Share(with any) bool {
	first := with.(*attempt) //nolint:errcheck // no other value is ever set
	if !first.leads || !l.mayShare() || !l.Spec.canHave(first.Tenure) {
		return false
	}
	first.Tenure.coming.Add(1)
	l.Tenure, l.delivered = first.Tenure, AcquireResult{how: letIn}
	return true
}

// isLeft is for a Lock that was let in, and cannot begin: it reports whether the tenure is left to it, to end that.
func (t *Tenure) isLeft() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.coming.Add(-1) == 0 && t.hold == nil
}

// leaveOthers ends a hold whose last level is closed, if others stand on its tenure, or are about to: then that goes on. err is the loss, if that has ended.
func (h *hold) leaveOthers() (left bool, err error) {
	t := h.tenure
	if !t.Spec.Kind.Shares {
		return false, nil
	}
	c := t.Spec.Engine
	if until := c.Leases.Until(&t.Lease); !time.Now().Before(until) {
		c.Leases.CatchUp()                                                                 // it is lost, whoever notices first;
		t.Lose(Loss{Reason: LostExpired, Since: until, Text: "lost: not renewed in time"}) // after Close nobody else does
	}
	t.mu.Lock()
	if t.hold == h && h.beside == nil && t.coming.Load() == 0 {
		t.mu.Unlock()
		return false, nil
	}
	at := &t.hold
	for *at != h {
		at = &(*at).beside
	}
	*at = h.beside
	loss := t.why()
	h.count, h.passed = 0, loss == nil
	t.follow()
	t.mu.Unlock()
	c.HoldEnds()
	if loss != nil {
		return true, t.Spec.notHeld(loss)
	}
	return true, nil
}
