package engine

import (
	"time"

	"github.com/go-rlock/rlock/internal/kinds"
)

// MajorityOf returns the tenure of a majority as a whole. m sets its name and options.
func MajorityOf(m *Lock, of Majority) *Tenure {
	t := newTenure(m)
	t.majority = of
	return t
}

// Whole returns the handle on a majority as a whole: on the terms of m, one of its members, and with a key that Redis does not have.
func (m *Lock) Whole(key string, k *kinds.Kind, name string, maxWait time.Duration) *Lock {
	t := Terms{Lease: m.Lease, Watchdog: m.Watchdog, MaxWait: maxWait, Wants: m.Wants}
	whole := &Lock{Terms: t, Engine: m.Engine, Kind: k, Name: name, Key: key}
	whole.follows()
	return whole
}

// IsMajority reports whether it is that of a majority, and has no owner in Redis.
func (t *Tenure) IsMajority() bool { return t.majority != nil }

// Share returns the tenure of one server in a majority. Owners on the servers differ only in the Client part, which makes logs easy to
// match.
func (t *Tenure) Share(m *Lock) *Tenure {
	_ = m.Mark() // its Client's observers learn of it, too
	return &Tenure{Lock: m, Tag: t.Tag}
}

// Admit starts a hold on a majority, through m. The caller has already counted the hold.
func (t *Tenure) Admit(who Caller, m *Lock) *Level {
	inner, cancel := m.levelCtx(who.Parent())
	h, outer := t.newHold(), InnermostOpen(who.Ctx)
	t.mu.Lock()
	defer t.mu.Unlock()
	return h.begin(inner, who.Outer, cancel, m, outer, false)
}

// RenewedFor returns the lease to which the watchdog of c renews a share for the open levels; 0: it does not.
func (t *Tenure) RenewedFor(c *Engine) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.renewedFor(c)
}

// TooLate returns the error for a majority whose lease was over before enough servers had answered.
func (t *Tenure) TooLate(until time.Time) error { return t.tooLate(t.Lock, until) }

// Reenter opens one more level of l's majority hold, through m. It fails with the loss, with ErrOver if the hold was unlocked
// meanwhile, or if too few Clients are left.
func (l *Level) Reenter(who Caller, m *Lock) (*Level, error) {
	t := l.hold.tenure
	t.catchUp()
	inner, err := l.hold.reopen(who.Parent(), m, AcquireResult{how: inMemory})
	if err == nil {
		t.catchUp() // the new level may need a longer lease
		who.Took(PathReentry)
	}
	return inner, err
}

// Loss returns why its hold was lost, or nil.
func (l *Level) Loss() error { return l.hold.lossSoFar() }

// Await waits for the results of a majority's release, until the hold is lost or over has passed; why then returns the reason for the
// delay. The hold has ended when Await returns, even if the release continues.
func (l *Level) Await(results <-chan []error, over time.Time, why func() error) error {
	h, t, m := l.hold, l.hold.tenure, l.lock
	errs, ended := awaitUnlock([]*Level{l}, over, results)
	if !ended {
		errs = []error{why()}
	}
	t.mu.Lock()
	loss := h.loss()
	h.setCount(0)
	t.mu.Unlock()
	switch {
	case loss != nil:
		return m.FailNotHeld(loss)
	case len(errs) > 0:
		return m.FailPending(errs[0])
	}
	return nil
}

// Release ends a tenure without a hold, and retries after transient errors while its lease lasts. Anything unresolved is swept.
func (t *Tenure) Release() ReleaseResult {
	all, by := unlockings{{tenure: t, args: t.releaseArgs()}}, new(unlocker) // no caller leaves it
	_, until := all.lastToEnd()
	all.finish(by, all.call(by, false))
	r := all[0].ReleaseResult
	if t.givenBack(r.Err); r.Err != nil {
		t.UnresolvedUntil(until) // its lease may be longer than its handle's
	}
	t.SweepIfUnresolved()
	return r
}
