package engine

import (
	"errors"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/sweep"
	"github.com/go-rlock/rlock/internal/tenure"
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
// An Adopt that fails after it may have run gives the lock back, as any Lock does: the ticket is then used up. With WithWaitForRedis it tries
// again with the same owner before it fails, and finds the field that an unanswered try has written.

// Export ends the hold of the level, which must be its only one, and leaves the lock to the ticket with that number for the given time. The
// caller waits as for an unlock. Except after NotExported errors the section has ended, and after an error its lock is released.
func Export(l *tenure.Level, number string, lasts time.Duration) (err error) {
	t, m := l.Hold.Tenure, l.Lock
	c := m.Client
	if t.Majority != nil {
		return m.FailNotExported("a quorum is on several servers, and no call moves its hold on all of them at once")
	}
	if c.IsTold() || !c.Calls.Start() {
		return m.Fail(c.Errors.NotExported, c.Errors.Closed)
	}
	defer c.Calls.Ended()
	t.CatchUp()
	began := time.Now()
	left := &tenure.Stay{Until: began.Add(lasts), Ticket: t.Lock.Kind.OfTicket(c.ID, number)}
	if err := l.CloseToExport(left); err != nil {
		return err
	}
	err = traced(l, func(l *tenure.Level) (err error) {
		defer func() { ChargeUnlockTime(l.Context, began, err != nil) }()
		return onlyError(newUnlocker(l, t.Lock.Waiters()).unlock(began.Add(unlockTime(l, began))))
	})
	if err == nil {
		c.Counts.Exported.Add(1)
		return nil
	}
	c.Sweep(ofTicket(t, left))
	return err
}

// ofTicket returns the field to sweep after a failed Export: nobody has the ticket, but a late call may leave the lock to it while the
// owner's field exists.
func ofTicket(t *tenure.Tenure, left *tenure.Stay) *sweep.Orphan {
	r := t.OrphanOf(t.Lock.ReleaseOf(left.Ticket))
	r.Late, r.OutcomeUnknown, r.Until = true, true, time.Now().Add(min(sweep.Most, t.Lasts()))
	return r
}

var errNoTicket = errors.New("it was used before, or its time is over (lock the name as ever)")

// Adopt continues a hold that the Client with that id exported to the ticket with that number.
func Adopt(m *tenure.Lock, who tenure.Caller, id, number string) (*tenure.Level, error) {
	if err := m.StartCall(); err != nil {
		return nil, err
	}
	c := m.Client
	defer c.Calls.Ended()
	if err := m.Fits(); err != nil {
		return nil, m.Fail(err)
	}
	field := m.Kind.OfTicket(id, number)
	l := &Attempt{AcquireRequest: AcquireRequest{Caller: who, Lock: m, Tenure: m.NewTenure(), Count: 1, ticket: &field}}
	if err := l.begins(); err != nil {
		return nil, err
	}
	a, left, err := l.ask()
	for err != nil && !left && calls.IsTransient(err) && who.GoesOn() && !c.IsShut() {
		// With the same owner: if an earlier call has written it, the ticket was used by this Adopt alone.
		a, left, err = l.ask()
	}
	switch {
	case left: // a late answer is rolled back
		return nil, l.Failure(err)
	case err != nil:
		l.withdraw()
		return nil, l.Failure(err)
	case a.Status != lua.Acquired:
		l.withdraw()
		return nil, m.Fail(c.Errors.Ticket, errNoTicket)
	}
	o := l.enter(a)
	if o.Level != nil {
		who.Took(tenure.PathAdopted)
		c.Counts.Adopted.Add(1)
	}
	return o.Level, o.Err
}
