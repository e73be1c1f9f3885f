package faults

import (
	"fmt"
	"math"
	"time"

	"github.com/anishathalye/porcupine"
)

// countKind is a call of a semaphore or a latch.
type countKind string

const (
	permAcquire countKind = "acquire" // Acquire and TryAcquire
	permAdd     countKind = "add"     // Release, and AddPermits, which may be negative
	permDrain   countKind = "drain"
	permSet     countKind = "try set permits"
	permLook    countKind = "available"

	latchSet    countKind = "try set count"
	latchDown   countKind = "count down"
	latchDelete countKind = "delete"
	latchLook   countKind = "count"
	latchAwait  countKind = "await"

	// For expiring permits; AddPermits is permAdd.
	leasedTake  countKind = "take"        // Acquire and TryAcquire of N permits, with that Lease: IDs and Slots
	leasedGive  countKind = "give"        // Release of all permits of a take, by IDs
	leasedAway  countKind = "take away"   // Release of one by its id
	leasedLease countKind = "lease"       // UpdateLease of one
	leasedSet   countKind = "set permits" // of all, N
	leasedLook  countKind = "look"        // IDs are the held permits, Got the number of free ones

	// countPeace is a moment at which all callers have returned and all background work has ended.
	countPeace countKind = "peace"
)

// countOutcome is the known outcome of a finished call.
type countOutcome string

const (
	countDone   countOutcome = ""
	countFailed countOutcome = "failed" // the call returned an error: see docs/internals/testing.md for its possible effects
	countKilled countOutcome = "killed" // the call failed or did not return, and its process was killed before the next peace
)

// countEntry is one call. If done, it took effect between Call and Return; otherwise between Call and the next peace.
type countEntry struct {
	Kind         countKind
	Name         string
	N            int64 // permits, or the count to set
	Got          int64 // its result; 1 stands for true
	Outcome      countOutcome
	Call, Return int64
	Worker       string

	// Of expiring permits, separated by spaces.
	IDs, Slots string
	Lease      time.Duration // 0: renewed
	Last       int64         // last time its holder was inside; 0: never
}

func (e countEntry) String() string {
	text := fmt.Sprintf("%s %s: %s %d -> %d %s", e.Name, e.Worker, e.Kind, e.N, e.Got, e.Outcome)
	if e.IDs != "" {
		text += " of " + e.IDs
	}
	return text
}

func (e countEntry) of() string { return e.Name }

// when is the interval in which the call took effect. An unfinished call exists from its Call on: the model lets it act
// later.
func (e countEntry) when() (from, to int64) {
	if e.Outcome != countDone {
		return e.Call, e.Call
	}
	return e.Call, e.Return
}

// countInput is one operation of a model.
type countInput interface {
	fmt.Stringer
	of() string // the name of the counter
	when() (from, to int64)
}

// countModel is the model of a counter with several possible states: calls without an answer may act at any moment.
// arrive returns the states that a state can reach by one such call; step is the step of a model.
func countModel[S comparable, E countInput](arrive func(S) []S, step func(S, E) (S, bool)) porcupine.Model {
	type states map[S]struct{}
	return porcupine.Model{
		Partition: func(all []porcupine.Operation) [][]porcupine.Operation {
			byName := make(map[string][]porcupine.Operation)
			for _, op := range all {
				name := op.Input.(countInput).of()
				byName[name] = append(byName[name], op)
			}
			var parts [][]porcupine.Operation
			for _, part := range byName {
				parts = append(parts, part)
			}
			return parts
		},
		Init: func() any { return states{*new(S): {}} },
		Step: func(state, input, _ any) (bool, any) {
			var reached []S
			seen, next := make(states), make(states)
			reach := func(s S) {
				if _, before := seen[s]; !before {
					seen[s] = struct{}{}
					reached = append(reached, s)
				}
			}
			for s := range state.(states) {
				reach(s)
			}
			for i := 0; i < len(reached); i++ {
				for _, s := range arrive(reached[i]) {
					reach(s)
				}
				if s, ok := step(reached[i], input.(E)); ok {
					next[s] = struct{}{}
				}
			}
			return len(next) > 0, next
		},
		Equal: func(a, b any) bool {
			one, other := a.(states), b.(states)
			for s := range one {
				if _, ok := other[s]; !ok {
					return false
				}
			}
			return len(one) == len(other)
		},
		DescribeOperation: func(input, _ any) string { return input.(countInput).String() },
		DescribeState:     func(state any) string { return fmt.Sprintf("%+v", state) },
	}
}

// countMost is the highest number of permits in a call without an answer, and the highest count of a latch.
const countMost = 3

// permState is a semaphore. Its free permits do not count those taken by failed calls.
type permState struct {
	set  bool
	free int64

	owed    permChanges         // will run, each once
	perhaps permChanges         // may run, each once, whatever is free
	takes   [countMost + 1]int8 // Acquires that may run, each once, by their numbers
	maySet  int64               // a TrySetPermits to this number may run
	loose   int64               // permits that failed calls may have taken and must still give back
}

// permChanges has the number of changes by each amount, from -countMost to countMost.
type permChanges [2*countMost + 1]int8

// permModel is a semaphore. A successful call takes or gives back once. So does a failed Release or AddPermits, before
// the next peace. A failed Acquire or Drain may have permits for a while, and has none at peace: it lowers the number
// that others see, but never adds a permit.
var permModel = countModel(permState.arrive, permState.step)

func (s permState) arrive() (next []permState) {
	for i := range s.owed {
		n := int64(i - countMost)
		if s.owed[i] > 0 {
			after := s.plus(n)
			after.owed[i]--
			next = append(next, after)
		}
		if s.perhaps[i] > 0 {
			after := s.plus(n)
			after.perhaps[i]--
			next = append(next, after)
		}
	}
	for n := range s.takes {
		if s.takes[n] > 0 && s.free >= int64(n) {
			after := s.plus(-int64(n))
			after.takes[n]--
			next = append(next, after)
		}
	}
	if s.maySet > 0 && !s.set {
		after := s.plus(s.maySet)
		after.maySet = 0
		next = append(next, after)
	}
	return next
}

func (s permState) plus(n int64) permState {
	s.set, s.free = true, s.free+n
	return s
}

func (s permState) step(e countEntry) (permState, bool) {
	if e.Outcome != countDone {
		return s.doubt(e), true
	}
	switch e.Kind {
	case permAcquire:
		return s.plus(-e.N), s.free >= e.N
	case permAdd:
		return s.plus(e.N), true
	case permDrain:
		after := s
		after.free -= e.Got
		return after, s.shows(e.Got, 0)
	case permSet:
		if e.Got == 1 {
			return s.plus(e.N), !s.set
		}
		return s, s.set
	case permLook:
		return s, s.shows(e.Got, math.MinInt64)
	case countPeace:
		return permState{set: s.set, free: s.free}, s.owed == permChanges{}
	case latchSet, latchDown, latchDelete, latchLook, latchAwait: // of latches
	case leasedTake, leasedGive, leasedAway, leasedLease, leasedSet, leasedLook, leasedEnds, leasedOver, leasedHas, leasedUsed, leasedOdd:
	}
	return s, false
}

// shows reports whether got could be the number of free permits, or least if there are fewer.
func (s permState) shows(got, least int64) bool {
	return max(s.free-s.loose, least) <= got && got <= max(s.free, least)
}

// doubt is the state with the given call still under way.
func (s permState) doubt(e countEntry) permState {
	killed := e.Outcome == countKilled
	switch {
	case e.Kind == permAcquire:
		s.loose += e.N
		if killed {
			s.takes[e.N]++
		}
	case e.Kind == permAdd && killed:
		s.perhaps[countMost+e.N]++
	case e.Kind == permAdd:
		s.owed[countMost+e.N]++
	case e.Kind == permDrain:
		s.loose += 1 << 32
	case e.Kind == permSet:
		s.maySet = e.N
	}
	return s
}

// latchState is a latch.
type latchState struct {
	set   bool
	count int64

	owed    int8                // CountDowns that will run, each once
	perhaps int8                // CountDowns that may run, each once
	sets    [countMost + 1]int8 // TrySetCounts that may run, by their counts
	deletes int8                // Deletes that may run
}

// latchModel is a latch. A CountDown counts once; a failed one does so before the next peace. A failed TrySetCount may
// set the count, and a failed Delete may run. Await needs a moment without a count.
var latchModel = countModel(latchState.arrive, latchState.step)

func (s latchState) arrive() (next []latchState) {
	and := func(after latchState) { next = append(next, after) }
	if s.owed > 0 {
		after := s.down()
		after.owed--
		and(after)
	}
	if s.perhaps > 0 {
		after := s.down()
		after.perhaps--
		and(after)
	}
	for n := range s.sets {
		if s.sets[n] > 0 && !s.set {
			after := s.to(int64(n))
			after.sets[n]--
			and(after)
		}
	}
	if s.set && s.deletes > 0 {
		after := s.open()
		after.deletes--
		and(after)
	}
	return next
}

func (s latchState) to(n int64) latchState {
	s.set, s.count = true, n
	return s
}

func (s latchState) open() latchState {
	s.set, s.count = false, 0
	return s
}

func (s latchState) down() latchState {
	if s.count--; s.count <= 0 {
		return s.open()
	}
	return s
}

func (s latchState) step(e countEntry) (latchState, bool) {
	if e.Outcome != countDone {
		return s.doubt(e), true
	}
	switch e.Kind {
	case latchSet:
		if e.Got == 1 {
			return s.to(e.N), !s.set
		}
		return s, s.set
	case latchDown:
		return s.down(), true
	case latchDelete:
		return s.open(), s.set == (e.Got == 1)
	case latchLook:
		return s, s.count == e.Got
	case latchAwait:
		return s, s.count == 0
	case countPeace:
		return latchState{set: s.set, count: s.count}, s.owed == 0
	case permAcquire, permAdd, permDrain, permSet, permLook: // of semaphores
	case leasedTake, leasedGive, leasedAway, leasedLease, leasedSet, leasedLook, leasedEnds, leasedOver, leasedHas, leasedUsed, leasedOdd:
	}
	return s, false
}

// doubt is the state with the given call still under way.
func (s latchState) doubt(e countEntry) latchState {
	killed := e.Outcome == countKilled
	switch {
	case e.Kind == latchSet:
		s.sets[e.N]++
	case e.Kind == latchDown && killed:
		s.perhaps++
	case e.Kind == latchDown:
		s.owed++
	case e.Kind == latchDelete:
		s.deletes++
	}
	return s
}

// countOperations converts calls to the checker's history.
func countOperations[E countInput](entries []E) []porcupine.Operation {
	ops := make([]porcupine.Operation, len(entries))
	for i, e := range entries {
		from, to := e.when()
		ops[i] = porcupine.Operation{ClientId: i, Input: e, Call: from, Return: to}
	}
	return ops
}

func countCheck[E countInput](model porcupine.Model, entries []E) porcupine.CheckResult {
	return countVerdict(model, countOperations(entries))
}

func countVerdict(model porcupine.Model, history []porcupine.Operation) porcupine.CheckResult {
	return porcupine.CheckOperationsTimeout(model, history, 2*time.Minute)
}
