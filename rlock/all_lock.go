package rlock

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/engine"
)

// How a Lock of several waits, and in which order it takes them.

const (
	gatherEvery  = 4                     // rounds, the second one first, it asks for all again
	climbEvery   = 8                     // rounds; in the others nothing is held while it waits
	firstClimb   = 50 * time.Millisecond // for which it may wait with what it has; doubles
	longestClimb = 5 * time.Second
)

// compete takes all members.
//
// Two that have one of two locks each, and are refused for the other, could change places for ever. A climb ends that: it is in
// one order for all. Long before, those that want the same locks gather in one line: to ask for all again leads to that of the
// first that is taken. Not each time, or they would pass that lock on among them while somebody who has the other one waits for it.
func (a *MultiMutex) compete(who engine.Caller) (*taken, error) {
	if a.invalid != nil {
		return nil, a.invalid
	}
	closing, done, err := a.begin()
	if err != nil {
		return nil, err
	}
	defer done()
	s, hold := a.newTaken(who.Parent(), closing), firstClimb
	returns := false
	defer func() {
		if !returns { // a member panics, or its Trace
			s.leave(who)
		}
	}()
	refused, err := a.take(s, who, nil)
	for round := 1; err != nil; round++ {
		switch loss := s.loss(who); {
		case loss == nil:
		case loss.Reason == LostClosed:
			refused, err = nil, a.fail(ErrClosed)
		case refused == nil: // for which the next one could not be asked any more
			err = loss
		}
		if not := s.inItsOwnWay(err); not != nil {
			refused, err = nil, a.fail(fmt.Errorf("%q waits for itself: it is given by two Clients of one Redis (give it once)", not.Name))
		}
		s.leave(who)
		switch {
		case refused == nil || !canWait(who):
			returns = true
			return nil, err
		case who.Ctx.Err() != nil: // since it was refused
			returns = true
			e := notAcquired(who.Ctx, refused.name, who.Began)
			e.sameHolder(err)
			return nil, e
		}
		s = a.newTaken(who.Parent(), closing)
		switch {
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

// begin counts a Lock with the Clients, whose Close waits for it. The ctx ends when one of them is closed, also if the Lock has to do with
// another one just then. done ends both.
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
		return context.Background(), counted, nil // each of its calls ends with the Client
	}
	closing, end := context.WithCancelCause(context.Background())
	over := make(chan struct{})
	for _, c := range a.clients {
		c.Calls.Go(func() { // ends with the Lock, or when the Client is closed, which waits for it
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

// canWait reports whether there is time for another try.
func canWait(c engine.Caller) bool {
	return !c.Once && !calls.IsClosed(c.Stopped()) && (c.Wait.IsZero() || time.Now().Before(c.Wait))
}

// take adds all members but one that the section has. It does not wait. refused is a member that another owner holds; then, as after
// any error, the section may have some of the others.
func (a *MultiMutex) take(s *taken, who engine.Caller, has *member) (refused *member, err error) {
	var again []*member
	for _, part := range a.parts {
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

// climb adds all members, one after the other, and waits for each. With the first one it has to be done before that time is over, and
// before half of the time has passed for which one that it has is held at most: the rest is for the section.
func (a *MultiMutex) climb(s *taken, who engine.Caller, within time.Duration) (refused *member, err error) {
	step := who
	step.Climbs = true
	for _, m := range slices.Concat(a.members, a.again) {
		if err := s.add(m, step); err != nil {
			if s.loss(who) != nil { // while it waited: that is nothing to a caller who has none of them
				return m.leading(), notAcquired(who.Ctx, m.name, who.Began)
			}
			return s.refused(m, err), err
		}
		end := time.Now().Add(within)
		if most := m.longest(); most > 0 {
			end = calls.Earlier(end, time.Now().Add(most/2))
		}
		if step.Wait.IsZero() || end.Before(step.Wait) {
			step.Wait = end
		}
		step.Limit = step.Wait.Add(m.attempt())
	}
	return nil, nil
}
