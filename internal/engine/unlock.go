package engine

import (
	"context"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/sweep"
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
	case l.IsExported():
		return l.outlived()
	}
	return l.spec.notHeld(ErrUnlockedBefore)
}

// outlived is the unlock of a level that is closed while others of its hold are open.
func (l *Level) outlived() error {
	l.hold.tenure.catchUp()
	if loss := l.Loss(); loss != nil {
		return l.spec.notHeld(loss)
	}
	return nil
}

// GiveBack unlocks a level that the caller was not told of. Its hold does not stay taken, see WithMinHold.
func (l *Level) GiveBack() {
	l.Untaken()
	_ = l.Unlock()
}

// Untaken has the hold not stay taken, nor its tenure be idle, unless it is one that the caller had before.
func (l *Level) Untaken() {
	if l == &l.hold.first && l.spec.Linger > 0 {
		l.hold.tenure.want()
	}
	if l == &l.hold.first && l.spec.MinHold > 0 {
		l.hold.tenure.stays = nil
	}
}

// traced ends the section of a level.
func (l *Level) traced(end func(*Level) error) error {
	if l.Released == nil {
		return end(l)
	}
	return l.Released(func() error { return end(l) })
}

// spend takes the time of an unlock that failed off the time of the sections that ctx lies in. One that Redis answered costs them
// nothing: Redis may be far away.
func spend(ctx context.Context, began time.Time, failed bool) {
	now := time.Now()
	if !failed || now.Sub(began) < calls.UnresponsiveAfter/2 {
		return
	}
	for s := SectionOf(ctx); s != nil; s = s.Around() {
		s.Unlocks().add(began, now)
	}
}

// unlockTime is how long an unlock of a section that begins now may keep its caller waiting. When the time is used up, an unlock
// on a healthy server still gets a moment; one on a server known to be silent does not.
func (c *Engine) unlockTime(section *InnerUnlocks, now time.Time, silent func() bool) time.Duration {
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
	if of := l.hold.tenure.majority; of != nil {
		return l.releaseMajority(of)
	}
	if l.hold.passOn() {
		return nil
	}
	if left, err := l.hold.leaveOthers(); left {
		return err
	}
	c, t, began := l.spec.Engine, l.hold.tenure, time.Now()
	over := began.Add(l.unlockTime(began))
	defer func() { spend(l.Context, began, err != nil) }()
	mine := t.tryCallSlot()
	until := calls.Earlier(over, c.Leases.Until(&t.Lease))
	if !mine || l.hold.lossSoFar() == nil && (!l.isPatient() || until.Sub(began) < minOwn+spareOwn || c.Calls.AnyLeft()) {
		return onlyError(unlockFor(new(unlocker), over, []*Level{l}, mine, nil))
	}
	if c.Calls.Start() { // an unlock works after Close, too; Close waits for all of it
		defer c.Calls.Ended()
	}
	// It ends well before the unlock does, so that it is no dial that ends then: if the server lets nobody in and says so unasked
	// (maxclients), that makes rueidis v1.0.79 panic (pipe.Close).
	by := &unlocker{over: until, left: c.Calls.After(until)}
	one := [1]unlocking{l.toUnlock()}
	all := unlockings(one[:])
	if err := all.begin(by); err != nil {
		return l.releaseRest(over, one[0])
	}
	return onlyError(all.ended(by))
}

// releaseMajority ends the hold of a majority, whose last level is closed.
func (l *Level) releaseMajority(of Majority) (err error) {
	began := time.Now()
	defer func() { spend(l.Context, began, err != nil) }()
	// One silent server is none of the caller's concern.
	wait := l.spec.Engine.unlockTime(&l.inner, began, func() bool { return false })
	return of.Release(l, began.Add(wait))
}

// releaseRest is the rest of an unlock whose first call has failed. begun is in memory of its own then, which most unlocks do not need.
func (l *Level) releaseRest(over time.Time, begun unlocking) error {
	by := new(unlocker)
	by.fails(begun.Err)
	return onlyError(unlockFor(by, over, []*Level{l}, true, unlockings{begun}))
}

// onlyError is that of an unlock that has at most one.
func onlyError(errs []error) error {
	if len(errs) > 0 {
		return errs[0]
	}
	return nil
}

// UnlockTogether ends levels that TakeTogether opened. The ctx of their section ends first.
func UnlockTogether(levels []*Level) (errs []error) {
	if len(levels) == 0 {
		return nil
	}
	var last []*Level // of their holds
	for _, l := range levels {
		if _, isLast := l.close(); isLast {
			last = append(last, l)
		} else if err := l.outlived(); err != nil {
			errs = append(errs, err)
		}
	}
	if len(last) == 0 {
		return errs
	}
	one, began := levels[0], time.Now()
	defer func() { spend(one.Context, began, len(errs) > 0) }()
	return append(errs, unlockFor(new(unlocker), began.Add(one.unlockTime(began)), last, false, nil)...)
}

// isPatient reports whether the caller of Lock could not leave it.
func (l *Level) isPatient() bool {
	l.hold.tenure.mu.Lock()
	defer l.hold.tenure.mu.Unlock()
	return l.hold.patient && l == &l.hold.first
}

func (l *Level) unlockTime(now time.Time) time.Duration {
	c := l.spec.Engine
	return c.unlockTime(&l.inner, now, func() bool { return c.Calls.IsSilent(l.spec.Slot) })
}

// releaseAll ends the holds of levels that are closed. mine says that the right to make calls for them was taken, begun that the first call
// was made.
func releaseAll(levels []*Level, by *unlocker, mine bool, begun unlockings) []error {
	for _, l := range levels {
		if !mine {
			l.hold.tenure.awaitCallSlot() // whoever has the right to make calls for it waits for no other hold
		}
	}
	var err error
	if begun == nil {
		begun = make(unlockings, len(levels))
		for i, l := range levels {
			begun[i] = l.toUnlock()
		}
		err = begun.begin(by)
	} else {
		err = begun[0].Err
	}
	begun.finish(by, err)
	return begun.ended(by)
}

// ended is the end of an unlock whose calls have been made.
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
		all[i].tenure.releaseCallSlot()
	}
	all[0].tenure.Spec.Engine.sweep(rest...)
	return errs
}

// unlockFor is releaseAll on a goroutine of its own, for levels of one Client and slot. It returns when that does, when all levels are lost, or when
// the time is over.
func unlockFor(by *unlocker, over time.Time, levels []*Level, mine bool, begun unlockings) []error {
	m := levels[0].spec
	c, slot := m.Engine, m.Slot
	results, left := make(chan []error), make(chan struct{})
	by.left = left
	counted := c.Calls.Start() // an unlock works after Close, too
	go func() {                // ends with its calls, which no ctx of a caller ends; Close waits for it
		if counted {
			defer c.Calls.Ended()
		}
		errs := releaseAll(levels, by, mine, begun)
		select {
		case results <- errs:
		case <-left:
			c.Calls.LeftEnds(slot) // whether Redis has answered, the calls have noted
		}
	}()
	if errs, ended := awaitUnlock(levels, over, results); ended {
		return errs
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

// awaitUnlock waits for what came of an unlock, until all levels are lost or that time is over.
func awaitUnlock(levels []*Level, over time.Time, results <-chan []error) (errs []error, ended bool) {
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

// untilLost is how long it takes until all levels are lost, as far as that is known, or until over if that is earlier. It may be
// less once lost is closed.
func untilLost(levels []*Level, over time.Time) (wait time.Duration, lost <-chan struct{}) {
	last := time.Now()
	for _, l := range levels {
		t := l.hold.tenure
		t.catchUp()
		t.mu.Lock()
		isLost := t.loss != nil
		if !isLost {
			lost = t.losing()
		}
		t.mu.Unlock()
		if isLost {
			continue
		}
		until := t.until()
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
