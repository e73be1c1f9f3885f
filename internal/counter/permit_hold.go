package counter

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/engine"
	"github.com/go-rlock/rlock/internal/tenure"
	"github.com/go-rlock/rlock/lease"
	"github.com/go-rlock/rlock/lua"
)

// A PermitHold is a section with permits, which are lost and given back together. It is the ctx of the section. On a semaphore whose permits
// do not expire, Redis does not tell them apart, and there is one lease for all, without an end: by it the renewer tells of Close.
//
//	state     event                                         next
//	held      a renewal, for each permit                    held
//	          a permit's trusted time ends                  lost: the ctx is cancelled, and renewals end
//	          a permit is missing in Redis                  lost
//	          this process gives a permit back by its id    lost
//	          Close                                         held: the ctx is cancelled; the permits stay until the release, or until their lease ends
//	          release                                       over: the combiner gives the permits back
//	lost      release                                       over: the remaining permits are given back in the background
//
// A permit is trusted until its lease is over, counted from the first request for it: a repeat of that call does not extend it (G2).
type PermitHold struct {
	context.Context // cancelled when it is released or lost

	tenure.Frame

	semaphore Counter
	unlocked  tenure.UnlockedError // the cause of the end of its section
	permits   []heldPermit
	n         int64     // permits that do not expire
	limit     time.Time // see WithMaxHold; zero: no such bound
	// IDs and Slots are those of permits that expire.
	IDs   []lua.PermitID
	Slots []int64

	mu     sync.Mutex              // guards the following; as for a tenure, two locks are taken under it
	cancel context.CancelCauseFunc // nil once it is released
	loss   error                   // why it was lost before that
}

// heldPermit is the renewer's view of one of a hold's permits, or of all that do not expire.
type heldPermit struct {
	hold *PermitHold
	id   lua.PermitID

	// Guarded by hold.mu.
	lease    *lease.Lease  // another one after each UpdateLease
	renewed  time.Duration // the lease to which it is renewed; 0: it is not
	updating int           // calls to UpdateLease that Redis may still run
	least    time.Time     // the earliest expiry that any of these, or of those concurrent with them, sets
	until    time.Time     // the end of its lease when the first of these was sent
	ttl      time.Duration // the same of renewed
}

// longest is the trusted time of a permit that does not expire: 146 years.
const longest time.Duration = math.MaxInt64 / 2

// admit starts a hold on the permits granted to w. If it fails, the caller must give them back.
func (m PermitSemaphore) admit(ctx context.Context, w *counterWaiter) (*PermitHold, error) {
	c := m.Client
	until := w.sent.Add(cmp.Or(w.first, m.TTL))
	if !time.Now().Before(until) {
		return nil, m.AnsweredTooLate(w.ids[0].String(), until)
	}
	h := &PermitHold{IDs: w.ids, Slots: w.slots}
	if m.MaxHold > 0 {
		began := w.sent
		if w.first > 0 {
			began = time.Now() // when it was granted, after the start of its trusted time
		}
		h.limit = began.Add(m.MaxHold)
	}
	if err := m.begins(ctx, h, until, w.first, m.RenewedFor(c)); err != nil {
		return nil, err
	}
	c.Leases.CatchUp() // cancel this Client's expired holds first (G1)
	return h, nil
}

// Section starts a hold with n permits that the caller has. If it fails, the caller gives them back.
func (m Counter) Section(ctx context.Context, n int64) (*PermitHold, error) {
	h := &PermitHold{n: n}
	if err := m.begins(tenure.CallerNow(ctx).Parent(), h, time.Now().Add(longest), 0, 0); err != nil {
		return nil, err
	}
	return h, nil
}

// begins starts a hold under ctx whose permits are trusted until then, and renewed for ttl; 0: they are not renewed. first is their first
// lease, if that is shorter; otherwise 0.
func (m Counter) begins(ctx context.Context, h *PermitHold, until time.Time, first, ttl time.Duration) error {
	c := m.Client
	if !c.HoldBegins(false) {
		return m.FailClosed()
	}
	h.semaphore, h.Within, h.unlocked.Name = m, tenure.InnermostOpen(ctx), &m.Name
	h.Context, h.cancel = context.WithCancelCause(ctx)
	h.permits = make([]heldPermit, max(1, len(h.IDs)))
	h.mu.Lock()
	open := true
	for i := range h.permits {
		p := &h.permits[i]
		p.hold = h
		if i < len(h.IDs) {
			p.id = h.IDs[i]
			m.of.own.Store(p.id, p)
		}
		open = p.keep(until, first, ttl) && open
	}
	h.mu.Unlock()
	if !open {
		h.cancel(c.Errors.Closed)
		h.forget()
		c.HoldEnds()
		return m.FailClosed()
	}
	return nil
}

// keep hands a permit to the renewer, see begins. It reports false if the engine is closed. hold.mu is held.
func (p *heldPermit) keep(until time.Time, first, ttl time.Duration) bool {
	leases := p.hold.semaphore.Client.Leases
	p.lease, p.renewed = new(lease.Lease), ttl
	if !p.hold.limit.IsZero() {
		leases.Limit(p.lease, p.hold.limit)
	}
	return leases.KeepShort(p.lease, p, until, cmp.Or(first, ttl), ttl)
}

// stop ends the renewals. mu is held.
func (h *PermitHold) stop() {
	for i := range h.permits {
		h.semaphore.Client.Leases.Stop(h.permits[i].lease)
	}
}

// Release gives the permits back.
func (h *PermitHold) Release() error {
	until := h.catchUp()
	h.mu.Lock()
	cancel := h.cancel
	h.cancel = nil
	h.stop()
	h.mu.Unlock()
	if cancel == nil {
		return h.semaphore.FailNotHeld(tenure.ErrUnlockedBefore)
	}
	cancel(&h.unlocked)
	if h.Released == nil {
		return h.release(until)
	}
	return h.Released(func() error { return h.release(until) })
}

func (h *PermitHold) release(until time.Time) (err error) {
	m, c, began := h.semaphore, h.semaphore.Client, time.Now()
	defer c.HoldEnds()
	h.forget()
	if h.loss != nil { // it does not change any more
		_, _ = m.giveBack(context.Background(), time.Time{}, 0, h.IDs...) // in the background; otherwise they expire with their lease
		return m.FailNotHeld(h.loss)
	}
	defer func() { engine.ChargeUnlockTime(h.Context, began, err != nil) }()
	over := began.Add(engine.UnlockTime(c, &h.Inner, began, func() bool { return c.Calls.IsSilent(m.Slot()) }))
	given, err := m.giveBack(h.Context, calls.Earlier(over, until), h.n, h.IDs...)
	at, why := 0, tenure.Loss{Reason: tenure.LostExpired, Since: until, Text: "lost: its lease ended before it could be given back"}
	if err != nil {
		if time.Now().Before(until) {
			return err
		}
	} else if at = slices.IndexFunc(given, func(g lua.Given) bool { return g != lua.PermitReleased }); at < 0 {
		return nil
	} else if given[at] == lua.PermitUnknown && time.Now().Before(until) {
		why = permitGone(forgotten)
	}
	loss := h.permits[at].explain(why)
	h.unlocked.Loss.Store(&loss)
	c.ReportLoss(h, m.Kind.Name, loss)
	return m.FailNotHeld(loss)
}

// TrustedUntil returns until when all its permits are trusted; the zero time if one was lost. ok is false if they do not expire.
func (h *PermitHold) TrustedUntil() (until time.Time, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.loss != nil {
		return time.Time{}, true
	}
	for i := range h.permits {
		if end := h.semaphore.Client.Leases.Until(h.permits[i].lease); i == 0 || end.Before(until) {
			until = end
		}
	}
	return until, len(h.IDs) > 0
}

// lose cancels a hold's ctx before its release, and ends the hold, unless the client is closed: then the permits stay in Redis, for their
// release.
func (p *heldPermit) lose(why tenure.Loss) {
	h, m := p.hold, p.hold.semaphore
	h.mu.Lock()
	if h.loss != nil || h.cancel == nil {
		h.mu.Unlock()
		return
	}
	loss, closed := p.explain(why), why.Reason == tenure.LostClosed
	if !closed {
		h.loss = loss
		h.stop()
	}
	var ended tenure.Endings
	ended.Add(h.Context, &m.Client.Foreign, h.cancel, loss)
	h.mu.Unlock()
	ended.Settle()
	if !closed {
		h.forget()
		m.Client.ReportLoss(h, m.Kind.Name, loss)
	}
}

// explain makes the error of a loss.
func (p *heldPermit) explain(why tenure.Loss) error {
	if why.Name = p.hold.semaphore.Name; len(p.hold.IDs) > 0 {
		why.Owner = p.id.String()
	}
	return p.hold.semaphore.Client.Errors.Loss(why)
}

// catchUp marks a hold lost if its time is over, without waiting for the renewer, and returns the end of that time.
func (h *PermitHold) catchUp() (until time.Time) {
	until, _ = h.TrustedUntil()
	if !time.Now().Before(until) {
		h.semaphore.Client.Leases.CatchUp()
	}
	return until
}

// gone ends a hold after Redis has lost one of its permits, before its time was over.
func (p *heldPermit) gone() {
	p.lose(permitGone(forgotten))
	m := p.hold.semaphore
	m.Client.Hub.WakeSoon(m.Waiters()) // a permit may be free without a message
}

const forgotten = "the permit was given back by its id, or its key was deleted or forgotten by a failover"

func permitGone(text string) tenure.Loss {
	return tenure.Loss{Reason: tenure.LostGone, Since: time.Now(), Text: "lost: " + text}
}

// A heldPermit is a lease.Keeper.

func (p *heldPermit) Item() lease.Item {
	return lease.Item{Name: p.hold.semaphore.Key, Owner: string(p.id[:])}
}

func (p *heldPermit) Group() any { return p.hold.semaphore.Group() }

func (p *heldPermit) Lost(loss lease.Loss) {
	if loss.Gone {
		p.gone()
		return
	}
	p.lose(p.hold.semaphore.LossOf(loss))
}

func (p *heldPermit) Closed() {
	p.lose(tenure.Loss{Reason: tenure.LostClosed, Since: time.Now(), Text: tenure.ClientClosed})
}

// About names the permit's semaphore, see tenure.Options.
func (p *heldPermit) About() (name, kind string) {
	return p.hold.semaphore.Name, p.hold.semaphore.Kind.Name
}

// updates is called before UpdateLease sends its call: the permit must not be trusted for longer than Redis keeps it.
func (p *heldPermit) updates(until time.Time) {
	h := p.hold
	h.mu.Lock()
	defer h.mu.Unlock()
	trusted := h.semaphore.Client.Leases.Until(p.lease)
	if p.updating++; p.updating == 1 {
		p.least, p.until, p.ttl = until, trusted, p.renewed
	}
	p.least = calls.Earlier(p.least, until)
	if until.Before(trusted) {
		p.endsAt(until)
	}
}

// updated is called after the answer to that call, or if Redis will not run it. Then all is as before, unless another one may still run: the
// earliest end that any of them sets counts.
func (p *heldPermit) updated(held bool, err error) {
	h := p.hold
	h.mu.Lock()
	defer h.mu.Unlock()
	switch p.updating--; {
	case held:
		p.endsAt(p.least)
		p.until, p.ttl = p.least, 0
	case err != nil && p.updating == 0 && h.cancel != nil && h.loss == nil:
		p.renewed = p.ttl
		h.semaphore.Client.Leases.Update(p.lease, p.until, p.renewed)
	}
}

// endsAt stops a permit's renewal and trusts it until then. hold.mu is held.
func (p *heldPermit) endsAt(until time.Time) {
	if h := p.hold; h.cancel != nil && h.loss == nil {
		h.semaphore.Client.Leases.Stop(p.lease)
		p.keep(until, 0, 0)
	}
}

// forget ends that its permits are known by their ids.
func (h *PermitHold) forget() {
	for _, id := range h.IDs {
		h.semaphore.of.own.Delete(id)
	}
}

// own returns the permit with that id, if this process holds it.
func (m PermitSemaphore) own(id lua.PermitID) *heldPermit {
	found, _ := m.of.own.Load(id)
	if p, _ := found.(*heldPermit); p != nil && p.hold.semaphore.Key == m.Key {
		return p
	}
	return nil
}

// A PermitHold is a tenure.Section.

// String keeps fmt from reading the fields, which change. It is the form of package context.
func (h *PermitHold) String() string {
	return fmt.Sprint(h.Context) + ".WithPermit(" + tenure.Quote(h.semaphore.Name) + ")"
}

// Value makes it the innermost section of its context.
func (h *PermitHold) Value(key any) any {
	return tenure.SectionValue(h.Context, h, key)
}

// IsOpen reports whether the hold has not been released.
func (h *PermitHold) IsOpen() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.cancel != nil
}

// Owns returns false: a permit is no owner, and is not re-entered.
func (h *PermitHold) Owns(string) bool { return false }
