package engine

import (
	"context"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/sweep"
	"github.com/go-rlock/rlock/internal/tenure"
)

// An unlock blocks its caller for a bounded time, because the section's ctx may have ended long ago, or may never be done. After that
// time the unlock continues in the background, and anything unresolved is swept:
//
//	state      event                                    next
//	waited for its calls have ended                     done: what came of them
//	           the lease has ended, the hold is lost    left: ErrLost and ErrNotHeld
//	           Options.UnlockTimeout is over            left: ErrUnreachable; nothing is renewed any more
//	left       its call is answered                     done
//	           its call fails                           done; swept
//
// Enclosing sections share that time if they are unlocked soon afterwards. A call in flight is ended only by its answer, by rueidis or
// by Close.

// Unlock closes the level, and ends the hold with the last one.
func Unlock(l *tenure.Level) error {
	switch closed, last := l.Close(); {
	case last:
		return l.Traced(release)
	case closed:
		return l.Traced((*tenure.Level).Outlived)
	case l.IsDowngraded():
		return nil
	case l.IsExported():
		return l.Outlived()
	}
	return l.Through().FailNotHeld(tenure.ErrUnlockedBefore)
}

// GiveBack unlocks a level that was never returned to the caller. WithMinHold does not apply.
func GiveBack(l *tenure.Level) {
	l.NeverReturned()
	_ = Unlock(l)
}

// ChargeUnlockTime charges a failed unlock's time to the sections around ctx. An unlock that Redis answered costs them nothing: Redis may be far
// away.
func ChargeUnlockTime(ctx context.Context, began time.Time, failed bool) {
	now := time.Now()
	if !failed || now.Sub(began) < calls.UnresponsiveAfter/2 {
		return
	}
	for s := tenure.SectionOf(ctx); s != nil; s = s.Around() {
		s.Unlocks().Add(began, now)
	}
}

// UnlockTime returns how long an unlock that begins now may block its caller. When the time is used up, an unlock on a healthy server
// still gets a moment; on a server known to be silent it does not.
func UnlockTime(c *tenure.Client, section *tenure.InnerUnlocks, now time.Time, silent func() bool) time.Duration {
	wait := c.Options.UnlockTimeout
	took := section.Spent(now)
	if rest := wait - took; took == 0 || rest > calls.UnresponsiveAfter || silent() {
		return max(rest, 0)
	}
	return min(calls.UnresponsiveAfter, wait)
}

// afterStop extends an unlock if this process was stopped meanwhile and resumes after its time: the answer may have arrived, or need a
// new connection.
const afterStop = time.Second / 2

// wasStopped reports whether this process was stopped, or starved, when a timer should have fired.
func wasStopped(due time.Time) bool { return time.Since(due) > calls.UnresponsiveAfter }

// release takes a closed level off the count in Redis.
//
// Its calls run on a separate goroutine, except the first if the caller's Lock could not be left either and nothing hints at trouble:
// that saves two goroutine switches, a third of the time of a Lock and its unlock. rueidis ends that call in time, except while it
// waits for room in its queue or for another goroutine's dial.
func release(l *tenure.Level) (err error) {
	if t := l.Hold().Tenure(); t.IsMajority() {
		return releaseMajority(l, t.Majority)
	}
	if passOn(l.Hold()) {
		return nil
	}
	if left, err := l.Hold().LeaveOthers(); left {
		return err
	}
	c, t, began := l.Through().Client, l.Hold().Tenure(), time.Now()
	over := began.Add(unlockTime(l, began))
	defer func() { ChargeUnlockTime(l.Context, began, err != nil) }()
	mine := t.TryCallSlot()
	until := calls.Earlier(over, c.Leases.Until(&t.Lease))
	if !mine || l.Hold().LossSoFar() == nil && (!l.IsPatient() || until.Sub(began) < minOwn+spareOwn || c.Calls.AnyLeft()) {
		return onlyError(unlockFor(new(unlocker), over, []*tenure.Level{l}, mine, nil))
	}
	counted := c.Calls.Start() // an unlock works after Close, too
	if counted {               // Close waits for all of it
		defer c.Calls.Ended()
	}
	// This call's limit is well before the unlock's, so that it cannot end a dial: if the server rejects connections unasked (maxclients),
	// that makes rueidis v1.0.79 panic (pipe.Close).
	by := &unlocker{over: until, left: c.Calls.After(until), counted: counted}
	one := [1]unlocking{toUnlock(t, l.Hold())}
	all := unlockings(one[:])
	if err := all.begin(by); err != nil {
		return releaseRest(l, over, one[0])
	}
	return onlyError(all.ended(by))
}

// releaseMajority ends a majority's hold after its last level was closed.
func releaseMajority(l *tenure.Level, of tenure.Majority) (err error) {
	began := time.Now()
	defer func() { ChargeUnlockTime(l.Context, began, err != nil) }()
	// One silent server must not shorten the unlock.
	wait := UnlockTime(l.Through().Client, &l.Inner, began, func() bool { return false })
	return of.Release(l, began.Add(wait))
}

// releaseRest continues an unlock after its first call failed. begun escapes to the heap only here, which saves most unlocks an
// allocation.
func releaseRest(l *tenure.Level, over time.Time, begun unlocking) error {
	by := new(unlocker)
	by.fails(begun.Err)
	return onlyError(unlockFor(by, over, []*tenure.Level{l}, true, unlockings{begun}))
}

// onlyError returns the error of an unlock with at most one.
func onlyError(errs []error) error {
	if len(errs) > 0 {
		return errs[0]
	}
	return nil
}

// UnlockTogether ends levels opened by TakeTogether. The ctx of their section ends first.
func UnlockTogether(levels []*tenure.Level) (errs []error) {
	if len(levels) == 0 {
		return nil
	}
	var last []*tenure.Level // the last levels of their holds
	for _, l := range levels {
		if _, isLast := l.Close(); isLast {
			last = append(last, l)
		} else if err := l.Outlived(); err != nil {
			errs = append(errs, err)
		}
	}
	if len(last) == 0 {
		return errs
	}
	one, began := levels[0], time.Now()
	defer func() { ChargeUnlockTime(one.Context, began, len(errs) > 0) }()
	return append(errs, unlockFor(new(unlocker), began.Add(unlockTime(one, began)), last, false, nil)...)
}

func unlockTime(l *tenure.Level, now time.Time) time.Duration {
	c := l.Through().Client
	return UnlockTime(c, &l.Inner, now, func() bool { return c.Calls.IsSilent(l.Through().Slot) })
}

// releaseAll ends the holds of closed levels. mine: the right to make calls for them was taken; begun: the first call was made.
func releaseAll(levels []*tenure.Level, by *unlocker, mine bool, begun unlockings) []error {
	for _, l := range levels {
		if !mine {
			l.Hold().Tenure().AwaitCallSlot() // no deadlock: the owner of that right waits for no other hold
		}
	}
	var err error
	if begun == nil {
		begun = make(unlockings, len(levels))
		for i, l := range levels {
			begun[i] = toUnlock(l.Hold().Tenure(), l.Hold())
		}
		err = begun.begin(by)
	} else {
		err = begun[0].Err
	}
	begun.finish(by, err)
	return begun.ended(by)
}

// End ends a tenure without a hold, as an unlock does: a waiter here or elsewhere is given the lock. It returns at once a channel that is
// closed at the end.
func End(t *tenure.Tenure) (ended <-chan struct{}) {
	over, c := make(chan struct{}), t.Lock.Client
	by := &unlocker{counted: c.Calls.Start()}
	go func() { // ends as unlocks do; Close waits for it
		if by.counted {
			defer c.Calls.Ended()
		}
		defer close(over)
		t.AwaitCallSlot()
		all := unlockings{toUnlock(t, nil)}
		all.finish(by, all.begin(by))
		all.ended(by)
	}()
	return over
}

// ended finishes an unlock after its calls.
func (all unlockings) ended(by *unlocker) (errs []error) {
	var rest []*sweep.Orphan
	for i := range all {
		r, err := all[i].end(by)
		if r != nil {
			rest = append(rest, r)
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	for i := range all {
		all[i].tenure.ReleaseCallSlot()
	}
	all[0].tenure.Lock.Client.Sweep(rest...)
	return errs
}

// unlockFor runs releaseAll on a goroutine, for levels of one Client and slot. It returns when that does, when all levels are lost, or
// at over.
func unlockFor(by *unlocker, over time.Time, levels []*tenure.Level, mine bool, begun unlockings) []error {
	m := levels[0].Through()
	c, slot := m.Client, m.Slot
	results, left := make(chan []error), make(chan struct{})
	by.left, by.counted = left, c.Calls.Start() // an unlock works after Close, too
	go func() {                                 // ends with its calls, which are not bound to a caller's ctx; Close waits for it
		if by.counted {
			defer c.Calls.Ended()
		}
		errs := releaseAll(levels, by, mine, begun)
		select {
		case results <- errs:
		case <-left:
			c.Calls.LeftEnds(slot) // the calls have recorded whether Redis answered
		}
	}()
	if errs, ended := awaitUnlock(levels, over, results); ended {
		return errs
	}
	c.Calls.Leave(slot)
	close(left)
	c.Leases.CatchUp() // a hold whose lease has just ended is lost, even if not noticed yet
	errs := make([]error, len(levels))
	for i, l := range levels {
		errs[i] = leave(l, by.cause())
	}
	return errs
}

// awaitUnlock waits for the results of an unlock, until all levels are lost or over has passed.
func awaitUnlock(levels []*tenure.Level, over time.Time, results <-chan []error) (errs []error, ended bool) {
	for extended := false; ; {
		wait, lost := untilLost(levels, over)
		if !extended && wasStopped(over) {
			extended, over = true, time.Now().Add(afterStop)
			continue
		}
		if wait <= 0 {
			break
		}
		timer := time.NewTimer(wait)
		select {
		case errs := <-results:
			timer.Stop()
			return errs, true
		case <-timer.C:
		case <-lost:
			timer.Stop()
		}
	}
	select {
	case errs := <-results:
		return errs, true
	default:
		return nil, false
	}
}

// untilLost returns the time until all levels are lost, as far as known, or until over if that is earlier; it is positive until then. It
// may be shorter once lost is closed.
func untilLost(levels []*tenure.Level, over time.Time) (wait time.Duration, lost <-chan struct{}) {
	last := time.Now()
	for _, l := range levels {
		t := l.Hold().Tenure()
		t.CatchUp()
		losing := t.Losing()
		if losing == nil {
			continue
		}
		lost = losing
		until := t.Until()
		// In the second case it has ended without a notification: the Client is closed, or another unlock ends it.
		if !until.Before(over) || !until.After(last) {
			return time.Until(over), lost
		}
		last = until
	}
	if lost == nil {
		return 0, nil
	}
	return max(time.Until(last), 1), lost // at its end, the next look tells whether they are lost
}

// leave ends the wait for an unlock and returns its error so far.
func leave(l *tenure.Level, why error) error {
	if loss := l.LeaveUnlock(); loss != nil {
		return l.Through().FailNotHeld(loss)
	}
	return l.Through().FailPending(why)
}

// Await waits for the results of a majority's release, until the hold is lost or over has passed; why then returns the reason for the
// delay. The hold has ended when Await returns, even if the release continues.
func Await(l *tenure.Level, results <-chan []error, over time.Time, why func() error) error {
	m := l.Through()
	errs, ended := awaitUnlock([]*tenure.Level{l}, over, results)
	if !ended {
		errs = []error{why()}
	}
	switch loss := l.Hold().EndAtLast(); {
	case loss != nil:
		return m.FailNotHeld(loss)
	case len(errs) > 0:
		return m.FailPending(errs[0])
	}
	return nil
}

// Release ends a tenure without a hold, and retries after transient errors while its lease lasts. Anything unresolved is swept.
func Release(t *tenure.Tenure) tenure.ReleaseResult {
	all, by := unlockings{{tenure: t, args: t.ReleaseArgs()}}, new(unlocker) // no caller leaves it
	_, until := all.lastToEnd()
	all.finish(by, all.call(by, false))
	r := all[0].ReleaseResult
	if t.GivenBack(r.Err); r.Err != nil {
		t.UnresolvedUntil(until) // its lease may be longer than its handle's
	}
	t.SweepIfUnresolved()
	return r
}
