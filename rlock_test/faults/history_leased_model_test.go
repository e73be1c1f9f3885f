package faults

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Further events for the model of expiring permits. A take without a give-back has the last time at which its holder
// was inside: its permits were held until then.
const (
	leasedEnds countKind = "may end"        // a permit may expire from now on
	leasedOver countKind = "has ended"      // a permit has ended by now
	leasedHas  countKind = "has it still"   // the holder is inside, and would know of the permit's end by somebody else
	leasedUsed countKind = "id used twice"  // two takes must not share an id
	leasedOdd  countKind = "more than fits" // more permits than there can be
)

const (
	leasedMost  = 16                    // permits held at a time
	leasedSlack = 20 * time.Millisecond // between the clocks of Redis and of the processes, while one permit lasts
)

// leasedEvent is an operation of the model: a call, or an event that follows from one.
type leasedEvent struct {
	countEntry

	ids, slots [leasedMost]int32 // of the permits: the ids are numbers from 1 on, in the order of the takes
	unknown    int64             // permits seen by a look, but returned by no take
}

// leasedState is a semaphore with expiring permits.
type leasedState struct {
	total int64
	held  [leasedMost]leasedPermit // in the order of their ids, the empty ones last

	loose   int64            // permits that failed takes may have, until given back or expired
	owed    permChanges      // of total: AddPermits that will run, each once
	perhaps permChanges      // AddPermits that may run, each once
	sets    [leasedMost]int8 // SetPermits that may run, by their numbers
}

type leasedPermit struct {
	id, slot int32
	ends     bool // it may end by itself
}

// leasedModel is a semaphore with expiring permits. A take needs free permits, and gets numbers that no held permit
// has. A permit ends when it is given back, by its holder or by its id, which succeeds once; or when its lease expires.
// As long as its holder was inside, it can only have been ended by somebody else. A failed call acts once before the
// next peace, or not at all, as in permModel.
var leasedModel = countModel(leasedState.arrive, leasedState.step)

func (s leasedState) arrive() (next []leasedState) {
	for i := range s.owed {
		if s.owed[i] > 0 {
			after := s
			after.owed[i]--
			after.total += int64(i - countMost)
			next = append(next, after)
		}
		if s.perhaps[i] > 0 {
			after := s
			after.perhaps[i]--
			after.total += int64(i - countMost)
			next = append(next, after)
		}
	}
	for n := range s.sets {
		if s.sets[n] > 0 {
			after := s
			after.sets[n]--
			after.total = int64(n)
			next = append(next, after)
		}
	}
	for _, p := range s.held {
		if p.ends {
			next = append(next, s.without(p.id))
		}
	}
	return next
}

func (s leasedState) step(e leasedEvent) (leasedState, bool) {
	if e.Outcome != countDone {
		return s.doubt(e.countEntry), true
	}
	switch e.Kind {
	case leasedTake:
		return s.take(e)
	case leasedGive:
		if e.Got == 0 {
			return s, true // it was lost; other events give the time
		}
		return s.without(e.ids[:]...), s.has(e)
	case leasedAway:
		if e.Got == 0 {
			return s, s.hasNone(e)
		}
		return s.without(e.ids[:]...), s.has(e)
	case leasedLease:
		if e.Got == 0 {
			return s, s.hasNone(e)
		}
		return s, s.has(e)
	case leasedSet:
		s.total = e.N
		return s, true
	case permAdd:
		s.total += e.N
		return s, true
	case leasedLook:
		n := s.number()
		return s, s.has(e) && numberOf(e.ids) == n && e.unknown <= s.loose && e.Got+n+e.unknown == s.total
	case leasedEnds:
		for i := range s.held {
			s.held[i].ends = s.held[i].ends || s.held[i].id > 0 && slices.Contains(e.ids[:], s.held[i].id)
		}
		return s, true
	case leasedOver:
		return s, s.hasNone(e)
	case leasedHas:
		return s, s.has(e)
	case countPeace:
		ok := s.owed == permChanges{} && s.number() == 0
		return leasedState{total: s.total}, ok
	case permAcquire, permDrain, permSet, permLook, latchSet, latchDown, latchDelete, latchLook, latchAwait: // of others
	case leasedUsed, leasedOdd: // never
	}
	return s, false
}

func numberOf(ids [leasedMost]int32) (n int64) {
	for _, id := range ids {
		if id > 0 {
			n++
		}
	}
	return n
}

func (s leasedState) take(e leasedEvent) (leasedState, bool) {
	n := numberOf(e.ids)
	ok := n == e.N && s.total-s.number() >= n && s.number()+n <= leasedMost
	for i := range n {
		for _, p := range s.held {
			ok = ok && (p.id == 0 || p.slot != e.slots[i])
		}
		ok = ok && e.slots[i] >= 0 && int64(e.slots[i]) < s.total && !slices.Contains(e.slots[:i], e.slots[i])
	}
	if !ok {
		return s, false
	}
	at := s.number()
	for i := range n {
		s.held[at+i] = leasedPermit{id: e.ids[i], slot: e.slots[i], ends: e.Last == 0}
	}
	return s.sorted(), true
}

// doubt is the state with the given call still under way. Events report permits that may have ended since.
func (s leasedState) doubt(e countEntry) leasedState {
	switch {
	case e.Kind == leasedTake:
		s.loose += e.N
	case e.Kind == leasedSet:
		s.sets[e.N]++
	case e.Kind == permAdd && e.Outcome == countKilled:
		s.perhaps[countMost+e.N]++
	case e.Kind == permAdd:
		s.owed[countMost+e.N]++
	}
	return s
}

func (s leasedState) number() (n int64) {
	for _, p := range s.held {
		if p.id > 0 {
			n++
		}
	}
	return n
}

// has reports whether all permits named by e are held.
func (s leasedState) has(e leasedEvent) bool {
	for _, id := range e.ids {
		if id > 0 && !s.holds(id) {
			return false
		}
	}
	return true
}

// hasNone reports whether no permit named by e is held.
func (s leasedState) hasNone(e leasedEvent) bool {
	return !slices.ContainsFunc(e.ids[:], func(id int32) bool { return id > 0 && s.holds(id) })
}

func (s leasedState) holds(id int32) bool {
	return slices.ContainsFunc(s.held[:], func(p leasedPermit) bool { return p.id == id })
}

func (s leasedState) without(ids ...int32) leasedState {
	for i, p := range s.held {
		if p.id > 0 && slices.Contains(ids, p.id) {
			s.held[i] = leasedPermit{}
		}
	}
	return s.sorted()
}

// sorted is the state with its permits in order, so that equal states compare equal.
func (s leasedState) sorted() leasedState {
	order := func(p leasedPermit) int32 {
		if p.id == 0 {
			return math.MaxInt32
		}
		return p.id
	}
	slices.SortFunc(s.held[:], func(a, b leasedPermit) int { return cmp.Compare(order(a), order(b)) })
	return s
}

// leasedHistory is the model's input: the calls, and the events that follow from them. told bounds the time after which
// the holder of a renewed permit knows of its end.
func leasedHistory(entries []countEntry, told time.Duration) []leasedEvent {
	numbers := make(map[string]int32)
	used := make(map[string]bool)                                 // ids used twice
	given, longer := make(map[string]bool), make(map[string]bool) // permits given back by their holders, and permits with a changed lease
	away := make(map[string]int64)                                // when somebody else gave them back
	for _, e := range entries {
		for id := range strings.FieldsSeq(e.IDs) {
			switch {
			case e.Kind == leasedTake && e.Outcome == countDone:
				used[id] = numbers[id] > 0
				numbers[id] = int32(len(numbers) + 1)
			case e.Kind == leasedGive && e.Outcome == countDone && e.Got == 1:
				given[id] = true
			case e.Kind == leasedAway && e.Outcome == countDone && e.Got == 1:
				away[id] = e.Return
			case e.Kind == leasedLease && (e.Outcome != countDone || e.Got == 1):
				longer[id] = true
			}
		}
	}
	var all []leasedEvent
	for _, e := range entries {
		event := leasedEvent{countEntry: e}
		known := 0
		for id := range strings.FieldsSeq(e.IDs) {
			switch {
			case numbers[id] == 0:
				event.unknown++
			case known == leasedMost || used[id]:
				event.Kind = map[bool]countKind{true: leasedUsed, false: leasedOdd}[used[id]]
			default:
				event.ids[known] = numbers[id]
				known++
			}
		}
		for i, slot := range strings.Fields(e.Slots) {
			n, _ := strconv.ParseInt(slot, 10, 32)
			event.slots[min(i, leasedMost-1)] = int32(n)
		}
		all = append(all, event)
		follows := func(kind countKind, at int64, ids [leasedMost]int32) {
			all = append(all, leasedEvent{countEntry: countEntry{
				Kind: kind, Name: e.Name, Call: at, Return: at, Worker: e.Worker, IDs: e.IDs,
			}, ids: ids})
		}
		switch {
		case e.Kind == leasedTake && e.Outcome == countDone:
			if ids := strings.Fields(e.IDs); e.Last > 0 && slices.ContainsFunc(ids, func(id string) bool { return !given[id] }) {
				follows(leasedEnds, e.Last, event.ids)
			}
			for i, id := range strings.Fields(e.IDs) {
				one := [leasedMost]int32{event.ids[min(i, leasedMost-1)]}
				if e.Lease > 0 && !longer[id] {
					follows(leasedOver, e.Return+int64(e.Lease+leasedSlack), one)
				}
				if at := away[id]; at > 0 && e.Last > at+int64(told) {
					follows(leasedHas, e.Last, one)
				}
			}
		case e.Kind == leasedAway && e.Outcome != countDone:
			follows(leasedEnds, e.Call, event.ids)
		case e.Kind == leasedLease && (e.Outcome != countDone || e.Got == 1):
			follows(leasedEnds, e.Call+int64(e.Lease), event.ids)
		}
	}
	return all
}
