package engine

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/go-rlock/rlock/lua"
)

// A Hold is one acquisition of one lock: from the Lock that won it to the unlock of its last level. It stands on a tenure, of one
// server or of a quorum, and does not talk to Redis: its levels open and close in memory, and the count in Redis follows (count.go). It
// is live from the grant until its loss or unlock.
type Hold struct {
	tenure   *Tenure
	given    context.Context // by the caller of its Lock
	unlocked UnlockedError   // the cause of the end of its sections

	// Guarded by tenure.mu.
	patient  bool   // its Lock had no ctx to leave by
	passed   bool   // its unlock has passed the tenure on, whose later loss does not affect it
	together bool   // one of several locks that end together
	exported bool   // ended by an Export
	count    int32  // open levels; the last counts until its unlock has ended; 0 before and after the hold is live
	token    int64  // 0 if there is none
	levels   *Level // the open ones
	first    Level  // the first of them, embedded to save an allocation
}

// Tenure returns the tenure on which the hold stands, or stood.
func (h *Hold) Tenure() *Tenure { return h.tenure }

// Handle returns the handle of its first level, which decides for the hold.
func (h *Hold) Handle() *Lock { return h.first.lock }

// isOf reports whether the hold is of that lock, or of that side of a read/write lock, through any handle.
func (h *Hold) isOf(m *Lock) bool {
	of := h.tenure.Lock
	return of.Engine == m.Engine && of.Key == m.Key && of.Kind.Side == m.Kind.Side
}

// isBeside reports whether the hold is of the other side of the same read/write lock.
func (h *Hold) isBeside(m *Lock) bool {
	of := h.tenure.Lock
	return of.Engine == m.Engine && of.Key == m.Key && of.Kind.Side+m.Kind.Side == lua.Reader+lua.Writer
}

// isLive reports whether the hold was neither lost nor unlocked.
func (h *Hold) isLive() bool {
	h.tenure.mu.Lock()
	defer h.tenure.mu.Unlock()
	return h.count > 0 && h.tenure.loss == nil
}

// depth returns the number of open levels.
func (h *Hold) depth() (n int) {
	h.tenure.mu.Lock()
	defer h.tenure.mu.Unlock()
	for l := h.levels; l != nil; l = l.next {
		n++
	}
	return n
}

// loss returns why the hold was lost, or nil. mu is held.
func (h *Hold) loss() error {
	if h.passed {
		return nil
	}
	return h.tenure.why()
}

func (h *Hold) lossSoFar() error {
	h.tenure.mu.Lock()
	defer h.tenure.mu.Unlock()
	return h.loss()
}

func (h *Hold) fencingToken() (token int64, ok bool) {
	h.tenure.mu.Lock()
	defer h.tenure.mu.Unlock()
	return h.token, h.token != 0
}

// AcquireResult is the result of a request: Redis's reply, or its equivalent in memory.
type AcquireResult struct {
	lua.AcquireReply
	how   how
	Sent  time.Time     // just before the call that was answered: the lease counts from here (G2)
	lease time.Duration // 0: what was asked for
}

// how a level was acquired.
type how int8

const (
	byCall   how = iota // Redis has answered, or another process has given the lock
	passed              // by the previous unlock: the tenure continues
	shared              // beside the process's readers, on their tenure
	letIn               // the same, by a reader that stays until this hold has begun
	inMemory            // as one more level of a hold
)

// Granted reports whether the lock was granted.
func (a *AcquireResult) Granted() bool { return a.Status == lua.Acquired }

// until returns the end of the trusted time of a grant to m.
func (a *AcquireResult) until(m *Lock) time.Time {
	switch {
	case a.Sent.IsZero():
		return time.Time{}
	case a.lease > 0:
		return a.Sent.Add(a.lease)
	}
	return a.Sent.Add(m.TTL)
}

// ErrOver means the hold to re-enter was unlocked meanwhile.
var ErrOver = errors.New("the hold is over")

// admit starts a hold on a tenure, with the ctx for its level. Inside a section of the same lock, Shutdown lets it finish. It fails if
// the client is closed. Without a call to Redis, it fails with ErrOver if the tenure has ended meanwhile.
func (t *Tenure) admit(
	ctx context.Context, cancel context.CancelCauseFunc, who *Caller, m *Lock, a AcquireResult, inside bool,
) (*Level, error) {
	c := m.Engine
	if a.how != byCall {
		t.catchUp()
	}
	if !c.HoldBegins(inside) {
		return nil, c.Errors.Closed
	}
	h, outer, patient := t.newHold(), InnermostOpen(ctx), who.Ctx.Done() == nil
	t.mu.Lock()
	var err error
	switch {
	case t.loss != nil, a.how == shared && (t.isEmpty() || t.left):
		err = ErrOver
	case a.how != byCall && c.IsTold(): // Close has cancelled the holds, and would miss this one
		err = c.Errors.Closed
	}
	if err != nil {
		t.mu.Unlock()
		c.HoldEnds()
		c.stats.acquired.Add(^uint64(0))
		return nil, err
	}
	renewed, beside := t.renewed(), false
	switch a.how {
	case letIn:
		t.coming.Add(-1)
		fallthrough
	case shared:
		beside = t.hold != nil
	default:
		t.stays = nil
	}
	l := h.begin(ctx, who.Outer, cancel, m, outer, beside)
	h.patient, h.token = patient, a.Token
	t.follow()
	if a.how != byCall {
		if now := t.renewed(); now != renewed {
			c.Leases.Update(&t.Lease, time.Time{}, now) // the previous level may have had other terms
		}
	}
	t.mu.Unlock()
	if a.how == shared || a.how == letIn {
		return l, nil
	}
	if m.MinHold > 0 {
		t.stays = &stay{until: time.Now().Add(m.MinHold)}
	}
	t.joinInsiders()
	if a.how == passed {
		return l, nil
	}
	if !t.keep(m, a) {
		c.HoldEnds()
		t.Lose(Loss{Reason: LostClosed, Since: time.Now()})
		return nil, c.Errors.Closed
	}
	c.Leases.CatchUp() // cancel this Client's previous hold first if it has expired (G1)
	return l, nil
}

// begin puts the hold on its tenure, with its first level; beside others that stand on it, or as the only one. mu is held.
func (h *Hold) begin(inner, given context.Context, cancel context.CancelCauseFunc, m *Lock, outer Section, beside bool) *Level {
	t, l := h.tenure, &h.first
	h.unlocked.Name = &m.Name
	l.Context, l.cancel, l.lock, l.hold, l.outer = inner, cancel, m, h, outer
	h.given, h.count, h.levels = given, 1, l
	if beside {
		t.severalNow().begins(h)
	} else {
		t.oneAgain()
	}
	t.hold = h
	return l
}

// keep hands a granted tenure to the renewer. It reports false if the client is closed.
func (t *Tenure) keep(m *Lock, a AcquireResult) bool {
	leases, began, until := m.Engine.Leases, a.Sent, a.until(m)
	t.given = cmp.Or(a.lease, m.TTL)
	if a.lease > 0 {
		began = time.Now() // when it was granted, after the start of its trusted time
	}
	if m.Kind.Side == lua.Reader { // Redisson's readers set the expiry of the shared key
		t.Lease.Guard()
	}
	if m.MaxHold > 0 {
		leases.Limit(&t.Lease, began.Add(m.MaxHold))
	}
	if a.lease > 0 {
		return leases.KeepShort(&t.Lease, Keeper{t}, until, a.lease, m.renews)
	}
	return leases.Keep(&t.Lease, Keeper{t}, until, m.renews)
}

// reopen opens one more level, after an answered call or without a call. It fails if the hold was lost or the client closed since the
// call was sent.
func (h *Hold) reopen(ctx context.Context, m *Lock, a AcquireResult) (*Level, error) {
	inner, cancel := m.levelCtx(ctx)
	l := &Level{Context: inner, cancel: cancel, lock: m, hold: h, outer: InnermostOpen(ctx)}
	if err := h.add(l, a); err != nil {
		cancel(nil)
		return nil, err
	}
	return l, nil
}

func (h *Hold) add(l *Level, a AcquireResult) error {
	t, c := h.tenure, l.lock.Engine
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case h.loss() != nil:
		return h.loss()
	case h.levels == nil, t.left: // its last unlock has begun
		return ErrOver
	case t.isTold(): // Close has cancelled the open levels, and would miss this one
		return c.Errors.Closed
	}
	before := t.renewed()
	t.severalNow().opens(l)
	h.setCount(h.count + 1)
	h.levels.prev, l.next, h.levels = l, h.levels, l
	h.token = max(h.token, a.Token)
	t.follow()
	t.mayLast(l.lock.RenewedFor(c))
	if renewed, until := t.renewed(), a.until(l.lock); renewed != before || !until.IsZero() {
		c.Leases.Update(&t.Lease, until, renewed) // under mu, so that the last update reflects all levels
	}
	return nil
}

// cancel cancels the contexts of all open levels, and adds them to ended. mu is held.
func (h *Hold) cancel(why error, ended *Endings) {
	for l := h.levels; l != nil; l = l.next {
		ended.Add(l.Context, h.tenure.Lock.Engine, l.cancel, why)
	}
}
