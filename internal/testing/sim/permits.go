package sim

import (
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/go-rlock/rlock/rlock"
)

// expiring is the oracle of a semaphore whose permits expire. It sees the server's state after each script, so it
// knows which permits exist at each instant.
type expiring struct {
	inLine
	n       int64 // all of them, at first
	refuses bool  // the server sometimes does: a refused call is not repeated, and permits that it was to give back end with their leases

	// mu guards the fields below.
	known    bool  // it has been set
	free     int64 // in the server
	ends     map[string]time.Time
	slots    map[string]int
	issued   map[string]*issue // by the id of the permit: those of the server or a section
	calls    int               // Acquires, so far
	sections []*permit         // whose Release has not returned
	forgot   time.Time         // when the server may last have forgotten permits
}

// issue is a permit that the server has given.
type issue struct {
	process *process
	calls   int       // Acquires called by then
	ends    time.Time // when it expires at the latest, unless it is renewed
	section *permit   // its section; nil: no Acquire has returned it, or its Release has
	orphan  time.Time // since when it is nobody's; zero: it may be somebody's
	updated bool      // its lease may have been changed by its id
	told    bool
}

// late is how long after the expiry of permits a waiter may look, see lua/line.lua.
const late = 500 * time.Millisecond

func timeouts(name string) string { return "{" + name + "}:timeout" }

func slots(name string) string { return "rlock_sem_slots:{" + name + "}" }

func newExpiring(o *oracle) *expiring {
	plan := o.world.plan
	refuses := slices.ContainsFunc(plan.Faults, func(f Fault) bool { return f.What == OutOfMemory })
	e := &expiring{inLine: newInLine(o), n: o.name.Count, refuses: refuses, issued: make(map[string]*issue)}
	// A waiter asks when the next permit expires. By then that was renewed, maybe a third of the watchdog time
	// before.
	e.every, e.once = min(lookAgain, plan.Watchdog/2), int(o.name.Count)
	return e
}

// scores reads a sorted set.
func (n news) scores(key string) map[string]int64 {
	all, _ := n.do("zrange", key, "0", "-1", "withscores").([]any) // none
	scores := make(map[string]int64, len(all)/2)
	for i := 0; i+1 < len(all); i += 2 {
		id, _ := all[i].(string)
		text, _ := all[i+1].(string)
		score, err := strconv.ParseFloat(text, 64)
		if err != nil {
			continue // it will be missed
		}
		scores[id] = int64(score)
	}
	return scores
}

func (e *expiring) said(n news) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.asked(n)
	before, total := e.free, e.free+int64(len(e.ends))
	if e.known && !n.is && !e.lost {
		e.violation("the number of permits is gone")
	}
	e.known, e.free = n.is, n.value
	e.ends, e.slots = make(map[string]time.Time), make(map[string]int)
	for id, ms := range n.scores(timeouts(e.o.name.Text)) {
		e.ends[id] = time.UnixMilli(ms)
	}
	for id, slot := range n.scores(slots(e.o.name.Text)) {
		e.slots[id] = int(slot)
	}
	now := e.free + int64(len(e.ends))
	if e.free < 0 && e.free < before && now >= total {
		e.violation("%d permits are free", e.free)
	}
	for id, until := range e.ends {
		i := e.issued[id]
		if i == nil {
			i = &issue{process: e.o.world.owner(id), calls: e.calls}
			e.issued[id] = i
			if slot := e.slots[id]; int64(slot) >= now {
				e.violation("permit %s has slot %d, and there are %d permits", short(id), slot, now)
			}
		}
		i.ends = until
	}
	e.forget()
	e.weighSlots()
	e.weigh()
	e.serve(e.available())
}

// forget drops the permits that nobody has any more; mu is held.
func (e *expiring) forget() {
	maps.DeleteFunc(e.issued, func(id string, i *issue) bool {
		_, there := e.ends[id]
		return !there && i.section == nil
	})
}

// weigh compares the number of all permits with the number set, and the numbers added; mu is held.
func (e *expiring) weigh() {
	if !e.known || e.lost {
		return
	}
	total := e.free + int64(len(e.ends))
	if unsure := e.adds.unsure(); !isSum(total-e.n-e.adds.added, unsure) {
		e.violation("%d permits are free and %d held, of %d; what may have been added: %v", e.free, len(e.ends), e.n+e.adds.added, unsure)
		e.lost = true // reported
	}
}

// weighSlots checks that each permit has a slot, and no slot two; mu is held.
func (e *expiring) weighSlots() {
	of := make(map[int]string)
	for id, slot := range e.slots {
		if other, taken := of[slot]; taken {
			e.violation("permits %s and %s have slot %d", short(id), short(other), slot)
		}
		of[slot] = id
		if _, there := e.ends[id]; !there {
			e.violation("permit %s has slot %d, and is gone", short(id), slot)
		}
	}
	for id := range e.ends {
		if _, has := e.slots[id]; !has {
			e.violation("permit %s has no slot", short(id))
		}
	}
}

// available returns how many are free, including expired ones; mu is held.
func (e *expiring) available() int64 {
	n := e.free
	for id := range e.ends {
		if !e.has(id) {
			n++
		}
	}
	return n
}

// has reports whether a permit is in the server, and has not expired; mu is held. Its clock has milliseconds.
func (e *expiring) has(id string) bool {
	return e.ends[id].After(time.Now().Truncate(time.Millisecond))
}

func (e *expiring) forgotten() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lost, e.forgot = true, time.Now()
	for _, s := range e.sections {
		if s.excused.IsZero() {
			s.excused = e.forgot
		}
	}
}

func (e *expiring) look() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.serve(e.available()) // some may have expired
	e.lookAtWaits(e.available(), late+tick)
	w := e.o.world
	for _, s := range e.sections {
		if !s.isLive() {
			continue
		}
		since(&s.missing, !e.isThere(s))
		switch d := min(time.Since(s.missing), w.quiet()); {
		case s.missing.IsZero():
		case s.excused.IsZero():
			e.violation("the server does not have %v any more, and its ctx is not cancelled (G2)", s)
			s.excused = time.Now()
		case !s.fixed && d > w.plan.Watchdog/3+time.Second:
			e.violation("%v is not notified of its loss at %v (G2)", s, w.since(s.missing))
			s.fixed = true // reported
		}
	}
	for id, i := range e.issued {
		e.lookAtIssue(id, i)
	}
}

// lookAtIssue reports a permit that nobody has, or a process that has ended, if it exists too long; mu is held.
func (e *expiring) lookAtIssue(id string, i *issue) {
	w := e.o.world
	if i.told || i.process == nil || !e.has(id) {
		return
	}
	asks := i.section != nil
	for v := range e.waits {
		asks = asks || v.process == i.process && v.call <= i.calls
	}
	since(&i.orphan, !asks)
	w.mu.Lock()
	p := i.process
	over, ended := p.over, p.ended.Load()
	// Permits taken by an unanswered call are given back within the time for which such calls take, and the time of a
	// try.
	bound := p.longest + 6*time.Second
	if e.refuses || p.longest > min(w.plan.Watchdog, time.Minute) {
		bound += w.plan.Watchdog
	}
	disturbed := p.active > 0 || time.Since(p.faulted) < bound
	w.mu.Unlock()
	switch d := time.Since(i.orphan); {
	case ended && p.isDead() && !i.updated && i.ends.After(over.Add(w.plan.Watchdog+time.Second+w.reach())):
		i.told = true
		e.violation("permit %s of p%d, which died at %v, does not end before %v", short(id), p.number, w.since(over), w.since(i.ends))
	case !ended && !i.orphan.IsZero() && d > bound && !disturbed:
		i.told = true
		e.violation("the server has permit %s for %v, and p%d is not using it any more (G5)", short(id), d, p.number)
	}
}

// rest compares the permits at the end with the numbers set and added.
func (e *expiring) rest() {
	e.mu.Lock()
	defer e.mu.Unlock()
	ended := false
	for _, p := range e.o.world.all {
		ended = ended || p.ended.Load() || e.isVague(p)
	}
	for id := range e.ends {
		switch {
		case e.has(id):
			e.violation("permit %s is there after the end (G5)", short(id))
		case !ended && !e.lost && !e.refuses:
			e.violation("permit %s was not given back (G5)", short(id))
		}
	}
	if !e.known || e.lost {
		return
	}
	added, unsure := e.adds.settled(e.isVague)
	if total := e.free + int64(len(e.ends)); !isSum(total-e.n-added, unsure) {
		e.violation("in the end there are %d permits of %d; what may have been added: %v", total, e.n+added, unsure)
	}
}

func (e *expiring) isSet() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.known
}

// pick draws a permit that somebody has.
func (e *expiring) pick(r *rand.Rand) (s *permit, id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.sections) == 0 {
		return nil, ""
	}
	s = e.sections[r.IntN(len(e.sections))]
	return s, s.ids[r.IntN(len(s.ids))]
}

// ended notes that a process is about to end a permit, or to change its lease. A holder in the same process loses its
// ctx before that.
func (e *expiring) ended(by *process, s *permit, id string, update bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.happens(len(e.waits))
	s.ended = true
	if i := e.issued[id]; i != nil && update {
		i.updated = true
	}
	switch {
	case by != s.process:
		if s.excused.IsZero() {
			s.excused = time.Now()
		}
	case update:
		s.fixed = true
	}
}

// endedBy notes that this call has returned.
func (e *expiring) endedBy(by *process, id, what string, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.happens(len(e.waits))
	switch {
	case by.isDead() || !e.has(id):
	case errors.Is(err, rlock.ErrNotHeld):
		e.violation("p%d: %s of permit %s, which the server has: %v", by.number, what, short(id), err)
	case err == nil && what == "Release":
		e.violation("p%d has released permit %s, which the server has", by.number, short(id))
	}
}
