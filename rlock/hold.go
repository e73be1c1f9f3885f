package rlock

import (
	"context"
	"fmt"
	"time"

	"github.com/go-rlock/rlock/lease"
	"github.com/go-rlock/rlock/pubsub"
)

// hold is what one owner has of one lock: one field of the hash in Redis. It is made before the
// first acquire, with a count of 0, and is live while its count is above 0.
//
// Invariant I-ops: all script calls for a hold, acquires, re-entries and releases, are made by
// whoever has put a token into ops, so the count that a call is sent with is the count in Redis.
type hold struct {
	client *Client
	owner  *owner
	key    holdKey
	field  string        // the owner as Redis has it
	ops    chan struct{} // capacity 1: a token in it is the right to make calls
	gone   chan struct{} // closed when a live hold is lost: ends calls that are under way for it

	lease lease.Lease // has a lock of its own

	// Guarded by ops. While a waiter is claimed, its claimant stands for it; see handoff.go.
	queue  pubsub.Queue // where it waits for the lock, and where its waiters are
	doubts int          // first acquires with unknown outcome; see giveback.go
	doubt  time.Time    // they may act until then
	unsure bool         // a hand-off may have made it a live one: any answer of Redis settles that
	run    run          // the hand-offs that led to it

	// Guarded by owner.mu.
	users  int    // who uses the record; see owner.hold
	over   bool   // the owner has dropped the record: it makes no hold any more
	count  int    // as in Redis
	ended  error  // why a hold that was live was lost
	scopes *scope // the open ones
	listed bool   // in the client's list
	prev   *hold  // guarded by the client's mu, with next
	next   *hold
}

// scope is one level of a hold, opened by a Lock and closed by its unlock. It is the context that
// the Lock returns.
type scope struct {
	context.Context // cancelled when the scope closes or the hold is lost

	cancel context.CancelCauseFunc
	mutex  *Mutex
	hold   *hold
	outer  *scope // in the ctx that the Lock was called with
	token  int64

	// Guarded by hold.owner.mu.
	closed     bool
	prev, next *scope
}

// String keeps fmt from reading the fields, which change. It is the form of package context.
func (s *scope) String() string {
	return fmt.Sprint(s.Context) + ".WithLock(" + quote(s.hold.key.name) + ")"
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
	s := &scope{mutex: m, hold: h, outer: scopeOf(ctx), token: token}
	s.Context, s.cancel = context.WithCancelCause(ctx)

	o := h.owner
	o.mu.Lock()
	first := h.count == 0
	switch {
	case first && o.retired:
		o.mu.Unlock()
		s.cancel(nil)
		return nil, errAgain
	case !first && h.ended != nil:
		o.mu.Unlock()
		s.cancel(nil)
		return nil, h.ended
	case !first && h.client.isClosed(): // Close told the open scopes, and would miss this one
		o.mu.Unlock()
		s.cancel(nil)
		return nil, ErrClosed
	}
	h.count++
	if s.next = h.scopes; s.next != nil {
		s.next.prev = s
	}
	h.scopes = s
	if first {
		o.live++
	}
	renewed := h.renewed()
	o.mu.Unlock()

	if !first {
		h.client.leases.Update(&h.lease, until, renewed)
		return s, nil
	}
	if !h.client.list(h) {
		h.lose(ErrClosed)
		return nil, ErrClosed
	}
	item := lease.Item{Name: m.name, Owner: h.field}
	h.client.leases.Keep(&h.lease, item, h.client.group(m), until, renewed, h.lost)
	return s, nil
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
		return h.client.options.WatchdogTimeout
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
	if s.closed {
		h.owner.mu.Unlock()
		return false
	}
	s.closed = true
	if s.prev != nil {
		s.prev.next = s.next
	} else {
		h.scopes = s.next
	}
	if s.next != nil {
		s.next.prev = s.prev
	}
	h.owner.mu.Unlock()
	s.cancel(nil)
	return true
}

// lost is called by the renewer when nobody may trust in the hold any more.
func (h *hold) lost(reason error) {
	h.lose(&opError{op: "hold", name: h.key.name, causes: []error{ErrLost, reason}})
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
	o.mu.Unlock()
	close(h.gone)
	h.client.unlist(h)
}

// cancel ends the contexts of all levels of a hold that stays as it is in Redis.
func (h *hold) cancel(why error) {
	why = &opError{op: "hold", name: h.key.name, causes: []error{why}}
	h.owner.mu.Lock()
	defer h.owner.mu.Unlock()
	for s := h.scopes; s != nil; s = s.next {
		s.cancel(why)
	}
}

// end takes a hold off its owner's live ones. o.mu is held; the caller unlists the hold afterwards.
func (o *owner) end(h *hold) {
	o.drop(h)
	if o.live--; o.live == 0 {
		o.retired = true
	}
}
