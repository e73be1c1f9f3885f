package rlock

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-rlock/rlock/lease"
	"github.com/go-rlock/rlock/lua"
)

// A hold is one acquisition of one lock: from the Lock that won it to the unlock of its last level. It is one hash field,
// never reused (I3). It is live from the moment the Lock has the lock until it is lost or unlocked.
//
// Levels are opened and closed in memory, and the count in Redis follows (count.go). The calls that the hold depends on, for a longer
// lease and for its end, are made one at a time, by whoever has the right to make calls (I1). Before it is live, the Lock makes them, or
// the claimant that stands for it (see handoff.go).
type hold struct {
	mutex *Mutex // the handle that took it; how it ends is up to that, also if levels are of others
	tag   uint64 // plays Redisson's thread id
	lease lease.Lease

	// For whoever makes calls.
	doubt  *doubt     // nil most of the time
	queued *time.Time // when the first call was sent that may have put it in the queue in Redis; nil: none, as for most
	taken  *time.Time // until when the lock stays taken after an unlock, see WithMinHold; nil: it does not
	run    *run       // of hand-offs, that it is part of; nil if none led to it, and none has been tried

	mu      sync.Mutex // guards the following; no other lock but that of a renewer is taken under it
	calling bool       // somebody has the right to make calls
	left    bool       // the caller of its last unlock has left: its lease is not kept any more
	patient bool       // the Lock that took it could not be left
	count   int32      // the open levels, and the last one until its unlock has ended; 0 before the hold is live, and after it
	callers *callers   // nil until there are some, or a second level
	token   int64      // 0 if there is none
	loss    *LostError // why it ended, unless by its unlock
	levels  *level     // the open ones
	first   level      // the first of them; the others have memory of their own
}

var lastTag atomic.Uint64

func newHold(m *Mutex) *hold { return &hold{mutex: m, tag: lastTag.Add(1)} }

// isOf reports whether it is a hold of that lock, or of that side of it, whichever handle took it.
func (h *hold) isOf(m *Mutex) bool {
	return h.mutex.client == m.client && h.mutex.key == m.key && h.mutex.kind.side == m.kind.side
}

// isBeside reports whether it is a hold of the other side of a read/write lock.
func (h *hold) isBeside(m *Mutex) bool {
	return h.mutex.client == m.client && h.mutex.key == m.key && h.mutex.kind.side+m.kind.side == lua.Reader+lua.Writer
}

// field is the owner as Redis has it. It is made anew each time, for there may be many holds, and calls for
// each of them are rare.
func (h *hold) field() string {
	var b [64]byte // room for a UUID and any number
	k := h.mutex.kind
	field := append(append(append(b[:0], h.mutex.client.id...), ':'), k.prefix...)
	if k.times != nil && h.mutex.isShort() {
		field = append(field, k.prefix...) // its places are known by it
	}
	return string(append(strconv.AppendUint(field, h.tag, 10), k.suffix...))
}

// level is one Lock of a hold, open until its unlock is called. It is the ctx that the Lock returns.
type level struct {
	context.Context // cancelled when the level is closed or the hold is lost

	mutex *Mutex
	hold  *hold
	outer *level   // the innermost one that was open when this one was opened under its ctx; so nobody walks over sections that had ended
	trace *tracing // nil: nobody wants to know

	inner innerUnlocks

	// Guarded by hold.mu.
	cancel context.CancelCauseFunc // nil once the level is closed
	next   *level                  // the one that was opened before it, of those that are open
	gate   *level                  // of an Upgradeable, which the loss of the hold frees; nil: none
}

// String keeps fmt from reading the fields, which change. It is the form of package context.
func (l *level) String() string {
	return fmt.Sprint(l.Context) + ".WithLock(" + quote(l.mutex.name) + ")"
}

// Value makes the level the innermost one of its context.
func (l *level) Value(key any) any {
	if _, ok := key.(ctxKey); ok {
		return l
	}
	return l.Context.Value(key)
}

func (l *level) isOpen() bool {
	l.hold.mu.Lock()
	defer l.hold.mu.Unlock()
	return l.cancel != nil
}

// isLive reports whether the hold was neither lost nor unlocked.
func (h *hold) isLive() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.count > 0 && h.loss == nil
}

// depth is the number of open levels.
func (h *hold) depth() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for l := h.levels; l != nil; l = l.next {
		n++
	}
	return n
}

func (h *hold) lossSoFar() *LostError {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.loss
}

func (h *hold) fencingToken() (token int64, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.token, h.token != 0
}

// open makes the level that Redis has granted, or that nobody need be asked for, which an empty answer stands for; inside of a section of
// the same lock, Shutdown lets it finish. It fails if the hold was lost, or the client closed, since the call was sent.
func (h *hold) open(ctx context.Context, m *Mutex, a answer, inside bool) (*level, error) {
	if m.kind.side == lua.Writer {
		ctx = &outerCtx{Context: ctx}
	}
	inner, cancel := context.WithCancelCause(ctx)
	l, err := h.openAs(inner, cancel, m, a, inside)
	if err != nil {
		cancel(nil)
		return nil, err
	}
	if l == &h.first && ctx.Done() == nil {
		h.mu.Lock()
		h.patient = true
		h.mu.Unlock()
	}
	return l, nil
}

// openAs is open with the ctx that the level is to have.
func (h *hold) openAs(inner context.Context, cancel context.CancelCauseFunc, m *Mutex, a answer, inside bool) (*level, error) {
	c, outer := m.client, innermostOpen(inner)
	h.mu.Lock()
	first, inMemory := h.count == 0, a.sent.IsZero()
	var err error
	switch {
	case h.loss != nil:
		err = h.loss
	case h.left, inMemory && h.levels == nil: // its last unlock has begun
		err = errOver
	case first && !c.holdBegins(inside), !first && c.isTold(): // Close told the open levels, and would miss this one
		err = ErrClosed
	}
	if err != nil {
		h.mu.Unlock()
		return nil, err
	}
	l := &h.first
	if !first {
		l = new(level)
	}
	before := h.renewed()
	l.Context, l.cancel, l.mutex, l.hold, l.outer = inner, cancel, m, h, outer
	h.count++
	h.levels, l.next = l, h.levels
	renewed := h.renewed()
	h.token = max(h.token, a.Token)
	h.follow()
	until := a.until(m)
	if !first && (renewed != before || !until.IsZero()) {
		c.leases.Update(&h.lease, until, renewed) // under mu, so that the last one says what the levels ask for
	}
	h.mu.Unlock()
	if !first {
		return l, nil
	}
	began := a.sent
	if a.lease > 0 {
		began = time.Now() // the grant was, later than it is trusted from
	}
	if m.kind.side == lua.Reader { // Redisson's readers set the expiry that all of them share
		h.lease.Guard()
	}
	if m.maxHold > 0 {
		c.leases.Limit(&h.lease, began.Add(m.maxHold))
	}
	var kept bool
	if a.lease > 0 {
		kept = c.leases.KeepShort(&h.lease, keeper{h}, until, a.lease)
	} else {
		kept = c.leases.Keep(&h.lease, keeper{h}, until, renewed)
	}
	if !kept {
		c.holdEnds()
		h.lose(&LostError{Reason: LostClosed, Since: time.Now()})
		return nil, ErrClosed
	}
	if m.minHold > 0 {
		taken := time.Now().Add(m.minHold)
		h.taken = &taken
	}
	c.leases.CatchUp() // whoever had the lock through this Client before, till the end of its lease, is told first (G1)
	return l, nil
}

// callers are those who want the right to make calls for a hold, in their order, or to hear of a loss. All fields are guarded by hold.mu.
type callers struct {
	queue []*turn
	lost  chan struct{} // closed when the hold is lost; nil until somebody looks at it
	count follower
}

// turn is the place of one of them.
type turn struct {
	over  chan struct{} // closed when the right is theirs, or the hold is lost
	given bool
}

// tryBegin takes the right to make calls for the hold (I1), unless somebody has it. It is for an unlock, which does not wait for the
// count in Redis.
func (h *hold) tryBegin() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	ok := !h.calling
	h.calling = true
	return ok
}

// begin is tryBegin, and queues for the right if somebody has it: the turn has to end with takes or leaves. There is none if the hold was
// lost, for that ends the need.
func (h *hold) begin() (ok bool, t *turn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case !h.calling && !h.isStating():
		h.calling = true
		return true, nil
	case h.loss != nil:
		return false, nil
	}
	return false, h.join()
}

// join queues for the right. mu is held.
func (h *hold) join() *turn {
	if h.callers == nil {
		h.callers = new(callers)
	}
	t := &turn{over: make(chan struct{})}
	h.callers.queue = append(h.callers.queue, t)
	return t
}

// takes is begin again, for a turn that is over.
func (h *hold) takes(t *turn) (ok bool, next *turn) {
	if t.given {
		return true, nil
	}
	return h.begin()
}

// leaves ends a turn that nobody waits for any more. The right goes to the next one if it was given meanwhile.
func (h *hold) leaves(t *turn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case t.given:
		h.pass()
	case h.callers != nil:
		h.callers.queue = slices.DeleteFunc(h.callers.queue, func(o *turn) bool { return o == t })
	}
}

// await is begin for an unlock, also if somebody has to give the right back first, and whatever becomes of the hold meanwhile.
func (h *hold) await() {
	for {
		h.mu.Lock()
		if !h.calling {
			h.calling = true
			h.mu.Unlock()
			return
		}
		t := h.join()
		h.mu.Unlock()
		if <-t.over; t.given {
			return
		}
	}
}

// end gives the right to make calls back.
func (h *hold) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pass()
}

// pass gives the right to the next one, and wakes nobody else: of n that were all woken each time, there would be n²/2 wake-ups. mu is held.
func (h *hold) pass() {
	h.calling = h.callers != nil && len(h.callers.queue) > 0 && !h.callers.count.calling // state passes it on
	if !h.calling {
		h.follow()
	} else {
		next := h.callers.queue[0]
		h.callers.queue[0] = nil
		h.callers.queue = h.callers.queue[1:]
		next.given = true
		close(next.over)
	}
}

// losing is closed when the hold is lost. mu is held, and it is not lost yet.
func (h *hold) losing() <-chan struct{} {
	if h.callers == nil {
		h.callers = new(callers)
	}
	if h.callers.lost == nil {
		h.callers.lost = make(chan struct{})
	}
	return h.callers.lost
}

// wake tells all of them that the hold is lost. mu is held.
func (h *hold) wake() {
	if h.callers == nil {
		return
	}
	for _, t := range h.callers.queue {
		close(t.over)
	}
	if h.callers.lost != nil {
		close(h.callers.lost)
	}
	h.callers.queue, h.callers.lost = nil, nil
}

// renewed reports whether the watchdog keeps the hold: if any open level has no lease of its own.
// mu is held.
func (h *hold) renewed() bool {
	for l := h.levels; l != nil; l = l.next {
		if l.mutex.lease == 0 {
			return true
		}
	}
	return false
}

// close takes the level out of its hold and ends its ctx. It reports false if it was closed before, and whether the hold ends with it.
func (l *level) close() (closed, last bool) {
	h := l.hold
	h.mu.Lock()
	cancel := l.cancel
	if cancel == nil {
		h.mu.Unlock()
		return false, false
	}
	before := h.renewed()
	l.cancel = nil
	at := &h.levels
	for *at != l { // seldom far: levels are mostly closed in the reverse order
		at = &(*at).next
	}
	*at = l.next
	last = h.levels == nil
	renewed := h.renewed()
	if !last && h.loss == nil {
		h.count--
	}
	h.follow()
	if !last && renewed != before {
		h.mutex.client.leases.Update(&h.lease, time.Time{}, renewed)
	}
	h.mu.Unlock()
	if last {
		h.mutex.client.takers.remove(h.tag)
	}
	cancel((*unlockedError)(h))
	return true, last
}

// keeper is the hold as the renewer sees it.
type keeper struct{ *hold }

func (k keeper) Item() lease.Item { return lease.Item{Name: k.mutex.key, Owner: k.field()} }
func (k keeper) Group() any       { return k.mutex.client.group(k.mutex) }

// Lost is called when nobody may trust in the hold any more.
func (k keeper) Lost(loss lease.Loss) {
	e := &LostError{Reason: LostExpired, Since: loss.Until, err: loss.Err}
	switch {
	case loss.Gone:
		k.gone()
		return
	case loss.Limit:
		e.Reason, e.text = LostMaxHold, "lost: the longest hold was reached, "+k.mutex.maxHold.String()
	case !loss.Renewed:
		e.text = "lost: its lease of fixed length ended"
	case loss.Err == nil:
		e.text = "lost: not renewed in time"
	default:
		e.text = "lost: not renewed in time: " + oneLine("", loss.Err)
	}
	k.lose(e)
}

// Closed is called when the client ends before the hold does. That is no loss: the hold stays as it is in Redis, for its unlock.
func (k keeper) Closed() {
	h := k.hold
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cancel(h.explain(&LostError{Reason: LostClosed, Since: time.Now()}))
}

// gone ends a hold that Redis does not have any more.
func (h *hold) gone() {
	h.lose(&LostError{
		Reason: LostGone, Since: time.Now(), text: "lost: the key was deleted, forced open or forgotten by a failover",
	})
	h.mutex.client.leases.Stop(&h.lease)
	h.mutex.client.hub.Wake(h.mutex.waiters()) // the lock may be free, and nobody need have said so
}

// lose ends a live hold before its unlock: everybody inside is told.
func (h *hold) lose(why *LostError) {
	h.mu.Lock()
	if h.loss != nil || h.count == 0 {
		h.mu.Unlock()
		return
	}
	h.loss = h.explain(why)
	h.follow()
	h.cancel(h.loss)
	h.wake()
	for l := h.levels; l != nil; l = l.next {
		if l.gate != nil {
			go l.gate.free() // ends as unlocks do; Close waits for it
		}
	}
	h.mu.Unlock()
	h.mutex.client.takers.remove(h.tag)
	h.mutex.client.lost(&h.first, h.mutex.kind.name, why)
}

func (h *hold) explain(e *LostError) *LostError {
	e.Name, e.Owner = h.mutex.name, h.field()
	if e.Reason == LostClosed {
		e.text = "client closed"
	}
	return e
}

// cancel ends the contexts of all open levels. mu is held: it takes no lock of ours, and the callers' own AfterFuncs run on
// goroutines of their own.
func (h *hold) cancel(why error) {
	for l := h.levels; l != nil; l = l.next {
		l.cancel(why)
	}
}
