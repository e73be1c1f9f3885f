package rlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-rlock/rlock/lease"
)

// hold is what one owner has of one lock: one field of the hash in Redis. It is made before the
// first acquire, with a count of 0, and is live while its count is above 0.
//
// Invariant I-ops: all script calls for a hold, acquires, re-entries and releases, are made by
// whoever has the right to, one at a time (begin, end), so the count that a call is sent with is the
// count in Redis.
type hold struct {
	owner *owner
	mutex *Mutex // one handle on the lock
	tag   uint64 // the owner's when the record was made; see field

	lease lease.Lease // has a lock of its own

	// For whoever has the right to make calls. While a waiter is claimed, that is its claimant, see handoff.go.
	doubt *doubt // nil most of the time
	run   *run   // of hand-offs, that it is part of; nil if none led to it, and none has been tried

	// Guarded by owner.mu.
	busy      bool          // the right to make calls is taken
	over      bool          // the owner has dropped the record, which makes no hold any more
	users     int32         // who uses the record; see owner.hold
	count     int           // as in Redis
	changed   chan struct{} // closed when busy or ended changes; nil until somebody waits for that
	unlocking *unlocking    // an unlock under way
	ended     error         // why a hold that was live was lost
	scopes    *scope        // the open ones
	first     scope         // the first of them; the others have memory of their own
}

// doubt is what is not known of a field in Redis; see giveback.go.
type doubt struct {
	late   int       // first acquires with unknown outcome
	until  time.Time // they may act until then
	unsure bool      // a hand-off may have made it a live hold: any answer of Redis settles that
}

// doubted returns the hold's doubt, which lasts until then at least.
func (h *hold) doubted(until time.Time) *doubt {
	if h.doubt == nil {
		h.doubt = new(doubt)
	}
	h.doubt.until = latest(h.doubt.until, until)
	return h.doubt
}

// scope is one level of a hold, opened by a Lock and closed by its unlock. It is the context that
// the Lock returns.
type scope struct {
	context.Context // cancelled when the scope closes or the hold is lost

	mutex *Mutex
	hold  *hold
	token int64

	// Guarded by hold.owner.mu.
	cancel context.CancelCauseFunc // nil once the scope is closed
	next   *scope                  // the level that was opened before it, of those that are open
}

// String keeps fmt from reading the fields, which change. It is the form of package context.
func (s *scope) String() string {
	return fmt.Sprint(s.Context) + ".WithLock(" + quote(s.mutex.name) + ")"
}

// Value makes the scope the innermost one of its context.
func (s *scope) Value(key any) any {
	if _, ok := key.(ctxKey); ok {
		return s
	}
	return s.Context.Value(key)
}

// open makes the scope of a level that Redis has granted, and the hold a live one at the first
// level. It fails if the owner was retired, the hold lost or the client closed since the call was
// sent.
func (h *hold) open(ctx context.Context, m *Mutex, until time.Time, token int64) (*scope, error) {
	inner, cancel := context.WithCancelCause(ctx)
	c, o := m.client, h.owner
	o.mu.Lock()
	first := h.count == 0
	switch {
	case first && o.retired:
		o.mu.Unlock()
		cancel(nil)
		return nil, errAgain
	case !first && h.ended != nil:
		o.mu.Unlock()
		cancel(nil)
		return nil, h.ended
	case !first && c.isClosed(): // Close told the open scopes, and would miss this one
		o.mu.Unlock()
		cancel(nil)
		return nil, ErrClosed
	}
	s := &h.first
	if !first {
		s = new(scope)
	}
	s.Context, s.cancel, s.mutex, s.hold, s.token = inner, cancel, m, h, token
	h.count++
	h.scopes, s.next = s, h.scopes
	if first {
		o.live++
	}
	renewed := h.renewed()
	o.mu.Unlock()

	if !first {
		c.leases.Update(&h.lease, until, renewed)
		return s, nil
	}
	if !c.leases.Keep(&h.lease, keeper{h}, until, renewed) {
		h.lose(ErrClosed)
		return nil, ErrClosed
	}
	c.leases.CatchUp() // whoever had the lock through this Client before, till the end of its lease, is told first (G1)
	return s, nil
}

// begin takes the right to make calls for the hold (I-ops). If somebody has it, it returns what to wait for
// before trying again; nil if the hold was lost, for that ends the need.
func (h *hold) begin() (ok bool, changed <-chan struct{}) {
	h.owner.mu.Lock()
	defer h.owner.mu.Unlock()
	switch {
	case !h.busy:
		h.busy = true
		return true, nil
	case h.ended != nil:
		return false, nil
	case h.changed == nil:
		h.changed = make(chan struct{})
	}
	return false, h.changed
}

// isEntering reports whether whoever has the right waits for the lock itself.
func (h *hold) isEntering() bool {
	h.owner.mu.Lock()
	defer h.owner.mu.Unlock()
	return h.count == 0
}

// end gives the right to make calls back.
func (h *hold) end() {
	h.owner.mu.Lock()
	defer h.owner.mu.Unlock()
	h.busy = false
	h.wake()
}

// wake has those try again who wait in begin. owner.mu is held.
func (h *hold) wake() {
	if h.changed != nil {
		close(h.changed)
		h.changed = nil
	}
}

// renewed reports whether the watchdog keeps the hold: if any open scope has no lease of its own.
// owner.mu is held.
func (h *hold) renewed() bool {
	for s := h.scopes; s != nil; s = s.next {
		if s.mutex.lease == 0 {
			return true
		}
	}
	return false
}

// ttl is the lease that the open scopes ask for. owner.mu is held.
func (h *hold) ttl() time.Duration {
	if h.renewed() {
		return h.mutex.client.options.WatchdogTimeout
	}
	var longest time.Duration
	for s := h.scopes; s != nil; s = s.next {
		longest = max(longest, s.mutex.lease)
	}
	return longest
}

// close takes the scope out of its hold and ends its ctx. It reports false if it was closed before.
func (s *scope) close() bool {
	h := s.hold
	h.owner.mu.Lock()
	cancel := s.cancel
	if cancel == nil {
		h.owner.mu.Unlock()
		return false
	}
	s.cancel = nil
	at := &h.scopes
	for *at != s { // seldom far: levels are closed in the reverse order, but for those of siblings
		at = &(*at).next
	}
	*at = s.next
	h.owner.mu.Unlock()
	cancel(nil)
	return true
}

// keeper is the hold as the renewer sees it.
type keeper struct{ *hold }

func (k keeper) Item() lease.Item { return lease.Item{Name: k.mutex.name, Owner: k.field()} }
func (k keeper) Group() any       { return k.mutex.client.group(k.mutex) }

// Lost is called when nobody may trust in the hold any more.
func (k keeper) Lost(reason error) { k.lost(reason) }

// Closed is called when the client ends before the hold does.
func (k keeper) Closed() { k.cancel(ErrClosed) }

func (h *hold) lost(reason error) {
	h.lose(&opError{op: "hold", name: h.mutex.name, causes: []error{ErrLost, reason}})
	if errors.Is(reason, lease.ErrGone) {
		h.mutex.client.hub.Wake(h.mutex.queue()) // the lock may be free, and nobody need have said so
	}
}

// lose ends a live hold against the will of its owner: everybody inside is told.
func (h *hold) lose(why error) {
	o := h.owner
	o.mu.Lock()
	if h.ended != nil || h.count == 0 {
		o.mu.Unlock()
		return
	}
	h.ended = why
	for s := h.scopes; s != nil; s = s.next {
		s.cancel(why) // takes no lock of ours; the caller's own AfterFuncs run on their own goroutines
	}
	o.end(h)
	o.burn() // the field may still be there in Redis
	h.wake()
	if h.unlocking != nil {
		h.unlocking.signal()
	}
	o.mu.Unlock()
}

// cancel ends the contexts of all levels of a hold that stays as it is in Redis.
func (h *hold) cancel(why error) {
	why = &opError{op: "hold", name: h.mutex.name, causes: []error{why}}
	h.owner.mu.Lock()
	defer h.owner.mu.Unlock()
	for s := h.scopes; s != nil; s = s.next {
		s.cancel(why)
	}
}

// end takes a hold off its owner's live ones. o.mu is held.
func (o *owner) end(h *hold) {
	o.drop(h)
	if o.live--; o.live == 0 {
		o.retired = true
	}
}
