package engine

import (
	"cmp"
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-rlock/rlock/internal/sweep"
	"github.com/go-rlock/rlock/lease"
	"github.com/go-rlock/rlock/lua"
)

// A Tenure is what a Client has of one lock in Redis: one hash field, the owner, that is never used again (I3), with its lease, its count,
// and what is not known of them. It begins with an acquire or a grant, and ends with a release or a loss. The renewer, the sweeper and the
// queue in Redis deal with tenures only.
//
// What a Lock has of it is a hold (hold.go). One hold at a time stands on a tenure; when it ends, its unlock may pass the tenure on to
// the next waiter of the process (handoff.go). Readers share one (readers.go): several holds stand on it, and it ends with the last of them.
//
// The calls that a tenure depends on, for a longer lease and for its end, are made one at a time, by whoever has the right to make
// calls (I1). As long as no hold stands on it, that is the Lock that asks for it, or was given it, or the claimant that stands for that one.
type Tenure struct {
	Spec  *Spec  // the handle that took it; how it ends is up to that, also if levels are of others
	Tag   uint64 // plays Redisson's thread id
	Lease lease.Lease

	// For whoever makes calls.
	Unresolved *sweep.Unresolved // nil most of the time
	queued     *time.Time        // when the first call was sent that may have put it in the queue in Redis; nil: none, as for most
	stays      *stay             // how the lock stays taken after the unlock; nil: it does not
	given      time.Duration     // the lease that it was given at first; 0 before that
	run        *run              // of hand-offs, that it is part of; nil if none led to it, and none has been tried
	majority   Majority          // what it is of a quorum, see there; nil: it is one field of one server

	mu      sync.Mutex   // guards the following, and the holds; no other lock but that of a renewer is taken under it
	calling bool         // somebody has the right to make calls
	left    bool         // the caller of its last unlock has left: its lease is not kept any more
	wanted  bool         // it is not to be idle: somebody asks for it
	coming  atomic.Int32 // how many Locks were let in by another reader, and have not begun their holds yet; lowered under mu
	callers *callers     // nil until there are some, or a second level, or it is idle
	loss    *error       // why it ended, unless by an unlock
	hold    *hold        // the one that stands on it, or was the last, and those beside it; nil: none has, or it is on its way to the next one
	first   hold         // of those that it may have; the others have memory of their own
}

// Majority is what a hold of a quorum stands on: a share on each of several servers, of which more than half are there (package quorum). Each
// share is a tenure, on which no hold stands. All of them together are one more tenure, for the hold and its levels: it has an owner, which
// errors name, a time until when it is trusted, and a loss. But nothing of it is in Redis: what differs for that is in majority.go.
//
// No method is called with a mutex held but IsTold, which takes none.
type Majority interface {
	// Until is until when most of the servers have it; zero if that is over.
	Until() time.Time
	// CatchUp has the shares follow what the open levels ask for. If its time is over, the tenure is lost when CatchUp returns.
	CatchUp()
	// IsTold reports whether the holds of so many Clients have been told of the end, or are being told, that no majority is left.
	IsTold() bool
	// Owns reports whether that is the owner on one of the servers.
	Owns(field string) bool
	// Release is the end of the unlock of the last level, which keeps its caller waiting until that time is over: see Await.
	Release(last *Level, over time.Time) error
}

// lastTag is the tag of the tenure that was made last, without its mark.
var lastTag atomic.Uint64

func newTenure(m *Spec) *Tenure {
	m.Engine.showLabel()
	return &Tenure{Spec: m, Tag: m.mark().Marked(lastTag.Add(1))}
}

// Field is the owner as Redis has it. It is made anew each time, for there may be many tenures, and calls for
// each of them are rare.
func (t *Tenure) Field() string {
	m := t.Spec
	return m.Kind.Owner(m.Engine.ID, t.Tag, m.isShort())
}

// newHold returns a hold that is to stand on the tenure, and has no level yet.
func (t *Tenure) newHold() *hold {
	h := &t.first
	if h.tenure != nil {
		h = new(hold)
	}
	h.tenure = t
	return h
}

// open is some of the levels that are open, and how many the count in Redis should be: those of the deepest hold. On the way from one hold to
// the next the tenure has none, and keeps one. mu is held.
func (t *Tenure) open() (levels *Level, count int32) {
	if t.hold == nil {
		return nil, 1
	}
	for h := t.hold; h != nil; h = h.beside {
		levels, count = cmp.Or(levels, h.levels), max(count, h.count)
	}
	return levels, count
}

// isEmpty reports whether nobody has it: its last level is closed, and none is about to be opened. mu is held.
func (t *Tenure) isEmpty() bool {
	levels, _ := t.open()
	return levels == nil && t.coming.Load() == 0
}

// renewedFor is for how long the watchdog of c renews the tenure: the longest time that an open level asks for; 0: none does. mu is held.
func (t *Tenure) renewedFor(c *Engine) (ttl time.Duration) {
	for h := t.hold; h != nil; h = h.beside {
		for l := h.levels; l != nil; l = l.next {
			ttl = max(ttl, l.spec.RenewedFor(c))
		}
	}
	return ttl
}

// renewed is renewedFor by its own Client. mu is held.
func (t *Tenure) renewed() time.Duration { return t.renewedFor(t.Spec.Engine) }

// mayLast notes for how long a level is renewed that re-enters the tenure. mu is held.
func (t *Tenure) mayLast(ttl time.Duration) {
	if ttl <= t.Spec.TTL() {
		return
	}
	if t.callers == nil {
		t.callers = new(callers)
	}
	t.callers.longest = max(t.callers.longest, ttl)
}

// lasts is for how long Redis may keep the tenure after a renewal that was not answered.
func (t *Tenure) lasts() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	lasts := t.Spec.TTL()
	if t.callers != nil {
		lasts = max(lasts, t.callers.longest)
	}
	return longer(lasts, t.Spec.Grace)
}

// current is a hold that stands on it, or was the last.
func (t *Tenure) current() *hold {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.hold
}

// joinInsiders has those that wait learn who is inside; leaveInsiders ends that.
func (t *Tenure) joinInsiders() {
	c := t.Spec.Engine
	c.insiders.add(t.Tag, t)
	if c.Options.Deadlock.After > 0 {
		c.held.add(t)
	}
}

func (t *Tenure) leaveInsiders() {
	c := t.Spec.Engine
	c.insiders.remove(t.Tag, t.Spec.Key)
	if c.Options.Deadlock.After > 0 {
		c.held.remove(t)
	}
}

// givenTo are the contexts that its Locks were given.
func (t *Tenure) givenTo() (all []context.Context) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for h := t.hold; h != nil; h = h.beside {
		if h.levels != nil {
			all = append(all, h.given)
		}
	}
	return all
}

// section is the ctx of its section.
func (t *Tenure) section() context.Context {
	if h := t.current(); h != nil {
		return &h.first
	}
	return context.Background()
}

// hasToken reports whether the hold that stands on it has a fencing token.
func (t *Tenure) hasToken() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.hold != nil && t.hold.token != 0
}

func (t *Tenure) lossSoFar() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.why()
}

// until is the end of the time for which it is trusted.
func (t *Tenure) until() time.Time {
	if t.majority != nil {
		return t.majority.Until()
	}
	return t.Spec.Engine.Leases.Until(&t.Lease)
}

// catchUp loses a tenure whose time is over, whoever notices first.
func (t *Tenure) catchUp() {
	switch {
	case t.majority != nil:
		t.majority.CatchUp()
	case !time.Now().Before(t.until()):
		t.Spec.Engine.Leases.CatchUp()
	}
}

// isTold reports whether holds have been told of the end of the Client, or are being told.
func (t *Tenure) isTold() bool {
	if t.majority != nil {
		return t.majority.IsTold()
	}
	return t.Spec.Engine.IsTold()
}

// why is its loss, or nil. mu is held.
func (t *Tenure) why() error {
	if t.loss == nil {
		return nil
	}
	return *t.loss
}

// Keeper is the tenure as the renewer sees it.
type Keeper struct{ *Tenure }

// Item is what a renewal names.
func (k Keeper) Item() lease.Item { return lease.Item{Name: k.Spec.Key, Owner: k.Field()} }

// Group is what it has in common with the others of a renewal.
func (k Keeper) Group() any { return k.Spec.Engine.group(k.Spec) }

// About is the lock that it is of.
func (k Keeper) About() (name, kind string) { return k.Spec.Name, k.Spec.Kind.Name }

// Lost is called when nobody may trust in the tenure any more.
func (k Keeper) Lost(loss lease.Loss) {
	if loss.Gone {
		k.gone()
		return
	}
	k.Lose(k.Spec.lossOf(loss))
}

// lossOf is the loss of what has come to the end of its trusted time.
func (m *Spec) lossOf(loss lease.Loss) Loss {
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

// Closed is called when the client ends before the tenure does. That is no loss: it stays as it is in Redis, for the unlock of its hold.
func (k Keeper) Closed() {
	t := k.Tenure
	t.mu.Lock()
	defer t.mu.Unlock()
	for h := t.hold; h != nil; h = h.beside {
		h.cancel(t.explain(Loss{Reason: LostClosed, Since: time.Now()}))
	}
}

// gone ends a tenure that Redis does not have any more.
func (t *Tenure) gone() {
	t.Lose(Loss{
		Reason: LostGone, Since: time.Now(), Text: "lost: the key was deleted, forced open or forgotten by a failover",
	})
	c := t.Spec.Engine
	c.Leases.Stop(&t.Lease)
	c.Hub.Wake(t.Spec.waiters()) // the lock may be free, and nobody need have said so
}

// Lose ends a tenure before its unlock: everybody inside is told. If it is on its way to the next hold, that one is lost before it begins. It
// reports false if the tenure has ended, by a loss or an unlock.
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
	var lost []*hold
	x := t.known()
	for h := t.hold; h != nil; h = h.beside {
		lost = append(lost, h)
		h.unlocked.loss.Store(t.loss)
		h.cancel(loss)
		for l := h.levels; l != nil; l = l.next {
			if l.freed != nil {
				go l.freed() // ends as unlocks do; Close waits for it
			}
		}
	}
	t.mu.Unlock()
	c := t.Spec.Engine
	t.leaveInsiders()
	if x != nil {
		c.loseIdle(x)
	}
	if why.Reason == LostClosed {
		return true // nobody is told of that
	}
	for _, h := range lost {
		if h.isEnd() {
			continue
		}
		h.isAskedNoMore()
		c.lost(&h.first, t.Spec.Kind.Name, loss)
	}
	return true
}

// clientClosed is the text of the loss by Close.
const clientClosed = "client closed"

// explain makes the error of a loss.
func (t *Tenure) explain(why Loss) error {
	why.Name, why.Owner = t.Spec.Name, t.Field()
	if why.Reason == LostClosed {
		why.Text = clientClosed
	}
	return t.Spec.Engine.errs.Loss(why)
}

// tooLate is the error of a grant through m whose lease was over before it was answered.
func (t *Tenure) tooLate(m *Spec, until time.Time) error {
	return m.Engine.errs.Loss(Loss{
		Name: m.Name, Owner: t.Field(), Reason: LostExpired, Since: until,
		Text: "lost: Redis took longer than the lease to answer",
	})
}

// stay is how a lock stays taken after an unlock.
type stay struct {
	until  time.Time
	ticket string // the field that has it then, see Export; "": the placeholder, see WithMinHold
}

// staysTaken reports whether the lock is to stay taken after an unlock now.
func (t *Tenure) staysTaken() bool { return t.stays != nil && time.Now().Before(t.stays.until) }

// releaseArgs are those of a release that ends the tenure.
func (t *Tenure) releaseArgs() lua.ReleaseArgs {
	m := t.Spec
	args := lua.ReleaseArgs{
		Name: m.Key, Side: m.Kind.Side, Owner: t.Field(), Publish: lua.Publish(m.Engine.KnownChannel(m)), Fair: m.fair(),
	}
	if key := m.queueKey(); key != "" {
		args.Fence = m.fenceOf()
		args.Queue = lua.Queue{Key: key, GrantLease: m.Engine.grantLease()}
	}
	switch left := t.stays; {
	case left == nil || t.lossSoFar() != nil: // a lost one ends with its lease, and not later
	case left.ticket != "":
		args.Ticket, args.Taken = left.ticket, left.until
		args.Fence, args.Queue = "", lua.Queue{}
	case t.staysTaken():
		args.Next, args.Taken = m.Kind.Placeholder(m.Engine.ID), left.until
	}
	return args
}

// ReleaseResult is what came of a release.
type ReleaseResult struct {
	Held bool  // the owner held the lock
	Late bool  // a call without a reply may have run, or may still
	Err  error // what the last call failed with
}
