package rlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/tenure"
)

// How a MultiMutex waits, and in which order it takes its members. After each refusal it releases what it has and starts a new round.
// Rounds differ in how they start:
//
//   - Most first wait for the member that was refused, while holding nothing, and then ask for the rest.
//   - A gathering round asks for all members again without waiting.
//   - A climb takes the members one by one and waits for each, so it holds some locks while it waits.

const (
	gatherEvery  = 4                     // rounds, starting with the second
	climbEvery   = 8                     // rounds
	firstClimb   = 50 * time.Millisecond // how long the first climb may wait with locks held; doubles with each
	longestClimb = 5 * time.Second
)

// compete takes all members.
//
// Two callers that each got one of two locks, and were refused the other, could swap places forever. Climbs end that, because all
// callers climb in the same order. Gathering usually helps much earlier: callers that ask for all members again queue up at the first
// one that is taken. Gathering in every round would pass that lock around among them while the holder of another member waits for it.
func (a *MultiMutex) compete(who tenure.Caller) (*taken, error) {
	if a.invalid != nil {
		return nil, a.invalid
	}
	closing, done, err := a.begin()
	if err != nil {
		return nil, err
	}
	defer done()
	whole := who
	who.Persists = false // a member that went on in an outage would keep others
	s, hold := a.newTaken(who.Parent(), closing), firstClimb
	var pause outagePause
	var unanswered error // of the last round; nil: it was answered
	returns := false
	defer func() {
		if !returns { // a member or its Trace panicked
			s.leave(who)
		}
	}()
	began := time.Now()
	refused, err := a.take(s, who, nil)
	for round := 1; err != nil; round++ {
		lost, silent := false, wasSilent(began, len(a.members))
		switch loss := s.loss(who); {
		case loss == nil:
		case loss.Reason == LostClosed:
			refused, err = nil, a.fail(ErrClosed)
		case refused == nil: // the loss kept the next member from being asked
			lost, err = silent, loss
		}
		if not := s.inItsOwnWay(err); not != nil {
			refused, err = nil, a.fail(fmt.Errorf("%q waits for itself: it is given by two Clients of one Redis (give it once)", not.Name))
		}
		s.leave(who)
		outage := whole.Persists && refused == nil && (lost || isOutage(err, silent))
		switch {
		case outage && pause.wait(whole, a.shut()):
			unanswered = err
		case outage, unanswered != nil && IsBusy(err) && whole.Persists && !whole.GoesOn(): // the last round had no time for an answer
			returns = true
			return nil, notAcquired(whole.Ctx, a.name, whole.Began, cmp.Or(unanswered, err))
		case refused == nil || who.Once || calls.IsClosed(who.Stopped()):
			returns = true
			return nil, err
		case who.Ctx.Err() != nil || !who.Wait.IsZero() && !time.Now().Before(who.Wait): // since the refusal, which waited for less
			returns = true
			e := notAcquired(who.Ctx, refused.name, who.Began)
			e.sameHolder(err)
			return nil, e
		}
		switch {
		case outage:
		case errors.Is(err, ErrUnreachable):
			who, unanswered = who.Answered(), err
		default:
			who, unanswered = who.Answered(), nil
		}
		s, began = a.newTaken(who.Parent(), closing), time.Now()
		switch {
		case outage:
			refused, err = a.take(s, who, nil)
		case round%climbEvery == 0:
			refused, err = a.climb(s, who, hold)
			hold = min(2*hold, longestClimb)
		case round%gatherEvery == 2:
			refused, err = a.take(s, who, nil)
		default:
			has := refused
			if refused, err = nil, s.add(has, who); err == nil {
				refused, err = a.take(s, who, has)
			}
		}
	}
	returns = true
	s.unwatch()
	for _, l := range s.levels {
		l.TakenTogether()
	}
	return s, nil
}

// shut is closed when the first Client, if there is one, takes no more Locks.
func (a *MultiMutex) shut() <-chan struct{} {
	if len(a.clients) == 0 {
		return nil
	}
	return a.clients[0].Shut
}

// begin registers a Lock with all Clients, so that their Close waits for it. closing is cancelled when any of them is closed, even if
// the Lock is busy with another. done undoes both.
func (a *MultiMutex) begin() (closing context.Context, done func(), err error) {
	for i, c := range a.clients {
		if !c.Calls.Start() {
			for _, c := range a.clients[:i] {
				c.Calls.Ended()
			}
			return nil, nil, a.fail(ErrClosed)
		}
	}
	counted := func() {
		for _, c := range a.clients {
			c.Calls.Ended()
		}
	}
	if len(a.clients) == 1 && !slices.ContainsFunc(a.members, func(m *member) bool { return m.about == nil }) {
		return context.Background(), counted, nil // the Client itself ends each call
	}
	closing, end := context.WithCancelCause(context.Background())
	over := make(chan struct{})
	for _, c := range a.clients {
		c.Calls.Go(func() { // ends with the Lock, or with Close, which waits for it
			select {
			case <-c.Calls.Done():
				end(&LostError{Name: a.name, Reason: LostClosed, Since: time.Now(), text: "client closed"})
			case <-over:
			}
		})
	}
	return closing, func() {
		close(over)
		end(nil)
		counted()
	}, nil
}

// take adds all members except has, if given, without waiting. refused is a member that another owner holds. After a refusal or an
// error the section may have some of the members.
func (a *MultiMutex) take(s *taken, who tenure.Caller, has *member) (refused *member, err error) {
	var again []*member
	parts, err := a.partsNow(who)
	if err != nil {
		return nil, err
	}
	for _, part := range parts {
		var rest []*member
		for _, m := range part {
			switch {
			case m == has:
			case m.about != nil && m.about.LevelIn(who.Ctx) != nil:
				again = append(again, m)
			default:
				rest = append(rest, m)
			}
		}
		if refused, err = s.takePart(rest, who); err != nil {
			return refused, err
		}
	}
	return s.takeEach(append(again, a.again...), who)
}

// climb adds all members one by one, and waits for each. From the first member on it has the given time, but no more than half the
// maximum hold time of any member it has: the rest is for the section.
func (a *MultiMutex) climb(s *taken, who tenure.Caller, within time.Duration) (refused *member, err error) {
	step := who
	step.Climbs = true
	for _, m := range slices.Concat(a.members, a.again) {
		if err := s.add(m, step); err != nil {
			if s.loss(who) != nil { // of another member, while waiting: the caller has no lock yet, so for it this is a refusal
				return m.leading(), notAcquired(who.Ctx, m.name, who.Began)
			}
			return s.refused(m, err), err
		}
		end := time.Now().Add(within)
		if most := m.longest(); most > 0 {
			end = calls.Earlier(end, time.Now().Add(most/2))
		}
		step.Wait = calls.Earlier(step.Wait, end)
		step.Limit = calls.Earlier(step.Wait.Add(m.attempt()), who.Limit)
	}
	return nil, nil
}
