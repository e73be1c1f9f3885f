package rlock

import (
	"cmp"
	"context"
	"time"

	"github.com/go-rlock/rlock/lua"
)

// A hold is one acquisition of one lock: from the Lock that won it to the unlock of its last level. It stands on a tenure, and knows nothing of
// Redis: its levels are opened and closed in memory, and the count in Redis follows (count.go). It is live from the moment the Lock has the
// lock until it is lost or unlocked.
type hold struct {
	tenure   *tenure
	given    context.Context // by the caller of its Lock
	unlocked unlockedError   // the cause of the end of its sections

	// Guarded by tenure.mu.
	beside  *hold  // another one that stands on the tenure
	patient bool   // the Lock that took it could not be left
	passed  bool   // its unlock has passed the tenure on: what becomes of that is no concern of it
	count   int32  // the open levels, and the last one until its unlock has ended; 0 before the hold is live, and after it
	token   int64  // 0 if there is none
	levels  *level // the open ones
	first   level  // the first of them; the others have memory of their own
}

// isOf reports whether it is a hold of that lock, or of that side of it, whichever handle took it.
func (h *hold) isOf(m *spec) bool {
	of := h.tenure.spec
	return of.engine == m.engine && of.key == m.key && of.kind.Side == m.kind.Side
}

// isBeside reports whether it is a hold of the other side of a read/write lock.
func (h *hold) isBeside(m *spec) bool {
	of := h.tenure.spec
	return of.engine == m.engine && of.key == m.key && of.kind.Side+m.kind.Side == lua.Reader+lua.Writer
}

// isLive reports whether the hold was neither lost nor unlocked.
func (h *hold) isLive() bool {
	h.tenure.mu.Lock()
	defer h.tenure.mu.Unlock()
	return h.count > 0 && h.tenure.loss == nil
}

// depth is the number of open levels.
func (h *hold) depth() (n int) {
	h.tenure.mu.Lock()
	defer h.tenure.mu.Unlock()
	for l := h.levels; l != nil; l = l.next {
		n++
	}
	return n
}

// loss is why the hold ended, unless by its unlock. mu is held.
func (h *hold) loss() error {
	if h.passed {
		return nil
	}
	return h.tenure.why()
}

func (h *hold) lossSoFar() error {
	h.tenure.mu.Lock()
	defer h.tenure.mu.Unlock()
	return h.loss()
}

func (h *hold) fencingToken() (token int64, ok bool) {
	h.tenure.mu.Lock()
	defer h.tenure.mu.Unlock()
	return h.token, h.token != 0
}

// admit has a hold begin on a tenure. Inside of a section of the same lock, Shutdown lets it finish. It fails if the client is closed, and with
// errOver if nobody asked Redis, and the tenure has ended meanwhile.
func (t *tenure) admit(who caller, m *spec, a acquireResult, inside bool) (*level, error) {
	inner, cancel := m.levelCtx(who.ctx)
	l, err := t.admitAs(inner, who.outer, cancel, m, a, inside)
	if err != nil {
		cancel(nil)
		return nil, err
	}
	if who.ctx.Done() == nil {
		t.mu.Lock()
		l.hold.patient = true
		t.mu.Unlock()
	}
	return l, nil
}

// admitAs is admit with the ctx that the level is to have, and the one that the caller has given.
func (t *tenure) admitAs(
	inner, given context.Context, cancel context.CancelCauseFunc, m *spec, a acquireResult, inside bool,
) (*level, error) {
	c := m.engine
	if a.how != byCall && !time.Now().Before(c.leases.Until(&t.lease)) {
		c.leases.CatchUp() // it is lost, whoever notices first
	}
	if !c.holdBegins(inside) {
		return nil, c.errs.Closed
	}
	h, outer := t.newHold(), innermostOpen(inner)
	t.mu.Lock()
	var err error
	switch {
	case t.loss != nil, a.how == shared && (t.isEmpty() || t.left):
		err = errOver
	case a.how != byCall && c.isTold(): // Close has told the holds, and would miss this one
		err = c.errs.Closed
	}
	if err != nil {
		t.mu.Unlock()
		c.holdEnds()
		c.stats.acquired.Add(^uint64(0))
		return nil, err
	}
	renewed := t.renewed()
	switch a.how {
	case letIn:
		t.coming.Add(-1)
		fallthrough
	case shared:
		h.beside = t.hold
	default:
		t.taken = nil
	}
	t.hold = h
	h.unlocked.name = &m.name
	l := &h.first
	l.Context, l.cancel, l.spec, l.hold, l.outer = inner, cancel, m, h, outer
	h.given, h.count, h.levels, h.token = given, 1, l, a.Token
	t.follow()
	if a.how != byCall && !renewed {
		c.leases.Update(&t.lease, time.Time{}, true) // the last level before may have had a lease of its own
	}
	t.mu.Unlock()
	if a.how == shared || a.how == letIn {
		return l, nil
	}
	if m.minHold > 0 {
		taken := time.Now().Add(m.minHold)
		t.taken = &taken
	}
	c.insiders.add(t)
	if a.how == passed {
		return l, nil
	}
	if !t.keep(m, a) {
		c.holdEnds()
		t.lose(whyLost{Reason: lostClosed, Since: time.Now()})
		return nil, c.errs.Closed
	}
	c.leases.CatchUp() // whoever had the lock through this Client before, till the end of its lease, is told first (G1)
	return l, nil
}

// keep has the renewer keep a tenure that was granted. It reports false if the client is closed.
func (t *tenure) keep(m *spec, a acquireResult) bool {
	leases, began, until := m.engine.leases, a.sent, a.until(m)
	t.given = cmp.Or(a.lease, m.ttl())
	if a.lease > 0 {
		began = time.Now() // the grant was, later than it is trusted from
	}
	if m.kind.Side == lua.Reader { // Redisson's readers set the expiry that all of them share
		t.lease.Guard()
	}
	if m.maxHold > 0 {
		leases.Limit(&t.lease, began.Add(m.maxHold))
	}
	if a.lease > 0 {
		return leases.KeepShort(&t.lease, keeper{t}, until, a.lease)
	}
	return leases.Keep(&t.lease, keeper{t}, until, m.lease == 0)
}

// reopen opens one more level, after a call that was answered, or without one. It fails if the hold was lost, or the client closed, since the
// call was sent.
func (h *hold) reopen(ctx context.Context, m *spec, a acquireResult) (*level, error) {
	inner, cancel := m.levelCtx(ctx)
	l := &level{Context: inner, cancel: cancel, spec: m, hold: h, outer: innermostOpen(ctx)}
	if err := h.add(l, a); err != nil {
		cancel(nil)
		return nil, err
	}
	return l, nil
}

func (h *hold) add(l *level, a acquireResult) error {
	t, c := h.tenure, l.spec.engine
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case h.loss() != nil:
		return h.loss()
	case h.levels == nil, t.left: // its last unlock has begun
		return errOver
	case c.isTold(): // Close told the open levels, and would miss this one
		return c.errs.Closed
	}
	before := t.renewed()
	h.count++
	h.levels, l.next = l, h.levels
	h.token = max(h.token, a.Token)
	t.follow()
	if renewed, until := t.renewed(), a.until(l.spec); renewed != before || !until.IsZero() {
		c.leases.Update(&t.lease, until, renewed) // under mu, so that the last one says what the levels ask for
	}
	return nil
}

// cancel ends the contexts of all open levels. mu is held: it takes no lock of ours, and the callers' own AfterFuncs run on
// goroutines of their own.
func (h *hold) cancel(why error) {
	for l := h.levels; l != nil; l = l.next {
		l.cancel(why)
	}
}
