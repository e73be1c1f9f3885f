package engine

import "time"

// MajorityOf returns the tenure that a majority is as a whole. m says how it is taken, and what it is called.
func MajorityOf(m *Spec, of Majority) *Tenure {
	t := newTenure(m)
	t.majority = of
	return t
}

// Share returns the tenure of one server in a majority. Its owner differs from that of the others by the part of the Client alone, for those
// who read logs.
func (t *Tenure) Share(m *Spec) *Tenure {
	m.Engine.showLabel()
	return &Tenure{Spec: m, Tag: t.Tag}
}

// Admit has a hold begin on a majority, through m. Those who call it have counted the hold.
func (t *Tenure) Admit(who Caller, m *Spec) *Level {
	inner, cancel := m.levelCtx(who.Parent())
	h, outer := t.newHold(), InnermostOpen(who.Ctx)
	t.mu.Lock()
	defer t.mu.Unlock()
	return h.begin(inner, who.Outer, cancel, m, outer)
}

// RenewedFor is for how long the open levels have the watchdog of c renew a share; 0: they do not.
func (t *Tenure) RenewedFor(c *Engine) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.renewedFor(c)
}

// TooLate is the error of a majority whose time was over before enough servers had answered.
func (t *Tenure) TooLate(until time.Time) error { return t.tooLate(t.Spec, until) }

// Reenter opens one more level of a hold of a majority, of which l is one, through m. It fails with the loss, with ErrOver if the hold was
// unlocked meanwhile, or because too few Clients are left.
func (l *Level) Reenter(who Caller, m *Spec) (*Level, error) {
	t := l.hold.tenure
	t.catchUp()
	inner, err := l.hold.reopen(who.Parent(), m, AcquireResult{how: inMemory})
	if err == nil {
		t.catchUp() // it may ask for more
		who.Took(PathReentry)
	}
	return inner, err
}

// Loss is why its hold was lost, or nil.
func (l *Level) Loss() error { return l.hold.lossSoFar() }

// Await waits for what comes of the release of a majority, until the hold is lost or that time is over; why is then what keeps it from its end.
// The hold has ended when it returns, also if the release goes on.
func (l *Level) Await(results <-chan []error, over time.Time, why func() error) error {
	h, t, m := l.hold, l.hold.tenure, l.spec
	errs, ended := awaitUnlock([]*Level{l}, over, results)
	if !ended {
		errs = []error{why()}
	}
	t.mu.Lock()
	loss := h.loss()
	h.count = 0
	t.mu.Unlock()
	switch {
	case loss != nil:
		return m.notHeld(loss)
	case len(errs) > 0:
		return m.unreachable(errs[0])
	}
	return nil
}

// Release ends a tenure on which no hold stands, again if something went wrong that may pass and its lease lasts. What remains unresolved is
// swept.
func (t *Tenure) Release() ReleaseResult {
	all, by := unlockings{{tenure: t, args: t.releaseArgs()}}, new(unlocker) // whom nobody leaves
	_, until := all.lastToEnd()
	all.finish(by, all.call(by, false))
	r := all[0].ReleaseResult
	if t.givenBack(r.Err); r.Err != nil {
		t.UnresolvedUntil(until) // its lease may be longer than that of its handle
	}
	t.SweepIfUnresolved()
	return r
}
