package tenure

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-rlock/rlock/internal/sweep"
	"github.com/go-rlock/rlock/lease"
	"github.com/go-rlock/rlock/lua"
)

// A Tenure is a Client's possession of one lock in Redis: one hash field, the owner, never reused (I3), with its lease, its count, and
// calls unresolved for it. It begins with an acquire or a grant, and ends with a release or a loss. The renewer, the sweeper and the
// queue in Redis deal only with tenures.
//
// A Lock gets a hold on it (hold.go). One hold at a time stands on a tenure; its unlock may pass the tenure on to the process's next
// waiter (handoff.go). Readers share one (readers.go): several holds stand on it, and it ends with the last.
//
// Calls that extend the lease or end the tenure are made one at a time, with the right to make calls (I1). While no hold stands on the
// tenure, that right belongs to the Lock that asks for it or was given it, or to that Lock's claimant.
type Tenure struct {
	Lock  *Lock  // the handle that took it, which decides how it ends, even if levels use other handles
	Tag   uint64 // plays Redisson's thread id
	Lease lease.Lease

	// Guarded by the right to make calls.
	Unresolved *sweep.Unresolved // nil most of the time
	Queued     *time.Time        // when the first call that may have queued it in Redis was sent; nil: none, as for most
	Stays      *Stay             // how the lock stays taken after the unlock; nil: it does not
	FirstLease time.Duration     // its first lease; 0 before that
	Run        *Run              // its run of hand-offs; nil if none led to it and none was tried
	Majority   Majority          // set for a quorum's tenure, see Majority; nil: one field on one server

	mu         sync.Mutex   // guards the following, and the holds; of our locks, only the renewer's and the one of foreign calls are taken under it
	calling    bool         // the right to make calls is taken
	unkept     bool         // its Lock was never returned: no Cache gets it
	callerGone bool         // the caller of its last unlock has left: the lease is no longer renewed
	coming     atomic.Int32 // Locks let in by another reader whose holds have not begun yet; lowered under mu
	callers    *Callers     // nil until there are callers or a second level
	loss       *error       // why it was lost, if it was
	hold       *Hold        // its current or last hold, see holds for those beside it; nil: none yet, or on its way to the next
	first      Hold         // the first hold, embedded to save an allocation
}

// Majority backs a quorum's hold: a share on each of several servers, of which more than half are held (package quorum). Each share is
// a tenure without a hold. Together they form one more tenure for the hold and its levels. It has an owner, used in errors, a trusted
// time and a loss, but nothing in Redis: majority.go has the differences.
//
// Only IsTold, which takes no mutex, is called with a mutex held.
type Majority interface {
	// Until returns the time until which most servers have it; zero if that is over.
	Until() time.Time
	// CatchUp renews the shares as the open levels require. If its time is over, the tenure is lost when CatchUp returns.
	CatchUp()
	// IsTold reports whether Close has begun to cancel the holds of so many Clients that no majority is left.
	IsTold() bool
	// Owns reports whether field is the owner on one of the servers.
	Owns(field string) bool
	// Release finishes the unlock of the last level, and blocks its caller until over at the latest: see Await.
	Release(last *Level, over time.Time) error
}

// lastTag is the tag of the newest tenure, without its mark.
var lastTag atomic.Uint64

// NewTenure returns a tenure that nothing is known of in Redis.
func (m *Lock) NewTenure() *Tenure {
	t := &Tenure{Lock: m, Tag: lastTag.Add(1)}
	if len(m.Observers) > 0 {
		t.Tag = m.Mark().Marked(t.Tag)
	}
	return t
}

// Field returns the owner field in Redis. It is built on each call to save memory: there may be many tenures, each with few calls.
func (t *Tenure) Field() string { return t.Lock.Kind.Owner(t.Lock.Client.ID, t.Tag, t.Lock.Short) }

// Cached returns what the Cache keeps with the tenure, made when it is first needed.
func (t *Tenure) Cached(first func() any) any {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.more()
	if c.cached == nil {
		c.cached = first()
	}
	return c.cached
}

// more returns what few tenures have. mu is held.
func (t *Tenure) more() *Callers {
	if t.callers == nil {
		t.callers = new(Callers)
	}
	return t.callers
}

// Lasts returns how long Redis may keep the tenure after an unanswered renewal.
func (t *Tenure) Lasts() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	lasts := t.Lock.TTL
	if t.callers != nil {
		lasts = max(lasts, t.callers.longest)
	}
	return Longer(lasts, t.Lock.Grace)
}

func (t *Tenure) givenTo() (all []context.Context) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for h := range t.holds {
		if h.levels != nil {
			all = append(all, h.given)
		}
	}
	return all
}

// Section returns the ctx of its section.
func (t *Tenure) Section() context.Context {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.hold != nil {
		return &t.hold.First
	}
	return context.Background()
}

// HasToken reports whether its hold has a fencing token.
func (t *Tenure) HasToken() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.hold != nil && t.hold.token != 0
}

// Until returns the end of its trusted time.
func (t *Tenure) Until() time.Time {
	if t.Majority != nil {
		return t.Majority.Until()
	}
	return t.Lock.Client.Leases.Until(&t.Lease)
}

// Losing returns the end of the trusted time, and false if the tenure is lost. It is marked lost if that time is over at now. Of a later loss
// told gets a token, if it has room; so may those of a caller that no longer waits for it. room is memory for that which is the tenure's from
// then on; nil: none.
func (t *Tenure) Losing(now time.Time, told chan<- struct{}, room *Callers) (until time.Time, kept bool) {
	until = t.Until()
	switch {
	case t.Majority != nil:
		t.Majority.CatchUp()
		until = t.Majority.Until()
	case !now.Before(until):
		t.catchUp()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.callers == nil {
		t.callers = room
	}
	t.more().told = told
	return until, t.loss == nil
}

// CatchUp marks the tenure lost if its time is over, without waiting for the renewer.
func (t *Tenure) CatchUp() {
	switch {
	case t.Majority != nil:
		t.Majority.CatchUp()
	case !time.Now().Before(t.Until()):
		t.catchUp()
	}
}

// catchUp is CatchUp for a tenure whose time is over, as far as is known. After Close no renewer reports that.
func (t *Tenure) catchUp() {
	leases := t.Lock.Client.Leases
	leases.CatchUp()
	if loss, over := leases.Overdue(&t.Lease); over {
		t.Lose(t.Lock.LossOf(loss))
	}
}

// isTold reports whether Close has begun to cancel holds.
func (t *Tenure) isTold() bool {
	if t.Majority != nil {
		return t.Majority.IsTold()
	}
	return t.Lock.Client.IsTold()
}

// Keeper is the renewer's view of a tenure.
type Keeper struct{ *Tenure }

// Item identifies the tenure in a renewal.
func (k Keeper) Item() lease.Item { return lease.Item{Name: k.Lock.Key, Owner: k.Field()} }

// Group returns the key by which tenures share a renewal call.
func (k Keeper) Group() any { return k.Lock.Group() }

// About returns its lock.
func (k Keeper) About() (name, kind string) { return k.Lock.Name, k.Lock.Kind.Name }

// Lost is called when the tenure can no longer be trusted.
func (k Keeper) Lost(loss lease.Loss) {
	if loss.Gone {
		k.gone()
		return
	}
	k.Lose(k.Lock.LossOf(loss))
}

// Closed is called when the client is closed first. That is no loss: the tenure stays in Redis until its hold is unlocked.
func (k Keeper) Closed() {
	t := k.Tenure
	why := t.explain(Loss{Reason: LostClosed, Since: time.Now()})
	var ended Endings
	t.mu.Lock()
	for h := range t.holds {
		h.cancel(why, &ended)
	}
	t.mu.Unlock()
	ended.Settle()
}

// Stay says how a lock stays taken after an unlock.
type Stay struct {
	Until  time.Time
	Ticket string // the field that keeps it, see Export; "": the placeholder, see WithMinHold
}

// StaysTaken reports whether an unlock now must leave the lock taken.
func (t *Tenure) StaysTaken() bool { return t.Stays != nil && time.Now().Before(t.Stays.Until) }

// ReleaseArgs returns the arguments of the release that ends the tenure.
func (t *Tenure) ReleaseArgs() lua.ReleaseArgs {
	m := t.Lock
	args := m.ReleaseOf(t.Field())
	args.Waited = t.Queued != nil
	switch left := t.Stays; {
	case left == nil || t.LossSoFar() != nil: // a lost tenure must not outlast its lease
	case left.Ticket != "":
		args.Ticket, args.Taken = left.Ticket, left.Until
		args.Fence, args.Queue = "", lua.Queue{}
	case t.StaysTaken():
		args.Next, args.Taken = m.Kind.Placeholder(m.Client.ID), left.Until
	}
	return args
}

// SendRelease sends a release.
func (m *Lock) SendRelease(ctx context.Context, args lua.ReleaseArgs) (lua.ReleaseReply, error) {
	c := m.Client
	reply, err := lua.Release(ctx, c.RDB, args)
	if c.Calls.AnyLeft() {
		c.Calls.Answered(m.Slot(), err)
	}
	if reply.NoQueue && err == nil {
		c.Forbidden(args.Side).Store(true)
	}
	m.Released(reply)
	return reply, err
}

// Released takes in what came of a release: somebody has to look at a fair lock with Redisson in its queue (look.go).
func (m *Lock) Released(r lua.ReleaseReply) {
	switch {
	case !r.Redisson:
	case r.Status == lua.Granted:
		m.looksIn(m.Client.GrantLease, "")
	default:
		m.looksIn(m.Client.PlaceLease, "")
	}
}

// ReleaseResult is the result of a release.
type ReleaseResult struct {
	Held bool  // the owner held the lock
	Late bool  // a call without a reply may have run, or may still
	Err  error // the last call's error
}

// EndReleased ends h, if not nil, after the release of its tenure, unless the tenure was lost meanwhile.
func (t *Tenure) EndReleased(h *Hold) (lost bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.loss != nil {
		return true
	}
	if h != nil {
		h.setCount(0)
	}
	return false
}

// EndLost ends h, if not nil, on a tenure that was lost, or is a majority's. Of several unlocks that find a loss, one is the last.
func (t *Tenure) EndLost(h *Hold) (last bool, loss error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	loss = t.lossOf(h)
	if h == nil {
		return true, loss
	}
	if last = h.levels == nil && h.count > 0; last {
		h.setCount(0)
	}
	return last, loss
}

// MayQueue records that the next call may leave the field in the queue, or a mark.
func (t *Tenure) MayQueue(now time.Time) {
	if t.Queued == nil { // a grant may be for the first of several calls
		first := now // a copy, so that now does not escape to the heap on every call
		t.Queued = &first
	}
}
