package engine

import (
	"errors"
	"fmt"
	"time"

	"github.com/go-rlock/rlock/internal/sweep"
	"github.com/go-rlock/rlock/lua"
)

// A hold can be taken along: an Export ends it here as an unlock does, but leaves its lock to a ticket, and an Adopt, in whichever process, goes on
// with that. Of the three fields that the lock then has one after the other, each is used once (I3): that of the hold, that of the ticket, and that of
// the tenure of the Adopt.
//
//	state        event                                next
//	open         Export                               closed: the section's ctx ends before anything is sent
//	             refused: see mayExport               open
//	closed       the ticket has the lock              done; no waiter is chosen, all are told to ask for how long
//	             the owner does not have it           lost
//	             no answer, refused, or lost          done: an error. Nobody has the ticket: the owner's field is swept, and so is the ticket's
//	ticket       Adopt                                a live hold, with the lease of its handle
//	             its time is over                     free
//
// An Adopt that fails after it may have run gives the lock back, as any Lock does: the ticket is used up then.

// ErrExported is found in the cause of a section whose hold was exported.
var ErrExported = errors.New("rlock: exported")

// exportedError is the [context.Cause] of such a section.
type exportedError struct{ *unlockedError }

func (e exportedError) Error() string {
	if e.Unwrap() != nil {
		return e.unlockedError.Error()
	}
	return "rlock: " + Quote(*e.name) + ": exported"
}

func (e exportedError) Is(target error) bool {
	return target == ErrExported || e.unlockedError.Is(target)
}

// Spec is what its hold was taken as.
func (l *Level) Spec() *Spec { return l.hold.tenure.Spec }

// HasToken reports whether its hold has a fencing token.
func (l *Level) HasToken() bool {
	_, ok := l.hold.fencingToken()
	return ok
}

// IsExported reports whether it was ended by Export.
func (l *Level) IsExported() bool {
	l.hold.tenure.mu.Lock()
	defer l.hold.tenure.mu.Unlock()
	return l.hold.exported
}

// TakenTogether notes that its hold is one of several that end together, unless it is one that the caller had before.
func (l *Level) TakenTogether() {
	if l != &l.hold.first {
		return
	}
	l.hold.tenure.mu.Lock()
	defer l.hold.tenure.mu.Unlock()
	l.hold.together = true
}

// Export ends the hold of the level, which has no other, and leaves its lock for so long to the ticket that Redis knows by that number. It
// keeps its caller waiting as an unlock does. Unless the error says that there is nothing to be exported, the section has ended all the same, and its lock
// is released.
func (l *Level) Export(number string, lasts time.Duration) (err error) {
	t, m := l.hold.tenure, l.spec
	c := m.Engine
	if t.majority != nil {
		return m.notExported("a quorum is on several servers, and no call moves its hold on all of them at once")
	}
	if c.IsTold() || !c.Calls.Start() {
		return m.Fail(c.errs.NotExported, c.errs.Closed)
	}
	defer c.Calls.Ended()
	t.catchUp()
	began := time.Now()
	left := &stay{until: began.Add(lasts), ticket: t.Spec.Kind.OfTicket(c.ID, number)}
	if err := l.closeToExport(left); err != nil {
		return err
	}
	err = l.traced(func(l *Level) (err error) {
		defer func() { spend(l.Context, began, err != nil) }()
		return onlyError(unlockFor(new(unlocker), began.Add(l.unlockTime(began)), []*Level{l}, false, nil))
	})
	if err == nil {
		c.stats.exported.Add(1)
		return nil
	}
	c.sweepInCall(t.ofTicket(left))
	return err
}

// notExported is the error of an Export that changes nothing.
func (m *Spec) notExported(why string) error {
	return m.Fail(m.Engine.errs.NotExported, errors.New(why))
}

// closeToExport closes the level if it is the only one of a hold that may be exported, and has its end leave the lock to the ticket.
func (l *Level) closeToExport(left *stay) error {
	h, t := l.hold, l.hold.tenure
	m := t.Spec
	readers := m.Kind.Side == lua.Writer && m.Engine.insiders.reads(m.Key) // the script looks again, when it is too late to go on
	t.mu.Lock()
	var err error
	switch {
	case l.cancel == nil:
		err = m.Fail(m.Engine.errs.NotExported, m.Engine.errs.NotHeld, ErrUnlockedBefore)
	case h.loss() != nil:
		err = m.notHeld(h.loss())
	case m.Kind.Side == lua.Reader:
		err = m.notExported("readers of a process share what they have in Redis (export the write side)")
	case !m.Kind.Exports:
		err = m.notExported("in the queue of a " + m.Kind.Name + " lock, places are timed by the lease of the holder (use a Mutex)")
	case h.together:
		err = m.notExported("it was taken together with other locks, and ends with them (lock them one by one)")
	case h.levels != l || l.next != nil:
		err = m.notExported(fmt.Sprintf("%d levels of the hold are open, all of which run here (unlock the inner ones first)", h.count))
	case readers:
		err = m.notExported("readers are in the section of the writer (unlock these first)")
	}
	if err != nil {
		t.mu.Unlock()
		return err
	}
	h.exported, t.stays = true, left
	l.closeFor(exportedError{&h.unlocked})
	return nil
}

// ofTicket is what is to be swept after an Export that failed: nobody has the ticket, and a late call may still leave the lock to that, as long as
// the owner's field is there.
func (t *Tenure) ofTicket(left *stay) *sweep.Orphan {
	m := t.Spec
	args := lua.ReleaseArgs{Name: m.Key, Side: m.Kind.Side, Owner: left.ticket, Publish: lua.Publish(m.Engine.KnownChannel(m))}
	if key := m.queueKey(); key != "" {
		args.Fence, args.Queue = m.fenceOf(), lua.Queue{Key: key, GrantLease: m.Engine.grantLease()}
	}
	lasts := longer(max(m.TTL(), m.Engine.Options.WatchdogTimeout), m.Grace) // the answer of a renewal may be lost
	r := t.orphanOf(args)
	r.Late, r.OutcomeUnknown, r.Until = true, true, time.Now().Add(min(sweep.Most, lasts))
	return r
}

var errNoTicket = errors.New("it was used before, or its time is over (lock the name as ever)")

// Adopt goes on with a hold that was exported to the ticket that Redis knows by that number, by the Client with that id.
func (m *Spec) Adopt(who Caller, id, number string) (*Level, error) {
	if m.Invalid != nil {
		return nil, m.Invalid
	}
	c := m.Engine
	if !c.Calls.Start() {
		return nil, m.closed()
	}
	defer c.Calls.Ended()
	if err := m.Fits(); err != nil {
		return nil, m.Fail(err)
	}
	field := m.Kind.OfTicket(id, number)
	l := &attempt{AcquireRequest: AcquireRequest{Caller: who, Spec: m, Tenure: newTenure(m), Count: 1, ticket: &field}}
	if err := l.begins(); err != nil {
		return nil, err
	}
	a, left, err := l.ask()
	switch {
	case left: // a late answer is rolled back
		return nil, l.failure(err)
	case err != nil:
		l.withdraw((*Engine).sweepInCall)
		return nil, l.failure(err)
	case !a.Granted():
		l.withdraw((*Engine).sweepInCall)
		return nil, m.Fail(c.errs.Ticket, errNoTicket)
	}
	level, err := l.enter(a)
	if err == nil {
		who.Took(PathAdopted)
		c.stats.adopted.Add(1)
	}
	return level, err
}
