package tenure

import (
	"time"

	"github.com/go-rlock/rlock/internal/kinds"
)

// MajorityOf returns the tenure of a majority as a whole. m sets its name and options.
func MajorityOf(m *Lock, of Majority) *Tenure {
	t := m.NewTenure()
	t.Majority = of
	return t
}

// Whole returns the handle on a majority as a whole: on the terms of m, one of its members, and with a key that Redis does not have.
func (m *Lock) Whole(key string, k *kinds.Kind, name string, maxWait time.Duration, persists bool) *Lock {
	t := Terms{Lease: m.Lease, Watchdog: m.Watchdog, MaxWait: maxWait, Wants: m.Wants, AskedAfter: m.AskedAfter, Persists: persists}
	whole := &Lock{Terms: t, Client: m.Client, Kind: k, Name: name, Key: key}
	whole.follows()
	return whole
}

// Share returns the tenure of one server in a majority. Owners on the servers differ only in the Client part, which makes logs easy to
// match.
func (t *Tenure) Share(m *Lock) *Tenure {
	_ = m.Mark() // its Client's observers learn of it, too
	return &Tenure{Lock: m, Tag: t.Tag}
}

// Admit starts a hold on a majority, through m. The caller has already counted the hold.
func (t *Tenure) Admit(who Caller, m *Lock) *Level {
	inner, cancel := m.LevelCtx(who.Parent())
	h, outer := t.newHold(), InnermostOpen(who.Ctx)
	t.mu.Lock()
	defer t.mu.Unlock()
	return h.begin(inner, who.Outer, cancel, m, outer, false)
}

// RenewedFor returns the lease to which the watchdog of c renews a share for the open levels; 0: it does not.
func (t *Tenure) RenewedFor(c *Client) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.renewedFor(c)
}

// Reenter opens one more level of l's majority hold, through m. It fails with the loss, or if too few Clients are left.
func (l *Level) Reenter(who Caller, m *Lock) Outcome {
	t := l.Hold.Tenure
	t.CatchUp()
	o := l.Hold.Reopen(who.Parent(), m, AcquireResult{Path: InMemory})
	if o.Level != nil {
		t.CatchUp() // the new level may need a longer lease
		who.Took(PathReentry)
	}
	return o
}
