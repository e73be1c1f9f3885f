package engine

import (
	"context"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/tenure"
	"github.com/go-rlock/rlock/pubsub"
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

// newUnlocker is the unlock of the last level of a hold. waiters are those of its lock.
func newUnlocker(l *tenure.Level, waiters pubsub.Queue) *unlocker {
	u := &unlocker{one: [1]*tenure.Level{l}, first: [1]unlocking{{hold: l.Hold, tenure: l.Hold.Tenure, waiters: waiters}}}
	u.levels = u.one[:]
	return u
}

// Unlock closes the level, and ends the hold with the last one.
func Unlock(l *tenure.Level) error {
	switch closed, last := l.Close(); {
	case last:
		return traced(l, release)
	case closed:
		return traced(l, (*tenure.Level).Outlived)
	case l.IsDowngraded():
		return nil
	case l.IsExported():
		return l.Outlived()
	}
	return l.Lock.FailNotHeld(tenure.ErrUnlockedBefore)
}

// traced ends the section of a level, through its Trace if there is one.
func traced(l *tenure.Level, end func(*tenure.Level) error) error {
	if l.Released == nil {
		return end(l)
	}
	return l.Released(func() error { return end(l) })
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

// release takes a closed level off the count in Redis.
func release(l *tenure.Level) (err error) {
	h, began := l.Hold, time.Now()
	t := h.Tenure
	if t.Majority != nil {
		return releaseMajority(l, t.Majority)
	}
	waiters := t.Lock.Waiters()
	switch {
	case t.Lock.Passes && passOn(t, h, waiters, began):
		return nil
	case t.Lock.Kind.Shares:
		if left, err := h.LeaveOthers(); left {
			return err
		}
	}
	if h.LossSoFar() != nil && t.TryCallSlot() { // there is nothing to be sent
		return onlyError(newUnlocker(l, waiters).release())
	}
	defer func() { ChargeUnlockTime(l.Context, began, err != nil) }()
	return onlyError(newUnlocker(l, waiters).unlock(began.Add(unlockTime(l, began))))
}

// releaseMajority ends a majority's hold after its last level was closed.
func releaseMajority(l *tenure.Level, of tenure.Majority) (err error) {
	began := time.Now()
	defer func() { ChargeUnlockTime(l.Context, began, err != nil) }()
	// One silent server must not shorten the unlock.
	wait := UnlockTime(l.Lock.Client, &l.Inner, began, func() bool { return false })
	return of.Release(l, began.Add(wait))
}

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
	u := newUnlocker(last[0], last[0].Hold.Tenure.Lock.Waiters())
	u.levels = last
	return append(errs, u.unlock(began.Add(unlockTime(one, began)))...)
}

func unlockTime(l *tenure.Level, now time.Time) time.Duration {
	c := l.Lock.Client
	return UnlockTime(c, &l.Inner, now, func() bool { return c.Calls.IsSilent(l.Lock.Slot()) })
}

// unlock ends the holds of the closed levels. It returns at the end of its calls, when all levels are lost, or at over.
func (u *unlocker) unlock(over time.Time) []error {
	m := u.levels[0].Lock
	c := m.Client
	w := c.Calls.Begin(m.Slot(), u, c.Calls.Start()) // it works after Close, too
	if _, ended := awaitUnlock(u.levels, over, w.Ended, &w.Seat, &u.callers); ended || !w.Leave() {
		_ = w.Result()
		return u.errs
	}
	errs := make([]error, len(u.levels))
	for i, l := range u.levels {
		l.Hold.Tenure.CatchUp() // a hold whose lease has just ended is lost, even if not noticed yet
		if loss := l.LeaveUnlock(); loss != nil {
			errs[i] = l.Lock.FailNotHeld(loss)
		} else {
			errs[i] = l.Lock.FailPending(u.cause())
		}
	}
	return errs
}

// awaitUnlock waits for the result of an unlock, until all levels are lost or over has passed.
func awaitUnlock[T any](levels []*tenure.Level, over time.Time, results <-chan T, seat *calls.Seat, room *tenure.Callers) (
	result T, ended bool,
) {
	for extended := false; ; {
		now := time.Now()
		wait := untilLost(levels, now, over, seat.Told, room)
		if !extended && now.Sub(over) > calls.UnresponsiveAfter { // this process was stopped, or starved
			extended, over = true, now.Add(afterStop)
			continue
		}
		if wait <= 0 {
			break
		}
		select {
		case result = <-results:
			return result, true
		case <-seat.After(wait):
		case <-seat.Told:
		}
	}
	select {
	case result = <-results:
		return result, true
	default:
		return result, false
	}
}

// untilLost returns the time until all levels are lost, as far as known at now, or until over if that is earlier; it is positive until then.
// It may be shorter once told has a token. room is for the first of them, see tenure.Losing.
func untilLost(levels []*tenure.Level, now, over time.Time, told chan<- struct{}, room *tenure.Callers) (wait time.Duration) {
	last, kept := now, false
	for _, l := range levels {
		until, ok := l.Hold.Tenure.Losing(now, told, room)
		room = nil
		if !ok {
			continue
		}
		kept = true
		// In the second case it has ended without a notification: the Client is closed, or another unlock ends it.
		if !until.Before(over) || !until.After(last) {
			return over.Sub(now)
		}
		last = until
	}
	if !kept {
		return 0
	}
	return max(last.Sub(now), 1) // at its end, the next look tells whether they are lost
}

// Await waits for the results of a majority's release, until the hold is lost or over has passed; why then returns the reason for the
// delay. The hold has ended when Await returns, even if the release continues.
func Await(l *tenure.Level, results <-chan []error, over time.Time, why func() error) error {
	m := l.Lock
	errs, ended := awaitUnlock([]*tenure.Level{l}, over, results, &calls.Seat{Told: make(chan struct{}, 1)}, nil)
	if !ended {
		errs = []error{why()}
	}
	switch _, loss := l.Hold.Tenure.EndLost(l.Hold); {
	case loss != nil:
		return m.FailNotHeld(loss)
	case len(errs) > 0:
		return m.FailPending(errs[0])
	}
	return nil
}
