package tenure

import (
	"cmp"
	"context"
	"time"

	"github.com/go-rlock/rlock/lua"
)

// A Hold is one acquisition of one lock: from the Lock that won it to the unlock of its last level. It stands on a tenure, of one
// server or of a quorum, and does not talk to Redis: its levels open and close in memory, and the count in Redis follows (count.go). It
// is live from the grant until its loss or unlock.
type Hold struct {
	Tenure   *Tenure         // that it stands on, or stood
	given    context.Context // by the caller of its Lock
	unlocked UnlockedError   // the cause of the end of its sections

	// Guarded by tenure.mu.
	passed   bool   // its unlock has passed the tenure on, whose later loss does not affect it
	together bool   // one of several locks that end together
	exported bool   // ended by an Export
	count    int32  // open levels; the last counts until its unlock has ended; 0 before and after the hold is live
	token    int64  // 0 if there is none
	levels   *Level // the open ones

	// First is its first level, and the ctx of its section. The handle of that decides for the hold. It is embedded to save an allocation.
	First Level
}

// IsOf reports whether the hold is of that lock, or of that side of a read/write lock, through any handle. Handles on a majority may have any
// of its Clients, all of which are in the key.
func (h *Hold) IsOf(m *Lock) bool {
	of := h.Tenure.Lock
	return (of.Client == m.Client || h.Tenure.Majority != nil && of.Kind == m.Kind) && of.Key == m.Key && of.Kind.Side == m.Kind.Side
}

// IsBeside reports whether the hold is of the other side of the same read/write lock.
func (h *Hold) IsBeside(m *Lock) bool {
	of := h.Tenure.Lock
	return of.Client == m.Client && of.Key == m.Key && of.Kind.Side+m.Kind.Side == lua.Reader+lua.Writer
}

// Depth returns the number of open levels.
func (h *Hold) Depth() (n int) {
	h.Tenure.mu.Lock()
	defer h.Tenure.mu.Unlock()
	for l := h.levels; l != nil; l = l.next {
		n++
	}
	return n
}

// FencingToken returns its token, if it has one.
func (h *Hold) FencingToken() (token int64, ok bool) {
	h.Tenure.mu.Lock()
	defer h.Tenure.mu.Unlock()
	return h.token, h.token != 0
}

// AcquireResult is the result of a request: Redis's reply, or its equivalent in memory.
type AcquireResult struct {
	lua.AcquireReply
	Path  GrantPath
	Sent  time.Time     // just before the call that was answered: the lease counts from here (G2)
	Lease time.Duration // 0: what was asked for
}

// GrantPath says how a level was acquired.
type GrantPath int8

const (
	ByCall   GrantPath = iota // Redis has answered, or another process has given the lock
	Passed                    // by the previous unlock: the tenure continues
	Shared                    // beside the process's readers, on their tenure
	LetIn                     // the same, by a reader that stays until this hold has begun
	InMemory                  // as one more level of a hold
)

// Until returns the end of the trusted time of a grant to m.
func (a *AcquireResult) Until(m *Lock) time.Time {
	switch {
	case a.Sent.IsZero():
		return time.Time{}
	case a.Lease > 0:
		return a.Sent.Add(a.Lease)
	}
	return a.Sent.Add(m.TTL)
}

// Outcome is what came of a Lock that met a hold or a tenure: a level, an error, or neither, if that was over. Then the Lock goes on without
// it.
type Outcome struct {
	Level *Level
	Err   error
}

// IsOver reports whether the Lock goes on.
func (o Outcome) IsOver() bool { return o.Level == nil && o.Err == nil }

// newHold returns a hold for the tenure, without a level yet.
func (t *Tenure) newHold() *Hold {
	h := &t.first
	if h.Tenure != nil {
		h = new(Hold)
	}
	h.Tenure = t
	return h
}

// Admitted starts a hold on a tenure, with the ctx for its level. Inside a section of the same lock, Shutdown lets it finish. It fails if
// the client is closed, or the answer came after the lease. Without a call to Redis, the tenure may be over meanwhile.
func (t *Tenure) Admitted(
	ctx context.Context, cancel context.CancelCauseFunc, who *Caller, m *Lock, a AcquireResult, inside bool,
) (o Outcome) {
	c := m.Client
	if a.Path != ByCall {
		t.CatchUp()
	} else if until := a.Until(m); !time.Now().Before(until) {
		return Outcome{Err: m.AnsweredTooLate(t.Field(), until)}
	}
	if !c.HoldBegins(inside) {
		return Outcome{Err: c.Errors.Closed}
	}
	h, outer := t.newHold(), InnermostOpen(ctx)
	t.mu.Lock()
	over, closed := t.loss != nil || a.Path == Shared && (t.isEmpty() || t.callerGone), a.Path != ByCall && c.IsTold()
	if over || closed {
		t.mu.Unlock()
		c.HoldEnds()
		c.Counts.acquired.Add(^uint64(0))
		if !over { // Close has cancelled the holds, and would miss this one
			o.Err = c.Errors.Closed
		}
		return o
	}
	beside := false
	switch a.Path {
	case LetIn:
		t.coming.Add(-1)
		fallthrough
	case Shared:
		beside = t.hold != nil
	default:
		t.Stays = nil
	}
	o.Level = h.begin(ctx, who.Outer, cancel, m, outer, beside)
	h.token = a.Token
	if a.Path != ByCall { // the previous level may have had other terms
		t.follow()
		c.Leases.Update(&t.Lease, time.Time{}, t.renewed())
	}
	t.mu.Unlock()
	if a.Path == Shared || a.Path == LetIn {
		return o
	}
	if m.MinHold > 0 {
		t.Stays = &Stay{Until: time.Now().Add(m.MinHold)}
	}
	c.Open.add(t)
	if a.Path == Passed {
		return o
	}
	if !t.keep(m, a) {
		c.HoldEnds()
		t.Lose(Loss{Reason: LostClosed, Since: time.Now()})
		return Outcome{Err: c.Errors.Closed}
	}
	c.Leases.CatchUp() // cancel this Client's previous hold first if it has expired (G1)
	return o
}

// begin puts the hold on its tenure, with its first level; beside others that stand on it, or as the only one. mu is held.
func (h *Hold) begin(inner, given context.Context, cancel context.CancelCauseFunc, m *Lock, outer Section, beside bool) *Level {
	t, l := h.Tenure, &h.First
	h.unlocked.Name = &m.Name
	l.Context, l.cancel, l.Lock, l.Hold, l.Within = inner, cancel, m, h, outer
	h.given, h.count, h.levels = given, 1, l
	if beside {
		t.severalNow().begins(h)
	} else {
		t.oneAgain()
	}
	t.hold = h
	return l
}

// oneAgain forgets the holds before the next one, or none. mu is held.
func (t *Tenure) oneAgain() {
	if t.callers != nil {
		t.callers.open = nil
	}
}

// keep hands a granted tenure to the renewer. It reports false if the client is closed.
func (t *Tenure) keep(m *Lock, a AcquireResult) bool {
	leases, began, until := m.Client.Leases, a.Sent, a.Until(m)
	t.FirstLease = cmp.Or(a.Lease, m.TTL)
	if a.Lease > 0 {
		began = time.Now() // when it was granted, after the start of its trusted time
	}
	if m.Kind.Side == lua.Reader { // Redisson's readers set the expiry of the shared key
		t.Lease.Guard()
	}
	if m.MaxHold > 0 {
		leases.Limit(&t.Lease, began.Add(m.MaxHold))
	}
	if a.Lease > 0 {
		return leases.KeepShort(&t.Lease, Keeper{t}, until, a.Lease, m.renews)
	}
	return leases.Keep(&t.Lease, Keeper{t}, until, m.renews)
}

// Reopen opens one more level, after an answered call or without a call. It fails if the hold was lost or the client closed since the
// call was sent.
func (h *Hold) Reopen(ctx context.Context, m *Lock, a AcquireResult) Outcome {
	inner, cancel := m.LevelCtx(ctx)
	l := &Level{Context: inner, cancel: cancel, Lock: m, Hold: h, Frame: Frame{Within: InnermostOpen(ctx)}}
	o := h.add(l, a)
	if o.Level == nil {
		cancel(nil)
	}
	return o
}

func (h *Hold) add(l *Level, a AcquireResult) Outcome {
	t, c := h.Tenure, l.Lock.Client
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case h.loss() != nil:
		return Outcome{Err: h.loss()}
	case h.levels == nil, t.callerGone: // its last unlock has begun
		return Outcome{}
	case t.isTold(): // Close has cancelled the open levels, and would miss this one
		return Outcome{Err: c.Errors.Closed}
	}
	h.opens(l)
	h.token = max(h.token, a.Token)
	c.Leases.Update(&t.Lease, a.Until(l.Lock), t.renewed()) // under mu, so that the last update reflects all levels
	return Outcome{Level: l}
}

// cancel cancels the contexts of all open levels, and adds them to ended. mu is held.
func (h *Hold) cancel(why error, ended *Endings) {
	for l := h.levels; l != nil; l = l.next {
		ended.Add(l.Context, &h.Tenure.Lock.Client.Foreign, l.cancel, why)
	}
}

// Unlink takes the hold off its tenure. Then only a call for the count may still use the tenure.
func (h *Hold) Unlink() bool {
	t := h.Tenure
	t.mu.Lock()
	defer t.mu.Unlock()
	busy := t.calling || t.callers != nil && t.callers.waiting > 0
	if busy || t.loss != nil || !t.IsClean() || t.StaysTaken() {
		return false
	}
	h.passed, h.count, t.hold = true, 0, nil
	t.oneAgain()
	return true
}

// Relink undoes Unlink. If the tenure was lost meanwhile, so is the hold.
func (h *Hold) Relink() {
	t := h.Tenure
	t.mu.Lock()
	h.passed, h.count, t.hold = false, 1, h
	loss := t.why()
	h.unlocked.Loss.Store(t.loss)
	t.mu.Unlock()
	if loss != nil {
		t.Lock.Client.ReportLoss(&h.First, t.Lock.Kind.Name, loss)
	}
}

// IsLeft reports whether a Lock that was let in but cannot begin is the last user of the tenure, and must end it.
func (t *Tenure) IsLeft() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.coming.Add(-1) == 0 && t.hold == nil
}

// LeaveOthers ends a hold whose last level is closed if others use its tenure, or soon will; the tenure goes on. If the tenure is lost, err
// says so.
func (h *Hold) LeaveOthers() (left bool, err error) {
	t, c := h.Tenure, h.Tenure.Lock.Client
	t.CatchUp()
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

// Suffices reports whether the hold suffices for a level of m: it is trusted long enough, and has a token if m needs one.
func (h *Hold) Suffices(m *Lock) bool {
	leases := m.Client.Leases
	left := time.Until(leases.Until(&h.Tenure.Lease))
	if left <= 0 {
		leases.CatchUp() // it has expired, even if the renewer has not noticed yet
	}
	h.Tenure.mu.Lock()
	defer h.Tenure.mu.Unlock()
	return (m.Lease == 0 && h.Tenure.renewed() >= m.WatchdogIn(m.Client) || left >= m.TTL) && (m.Kind.Fence == nil || h.token != 0)
}

// NextCount returns the count that Redis should have with one more level.
func (h *Hold) NextCount() int32 {
	t := h.Tenure
	t.mu.Lock()
	defer t.mu.Unlock()
	_, count := t.open()
	return t.counted(max(count, h.count+1))
}

// IsOver reports whether the hold is over, and why it was lost, if it was.
func (h *Hold) IsOver() (over bool, loss error) {
	h.Tenure.mu.Lock()
	defer h.Tenure.mu.Unlock()
	return h.count == 0, h.loss()
}

// Expect notes that one more Lock of a reader that another let in is about to begin its hold, see IsLeft.
func (t *Tenure) Expect() { t.coming.Add(1) }
