package engine

import (
	"context"
	"errors"
	"sync/atomic"
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

// unlocker is an unlock as its calls see it.
type unlocker struct {
	left   chan struct{}         // closed when the caller stops waiting
	over   time.Time             // when that is, if its call is made on the caller's goroutine; zero: on another
	failed atomic.Pointer[error] // what went wrong the last time, if it did
}

func newUnlocker() *unlocker { return &unlocker{left: make(chan struct{})} }

func (u *unlocker) isLeft() bool { return calls.IsClosed(u.left) }

// fails notes what went wrong. That the time of a call is over says nothing of why.
func (u *unlocker) fails(err error) {
	if !isOver(err) {
		u.failed.Store(&err)
	}
}

// isOver reports whether a call failed because its time was over.
func isOver(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// cause is what keeps an unlock from its end, as far as is known.
func (u *unlocker) cause() error {
	if err := u.failed.Load(); err != nil {
		return *err
	}
	return calls.ErrNoAnswer
}

// again pauses, and reports whether a release that failed is to be sent again: if that may help, the hold is not lost, and its caller
// waits.
func (u *unlocker) again(t *Tenure, r *calls.Retry, err error) bool {
	u.fails(err)
	c := t.Spec.Engine
	return !u.isLeft() && t.lossSoFar() == nil && (r.Wait(err, u.left, c.Calls.Done()) || !u.isLeft() && c.Calls.IsClosed())
}

// soonAfter is how soon after an unlock the sections around it have to be unlocked for its time to be taken off theirs.
const soonAfter = time.Second

// InnerUnlocks is the time that the unlocks inside a section have just taken. It is taken off the time of its own unlock.
type InnerUnlocks struct{ latest atomic.Pointer[spentTime] }

// spentTime is what unlocks took, one after the other.
type spentTime struct {
	took  time.Duration
	until time.Time
}

// spent is what they took if that was just now.
func (i *InnerUnlocks) spent(now time.Time) time.Duration {
	if s := i.latest.Load(); s != nil && now.Sub(s.until) <= soonAfter {
		return s.took
	}
	return 0
}

// add adds one, but for the time that it has in common with others. Of two that end in the same moment one may be forgotten.
func (i *InnerUnlocks) add(began, now time.Time) {
	before := i.spent(began)
	if s := i.latest.Load(); s != nil && s.until.After(began) {
		began = s.until
	}
	i.latest.Store(&spentTime{before + max(now.Sub(began), 0), now})
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

// minOwn is the least time of a call on the goroutine of an unlock's caller, and for how long the unlock then goes on: rueidis closes the
// connection when that time is exceeded.
const minOwn = time.Second

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
	if !mine || h.lossSoFar() == nil && (!l.isPatient() || wait < 2*minOwn || c.Calls.AnyLeft() || !c.Leases.Until(&h.tenure.Lease).After(over)) {
		return l.releaseFor(over, mine, nil)
	}
	if c.Calls.Start() { // an unlock works after Close, too; Close waits for all of it
		defer c.Calls.Ended()
	}
	first := l.unlockHere(over)
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
	by := newUnlocker()
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
func (l *Level) unlockHere(over time.Time) unlocking {
	by := newUnlocker()
	by.over = over
	timer := time.AfterFunc(time.Until(over), func() { close(by.left) })
	defer timer.Stop()
	return l.unlocking(by)
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
	results := make(chan []error)
	counted := c.Calls.Start() // an unlock works after Close, too
	go func() {                // ends with its calls, which no ctx of a caller ends; Close waits for it
		if counted {
			defer c.Calls.Ended()
		}
		errs := f()
		select {
		case results <- errs:
		case <-by.left:
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
	close(by.left)
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
