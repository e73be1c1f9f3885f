package engine

import (
	"errors"
	"fmt"
	"time"

	"github.com/go-rlock/rlock/internal/sweep"
	"github.com/go-rlock/rlock/lua"
)

// A hold can move to another process. Export ends it here as an unlock does, but leaves its lock to a ticket; Adopt, in any process,
// continues with the ticket. The lock has three fields one after the other, each used once (I3): of the hold, of the ticket, and of the
// tenure of the Adopt.
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
// An Adopt that fails after it may have run gives the lock back, as any Lock does: the ticket is then used up.

// ErrExported is in the cause of a section whose hold was exported.
var ErrExported = errors.New("rlock: exported")

// exportedError is the [context.Cause] of such a section.
type exportedError struct{ *UnlockedError }

func (e exportedError) Error() string {
	if e.Unwrap() != nil {
		return e.UnlockedError.Error()
	}
	return "rlock: " + Quote(*e.Name) + ": exported"
}

func (e exportedError) Is(target error) bool {
	return target == ErrExported || e.UnlockedError.Is(target)
}

// Handle returns the handle with which its hold was taken.
func (l *Level) Handle() *Lock { return l.hold.tenure.Lock }

// HasToken reports whether its hold has a fencing token.
func (l *Level) HasToken() bool {
	_, ok := l.hold.fencingToken()
	return ok
}

// IsExported reports whether Export ended it.
func (l *Level) IsExported() bool {
	l.hold.tenure.mu.Lock()
	defer l.hold.tenure.mu.Unlock()
	return l.hold.exported
}

// TakenTogether notes that its hold is one of several that end together, unless the level is a re-entry.
func (l *Level) TakenTogether() {
	if l != &l.hold.first {
		return
	}
	l.hold.tenure.mu.Lock()
	defer l.hold.tenure.mu.Unlock()
	l.hold.together = true
}

// Export ends the hold of the level, which must be its only one, and leaves the lock to the ticket with that number for the given time. The
// caller waits as for an unlock. Except after NotExported errors the section has ended, and after an error its lock is released.
func (l *Level) Export(number string, lasts time.Duration) (err error) {
	t, m := l.hold.tenure, l.lock
	c := m.Engine
	if t.majority != nil {
		return m.notExported("a quorum is on several servers, and no call moves its hold on all of them at once")
	}
	if c.IsTold() || !c.Calls.Start() {
		return m.Fail(c.Errors.NotExported, c.Errors.Closed)
	}
	defer c.Calls.Ended()
	t.catchUp()
	began := time.Now()
	left := &stay{until: began.Add(lasts), ticket: t.Lock.Kind.OfTicket(c.ID, number)}
	if err := l.closeToExport(left); err != nil {
		return err
	}
	err = l.traced(func(l *Level) (err error) {
		defer func() { Spend(l.Context, began, err != nil) }()
		return onlyError(unlockFor(new(unlocker), began.Add(l.unlockTime(began)), []*Level{l}, false, nil))
	})
	if err == nil {
		c.stats.exported.Add(1)
		return nil
	}
	c.sweepInCall(t.ofTicket(left))
	return err
}

// notExported returns the error of an Export that changes nothing.
func (m *Lock) notExported(why string) error {
	return m.Fail(m.Engine.Errors.NotExported, errors.New(why))
}

// closeToExport closes the level if its hold may be exported, and leaves the lock to the ticket.
func (l *Level) closeToExport(left *stay) error {
	h, t := l.hold, l.hold.tenure
	m := t.Lock
	readers := m.Kind.Side == lua.Writer && m.Engine.insiders.reads(m.Key) // the script looks again, when it is too late to go on
	t.mu.Lock()
	var err error
	switch {
	case l.cancel == nil:
		err = m.Fail(m.Engine.Errors.NotExported, m.Engine.Errors.NotHeld, ErrUnlockedBefore)
	case h.loss() != nil:
		err = m.FailNotHeld(h.loss())
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

// ofTicket returns the field to sweep after a failed Export: nobody has the ticket, but a late call may leave the lock to it while the
// owner's field exists.
func (t *Tenure) ofTicket(left *stay) *sweep.Orphan {
	m := t.Lock
	args := lua.ReleaseArgs{Name: m.Key, Side: m.Kind.Side, Owner: left.ticket, Publish: lua.Publish(m.Engine.KnownChannel(m))}
	if key := m.QueueKey(); key != "" {
		args.Fence, args.Queue = m.fence, lua.Queue{Key: key, GrantLease: m.Engine.GrantLease()}
	}
	r := t.orphanOf(args)
	r.Late, r.OutcomeUnknown, r.Until = true, true, time.Now().Add(min(sweep.Most, t.lasts()))
	return r
}

var errNoTicket = errors.New("it was used before, or its time is over (lock the name as ever)")

// Adopt continues a hold that the Client with that id exported to the ticket with that number.
func (m *Lock) Adopt(who Caller, id, number string) (*Level, error) {
	if err := m.StartCall(); err != nil {
		return nil, err
	}
	c := m.Engine
	defer c.Calls.Ended()
	if err := m.Fits(); err != nil {
		return nil, m.Fail(err)
	}
	field := m.Kind.OfTicket(id, number)
	l := &Attempt{AcquireRequest: AcquireRequest{Caller: who, Lock: m, Tenure: newTenure(m), Count: 1, ticket: &field}}
	if err := l.begins(); err != nil {
		return nil, err
	}
	a, left, err := l.ask()
	switch {
	case left: // a late answer is rolled back
		return nil, l.Failure(err)
	case err != nil:
		l.withdraw((*Engine).sweepInCall)
		return nil, l.Failure(err)
	case !a.Granted():
		l.withdraw((*Engine).sweepInCall)
		return nil, m.Fail(c.Errors.Ticket, errNoTicket)
	}
	level, err := l.enter(a)
	if err == nil {
		who.Took(PathAdopted)
		c.stats.adopted.Add(1)
	}
	return level, err
}
