package tenure

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-rlock/rlock/internal/kinds"
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
	callers    *callers     // nil until there are callers or a second level
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

// several returns the counts of its holds and levels; nil if there was one level at a time. mu is held.
func (t *Tenure) several() *openLevels {
	if t.callers == nil {
		return nil
	}
	return t.callers.open
}

// open reports whether levels are open, and returns the count Redis should have: the levels of the deepest hold. On its way from one hold
// to the next the tenure has no level, but keeps a count of one. mu is held.
func (t *Tenure) open() (levels bool, count int32) {
	o := t.several()
	switch {
	case t.hold == nil:
		return false, 1
	case o == nil:
		return t.hold.levels != nil, t.hold.count
	}
	return o.count > 0, o.most()
}

// isEmpty reports whether its last level is closed and none is about to open. mu is held.
func (t *Tenure) isEmpty() bool {
	levels, _ := t.open()
	return !levels && t.coming.Load() == 0
}

// renewedFor returns the lease to which the watchdog of c renews the tenure: the longest of its open levels; 0: none is renewed. mu is
// held.
func (t *Tenure) renewedFor(c *Client) (ttl time.Duration) {
	if o := t.several(); o != nil {
		return o.renewedFor(c)
	}
	if t.hold == nil || t.hold.levels == nil {
		return 0
	}
	return t.hold.levels.lock.RenewedFor(c)
}

// renewed is renewedFor by its own Client. mu is held.
func (t *Tenure) renewed() time.Duration { return t.renewedFor(t.Lock.Client) }

// mayLast records the renewal lease of a re-entry. mu is held.
func (t *Tenure) mayLast(ttl time.Duration) {
	if ttl <= t.Lock.TTL {
		return
	}
	if t.callers == nil {
		t.callers = new(callers)
	}
	t.callers.longest = max(t.callers.longest, ttl)
}

// Cached returns what the Cache keeps with the tenure, made when it is first needed.
func (t *Tenure) Cached(first func() any) any {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.callers == nil {
		t.callers = new(callers)
	}
	if t.callers.cached == nil {
		t.callers.cached = first()
	}
	return t.callers.cached
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

// current returns a hold on the tenure, or its last.
func (t *Tenure) current() *Hold {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.hold
}

// givenTo returns the contexts given to its Locks.
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
	if h := t.current(); h != nil {
		return &h.first
	}
	return context.Background()
}

// HasToken reports whether its hold has a fencing token.
func (t *Tenure) HasToken() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.hold != nil && t.hold.token != 0
}

// LossSoFar returns why the tenure was lost, or nil.
func (t *Tenure) LossSoFar() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.why()
}

// Until returns the end of its trusted time.
func (t *Tenure) Until() time.Time {
	if t.Majority != nil {
		return t.Majority.Until()
	}
	return t.Lock.Client.Leases.Until(&t.Lease)
}

// Losing returns the end of the trusted time, and false if the tenure is lost. It is marked lost if that time is over at now. Of a later loss
// told gets a token, if it has room; so may those of a caller that no longer waits for it.
func (t *Tenure) Losing(now time.Time, told chan<- struct{}) (until time.Time, kept bool) {
	until = t.Until()
	switch {
	case t.Majority != nil:
		t.Majority.CatchUp()
		until = t.Majority.Until()
	case !now.Before(until):
		t.Lock.Client.Leases.CatchUp()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.callers == nil {
		t.callers = new(callers)
	}
	t.callers.told = told
	return until, t.loss == nil
}

// CatchUp marks the tenure lost if its time is over, without waiting for the renewer.
func (t *Tenure) CatchUp() {
	switch {
	case t.Majority != nil:
		t.Majority.CatchUp()
	case !time.Now().Before(t.Until()):
		t.Lock.Client.Leases.CatchUp()
	}
}

// isTold reports whether Close has begun to cancel holds.
func (t *Tenure) isTold() bool {
	if t.Majority != nil {
		return t.Majority.IsTold()
	}
	return t.Lock.Client.IsTold()
}

// why returns its loss, or nil. mu is held.
func (t *Tenure) why() error {
	if t.loss == nil {
		return nil
	}
	return *t.loss
}

// Keeper is the renewer's view of a tenure.
type Keeper struct{ *Tenure }

// Item identifies the tenure in a renewal.
func (k Keeper) Item() lease.Item { return lease.Item{Name: k.Lock.Key, Owner: k.Field()} }

// Group returns the key by which tenures share a renewal call.
func (k Keeper) Group() any { return k.Lock.Client.Group(k.Lock) }

// About returns its lock.
func (k Keeper) About() (name, kind string) { return k.Lock.Name, k.Lock.Kind.Name }

// Lost is called when the tenure can no longer be trusted.
func (k Keeper) Lost(loss lease.Loss) {
	if loss.Gone {
		k.Gone()
		return
	}
	k.Lose(k.Lock.LossOf(loss))
}

// LossOf converts the renewer's loss.
func (m *Lock) LossOf(loss lease.Loss) Loss {
	e := Loss{Reason: LostExpired, Since: loss.Until, Err: loss.Err}
	switch {
	case loss.Limit:
		e.Reason, e.Text = LostMaxHold, "lost: the longest hold was reached, "+m.MaxHold.String()
	case !loss.Renewed:
		e.Text = "lost: its lease of fixed length ended"
	case loss.Err == nil:
		e.Text = "lost: not renewed in time"
	default:
		e.Text = "lost: not renewed in time: " + strings.ReplaceAll(loss.Err.Error(), "\n", "; ")
	}
	return e
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

// Gone ends a tenure that is missing in Redis.
func (t *Tenure) Gone() {
	t.Lose(Loss{
		Reason: LostGone, Since: time.Now(), Text: "lost: the key was deleted, forced open or forgotten by a failover",
	})
	c := t.Lock.Client
	c.Leases.Stop(&t.Lease)
	c.Hub.WakeSoon(t.Lock.Waiters()) // the lock may be free without a message; the renewer must not wait
}

// Lose ends a tenure before its unlock and cancels all its sections. If it is on its way to the next hold, that hold is lost before it
// begins. It reports false if the tenure has already ended, by a loss or an unlock.
func (t *Tenure) Lose(why Loss) bool {
	t.mu.Lock()
	if _, count := t.open(); t.loss != nil || count == 0 {
		t.mu.Unlock()
		return false
	}
	loss := t.explain(why)
	t.loss = &loss
	t.follow()
	t.wake()
	var lost []*Hold
	var ended Endings
	for h := range t.holds {
		lost = append(lost, h)
		h.unlocked.Loss.Store(t.loss)
		h.cancel(loss, &ended)
		for l := h.levels; l != nil; l = l.next {
			if l.freed != nil {
				go l.freed() // ends as unlocks do; Close waits for it
			}
		}
	}
	t.mu.Unlock()
	c := t.Lock.Client
	ended.Settle()
	t.LeaveOpen()
	if c.Kept.Load() != 0 {
		c.Cache.Lost(t)
	}
	if why.Reason == LostClosed {
		return true // Close is not reported as a loss
	}
	for _, h := range lost {
		h.observedNoMore()
		c.ReportLoss(&h.first, t.Lock.Kind.Name, loss)
	}
	return true
}

// ClientClosed is the text of the loss by Close.
const ClientClosed = "client closed"

// explain returns the error of a loss.
func (t *Tenure) explain(why Loss) error {
	why.Name, why.Owner = t.Lock.Name, t.Field()
	if why.Reason == LostClosed {
		why.Text = ClientClosed
	}
	return t.Lock.Client.Errors.Loss(why)
}

// AnsweredTooLate returns the error of a grant to m whose lease was over before the answer.
func (t *Tenure) AnsweredTooLate(m *Lock, until time.Time) error {
	return m.Client.Errors.Loss(Loss{
		Name: m.Name, Owner: t.Field(), Reason: LostExpired, Since: until,
		Late: true, Text: "lost: Redis took longer than the lease to answer",
	})
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
	args := lua.ReleaseArgs{
		Name: m.Key, Side: m.Kind.Side, Owner: t.Field(), Publish: lua.Publish(m.Client.KnownChannel(m)),
	}
	if m.Kind.Queueing == kinds.PerWaiter {
		args.Fair = m.Fair()
	}
	if key := m.QueueKey(); key != "" {
		args.Fence = m.Fence
		args.Queue = lua.Queue{Key: key, GrantLease: m.Client.GrantLease()}
	}
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

// ReleaseResult is the result of a release.
type ReleaseResult struct {
	Held bool  // the owner held the lock
	Late bool  // a call without a reply may have run, or may still
	Err  error // the last call's error
}

// MayQueue records that the next call may leave the field in the queue, or a mark.
func (t *Tenure) MayQueue(now time.Time) {
	if t.Queued == nil { // a grant may be for the first of several calls
		first := now // a copy, so that now does not escape to the heap on every call
		t.Queued = &first
	}
}

// IsMajority reports whether it is that of a majority, and has no owner in Redis.
func (t *Tenure) IsMajority() bool { return t.Majority != nil }
