package engine

import (
	"context"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
)

// An unlock keeps its caller waiting for a bounded time, because the ctx of the section may have ended long ago, or may never be
// done. After that time the rest goes on in the background, and what stays unresolved is swept:
//
//	state      event                                    next
//	waited for its calls have ended                     done: what came of them
//	           the lease has ended, the hold is lost    left: ErrLost and ErrNotHeld
//	           Options.UnlockTimeout is over            left: ErrUnreachable; nothing is renewed any more
//	left       its call is answered                     done
//	           its call fails                           done; swept
//
// The sections around it share that time if they are unlocked soon afterwards. A call in flight ends only with its answer, or by
// rueidis or Close.

// Unlock closes the level, and ends the hold with the last one.
func (l *Level) Unlock() error {
	switch closed, last := l.close(); {
	case last:
		return l.traced((*Level).release)
	case closed:
		return l.traced((*Level).outlived)
	case l.downgraded():
		return nil
	}
	return l.spec.notHeld(ErrUnlockedBefore)
}

// outlived is the unlock of a level that is closed while others of its hold are open.
func (l *Level) outlived() error {
	h, leases := l.hold, l.spec.Engine.Leases
	if !time.Now().Before(leases.Until(&h.tenure.Lease)) {
		leases.CatchUp() // it is lost, whoever notices first
	}
	if loss := h.lossSoFar(); loss != nil {
		return l.spec.notHeld(loss)
	}
	return nil
}

// GiveBack unlocks a level that the caller was not told of. Its hold does not stay taken, see WithMinHold.
func (l *Level) GiveBack() {
	l.Untaken()
	_ = l.Unlock()
}

// Untaken has the hold not stay taken, unless it is one that the caller had before.
func (l *Level) Untaken() {
	if l == &l.hold.first && l.spec.MinHold > 0 {
		l.hold.tenure.taken = nil
	}
}

// traced ends the section of a level.
func (l *Level) traced(end func(*Level) error) error {
	if l.Released == nil {
		return end(l)
	}
	return l.Released(func() error { return end(l) })
}

// Spend takes the time of an unlock that failed off the time of the sections that ctx lies in. One that Redis answered costs them
// nothing: Redis may be far away.
func Spend(ctx context.Context, began time.Time, failed bool) {
	now := time.Now()
	if !failed || now.Sub(began) < calls.UnresponsiveAfter/2 {
		return
	}
	for s := SectionOf(ctx); s != nil; s = s.Around() {
		s.Unlocks().add(began, now)
	}
}

// UnlockTime is how long an unlock of a section that begins now may keep its caller waiting. When the time is used up, an unlock
// on a healthy server still gets a moment; one on a server known to be silent does not.
func (c *Engine) UnlockTime(section *InnerUnlocks, now time.Time, silent func() bool) time.Duration {
	wait := c.Options.UnlockTimeout
	took := section.spent(now)
	if rest := wait - took; took == 0 || rest > calls.UnresponsiveAfter || silent() {
		return max(rest, 0)
	}
	return min(calls.UnresponsiveAfter, wait)
}

// afterStop is how much longer an unlock takes if this process was stopped in it, and goes on after the end of its time: the answer may be
// there, or need a new connection.
const afterStop = time.Second / 2

// wasStopped reports whether this process was stopped, or starved, when a timer should have fired.
func wasStopped(due time.Time) bool { return time.Since(due) > calls.UnresponsiveAfter }

// release takes a level that is closed off the count in Redis.
//
// Its calls are made on a goroutine of their own, but for the first one if the caller could not leave the Lock either and nothing hints at
// trouble: that saves two switches, a third of the time of a Lock and its unlock. rueidis ends that call in time, except while it waits
// for room, or for another goroutine that dials.
func (l *Level) release() (err error) {
	if l.hold.passOn() {
		return nil
	}
	if left, err := l.hold.leaveOthers(); left {
		return err
	}
	c, h, began := l.spec.Engine, l.hold, time.Now()
	wait := l.unlockTime(began)
	over := began.Add(wait)
	defer func() { Spend(l.Context, began, err != nil) }()
	mine := h.tenure.tryCallSlot()
	until := calls.Earlier(over, c.Leases.Until(&h.tenure.Lease))
	if !mine || h.lossSoFar() == nil && (!l.isPatient() || until.Sub(began) < minOwn+spareOwn || c.Calls.AnyLeft()) {
		return l.releaseFor(over, mine, nil)
	}
	if c.Calls.Start() { // an unlock works after Close, too; Close waits for all of it
		defer c.Calls.Ended()
	}
	first := l.unlockHere(until)
	if first.loss != nil || first.Err == nil {
		return l.ended(&first)
	}
	return l.releaseRest(over, first)
}

// releaseRest is the rest of an unlock whose first call has failed. first is in memory of its own then, which most unlocks do not need.
func (l *Level) releaseRest(over time.Time, first unlocking) error {
	return l.releaseFor(over, true, &first)
}

// releaseFor ends the hold on a goroutine of its own, with the first call or after that. mine says that the right to make calls was taken.
func (l *Level) releaseFor(over time.Time, mine bool, first *unlocking) error {
	by := new(unlocker)
	if first != nil {
		by.fails(first.Err)
	}
	errs := unlockFor(by, time.Until(over), []*Level{l}, func() []error {
		if !mine {
			l.hold.tenure.awaitCallSlot()
		}
		u := first
		if u == nil {
			began := l.unlocking(by)
			u = &began
		}
		u.finish(by)
		if err := l.ended(u); err != nil {
			return []error{err}
		}
		return nil
	})
	if len(errs) > 0 {
		return errs[0]
	}
	return nil
}

// unlockHere makes the first call of an unlock on the caller's goroutine. It ends well before the unlock does, so that it is no dial that
// ends then: if the server lets nobody in and says so unasked (maxclients), that makes rueidis v1.0.79 panic (pipe.Close).
func (l *Level) unlockHere(until time.Time) unlocking {
	return l.unlocking(&unlocker{over: until, left: l.spec.Engine.Calls.After(until)})
}

// isPatient reports whether the caller of Lock could not leave it.
func (l *Level) isPatient() bool {
	l.hold.tenure.mu.Lock()
	defer l.hold.tenure.mu.Unlock()
	return l.hold.patient && l == &l.hold.first
}

func (l *Level) unlockTime(now time.Time) time.Duration {
	c := l.spec.Engine
	return c.UnlockTime(&l.inner, now, func() bool { return c.Calls.IsSilent(l.spec.Slot) })
}

// ended is the end of an unlock whose calls have been made.
func (l *Level) ended(u *unlocking) error {
	defer l.hold.tenure.releaseCallSlot()
	rest, err := u.end()
	if rest != nil {
		l.spec.Engine.sweep(rest)
	}
	return err
}

// unlockFor runs f, which ends levels of one Client and slot. It returns when f does, when all levels are lost, or after wait.
func unlockFor(by *unlocker, wait time.Duration, levels []*Level, f func() []error) []error {
	m := levels[0].spec
	c, slot, over := m.Engine, m.Slot, time.Now().Add(wait)
	results, left := make(chan []error), make(chan struct{})
	by.left = left
	counted := c.Calls.Start() // an unlock works after Close, too
	go func() {                // ends with its calls, which no ctx of a caller ends; Close waits for it
		if counted {
			defer c.Calls.Ended()
		}
		errs := f()
		select {
		case results <- errs:
		case <-left:
			c.Calls.LeftEnds(slot) // whether Redis has answered, the calls have noted
		}
	}()
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
			return errs
		case <-timer.C:
		case <-lost:
			timer.Stop()
		}
	}
	select {
	case errs := <-results:
		return errs
	default:
	}
	c.Calls.Leave(slot)
	close(left)
	c.Leases.CatchUp() // a hold that has just ended is lost, whoever notices first
	errs := make([]error, len(levels))
	for i, l := range levels {
		errs[i] = l.leave(by.cause())
	}
	return errs
}

// untilLost is how long it takes until all levels are lost, as far as that is known, or until over if that is earlier. It may be
// less once lost is closed.
func untilLost(levels []*Level, over time.Time) (wait time.Duration, lost <-chan struct{}) {
	c, last := levels[0].spec.Engine, time.Now()
	c.Leases.CatchUp()
	for _, l := range levels {
		t := l.hold.tenure
		t.mu.Lock()
		isLost := t.loss != nil
		if !isLost {
			lost = t.losing()
		}
		t.mu.Unlock()
		if isLost {
			continue
		}
		until := c.Leases.Until(&t.Lease)
		// In the second case it has ended, and nobody was told: the Client is closed, or another unlock ends it.
		if !until.Before(over) || !until.After(last) {
			return time.Until(over), lost
		}
		last = until
	}
	if lost == nil {
		return 0, nil
	}
	return time.Until(last), lost
}

// leave is the unlock of a level whose caller waits no longer, for what came of it so far.
func (l *Level) leave(why error) error {
	h, t, m := l.hold, l.hold.tenure, l.spec
	t.mu.Lock()
	loss, last := h.loss(), h.levels == nil
	t.left = t.left || loss == nil && last
	t.mu.Unlock()
	if loss != nil {
		return m.notHeld(loss)
	}
	if last {
		m.Engine.Leases.Stop(&t.Lease) // G7; and nobody is inside who would have to be told of its end
	}
	return m.unreachable(why)
}
