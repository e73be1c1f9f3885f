package sim

import (
	"context"
	"encoding/hex"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
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

// permit is a section: the permits of one Acquire.
type permit struct {
	process *process
	ctx     context.Context
	ids     []string
	slots   []int
	began   time.Time
	fixed   bool      // it ends by itself
	ended   bool      // its permits were given back by their ids, or their leases changed
	excused time.Time // since when the server may not have it, and nobody could notice; zero: it has
	missing time.Time // since when the server does not have it; zero: it has
	over    bool      // its Release is called
	unwatch func() bool
}

func (s *permit) isLive() bool { return !s.over && s.ctx.Err() == nil && !s.process.isDead() }

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
	all, _ := n.read("zrange", key, "0", "-1", "withscores").([]any) // none
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
			i = &issue{process: e.o.world.process(n.client), calls: e.calls}
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

// isThere reports whether all permits of a section are; mu is held.
func (e *expiring) isThere(s *permit) bool {
	return !slices.ContainsFunc(s.ids, func(id string) bool { return !e.has(id) })
}

func (s *permit) String() string {
	var ids []string
	for _, id := range s.ids {
		ids = append(ids, short(id))
	}
	return "the holder of permit " + strings.Join(ids, ", ") + " in p" + strconv.Itoa(s.process.number)
}

// begins notes that an Acquire is called.
func (e *expiring) begins(p *process, n int64) *permitWait {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.calls++
	v := e.comes(p, n)
	v.call = e.calls
	e.serve(e.available())
	return v
}

// enter notes that it has returned, with s if there is no error.
func (e *expiring) enter(v *permitWait, s *permit) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.goes(v)
	defer func() { e.serve(e.available()) }()
	if s == nil {
		return
	}
	s.unwatch = func() bool { return true }
	for _, id := range s.ids {
		i := e.issued[id]
		if i == nil { // the server has it no more
			i = &issue{process: s.process}
			e.issued[id] = i
		}
		if i.section != nil {
			e.violation("two owners of a permit (G1): %v and %v", i.section, s)
		}
		i.section, i.orphan = s, time.Time{}
	}
	e.sections = append(e.sections, s)
	if !s.isLive() {
		return
	}
	if v.began.Before(e.forgot) && !e.isThere(s) {
		s.excused = e.forgot
	}
	if s.excused.IsZero() {
		for _, other := range e.sections {
			if other == s || !other.isLive() || !other.excused.IsZero() {
				continue
			}
			for _, slot := range s.slots {
				if slices.Contains(other.slots, slot) {
					e.violation("two owners of slot %d (G1): %v and %v", slot, other, s)
				}
			}
		}
		if !e.isThere(s) {
			e.violation("the server does not have %v when its Acquire returns (G1)", s)
		}
	}
	s.unwatch = context.AfterFunc(s.ctx, func() { e.isTold(s) })
}

// isTold is called at the instant when the ctx of a section ends before its Release.
func (e *expiring) isTold(s *permit) {
	e.mu.Lock()
	defer e.mu.Unlock()
	var loss *rlock.LostError
	if s.over || !s.excused.IsZero() || s.process.isDead() || !errors.As(context.Cause(s.ctx), &loss) || loss.Name != e.o.name.Text {
		return
	}
	if loss.Reason == rlock.LostExpired && !e.isThere(s) {
		e.violation("%v learns of the end of its lease at %v only when the server has dropped it (G2)", s, e.o.world.since(loss.Since))
	}
	w := e.o.world
	if (loss.Reason == rlock.LostExpired || loss.Reason == rlock.LostGone) && !s.fixed && !s.ended && w.quiet() > w.settle() {
		e.violation("%v is lost, and nothing disturbed it: %v", s, loss)
	}
}

// leave notes that the Release of a section is about to be called. It reports whether it may fail.
func (e *expiring) leave(s *permit) (excused bool) {
	s.unwatch()
	e.mu.Lock()
	defer e.mu.Unlock()
	s.over = true
	e.happens(len(e.waits))
	return s.fixed || s.ended || !s.excused.IsZero() || s.ctx.Err() != nil
}

// left notes that it has returned.
func (e *expiring) left(s *permit, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.happens(len(e.waits))
	e.sections = slices.DeleteFunc(e.sections, func(other *permit) bool { return other == s })
	for _, id := range s.ids {
		if i := e.issued[id]; i != nil {
			i.section = nil
		}
		if e.has(id) && err == nil {
			e.violation("the server still has %v after its Release returned", s)
		}
	}
	e.forget()
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

// process returns the process with that id, or nil.
func (w *world) process(client string) *process {
	at := slices.IndexFunc(w.all, func(p *process) bool { return p.locks[0].ID() == client })
	if at < 0 {
		return nil
	}
	return w.all[at]
}

// useExpiring takes some permits, works, and gives them back. It returns false if the process is over.
func (k *worker) useExpiring(outer context.Context, e *expiring) bool {
	p := part{oracle: e.o}
	sem := k.process.locks[0].PermitSemaphore(e.o.name.Text, k.options(&p)...)
	if !e.isSet() {
		e.called()
		ctx, cancel := k.bounded()
		_, err := sem.TrySetPermits(ctx, e.n)
		e.called()
		if err != nil {
			k.check(e.o, "TrySetPermits", err, ctx.Err() != nil)
		}
		cancel()
	}
	if e.isSet() && k.meddles() {
		k.meddle(e, sem)
	}
	n := int64(1)
	if k.chance(0.4) {
		n += k.r.Int64N(e.n)
	}
	ctx, end, wait, latest := k.patience(outer)
	defer end()
	v := e.begins(k.process, n)
	var section context.Context
	var held *rlock.Permit
	var err error
	if wait >= 0 {
		section, held, err = sem.TryAcquireN(ctx, int(n), wait)
	} else {
		section, held, err = sem.AcquireN(ctx, int(n))
	}
	if err != nil {
		e.enter(v, nil)
		k.returned(e.o, "Acquire", latest, sem.Name())
		k.check(e.o, "Acquire", err, !latest.IsZero() || ctx.Err() != nil || p.fixed)
		return outer.Err() == nil && !errors.Is(err, rlock.ErrClosed)
	}
	s := &permit{process: k.process, ctx: section, slots: held.Slots(), began: time.Now(), fixed: p.fixed}
	for _, text := range held.IDs() {
		id, _ := hex.DecodeString(text) // Redis has bytes
		s.ids = append(s.ids, string(id))
	}
	e.enter(v, s)
	k.returned(e.o, "Acquire", latest, sem.Name())
	e.o.counts(v.began)
	k.hold(section)
	k.release(e, s, held)
	return k.process.ctx.Err() == nil
}

func (k *worker) release(e *expiring, s *permit, held *rlock.Permit) {
	excused := e.leave(s)
	began := time.Now()
	err := held.Release()
	k.returned(e.o, "Release", began.Add(k.world().unlock()), e.o.name.Text)
	e.left(s, err)
	if err != nil {
		if !excused {
			k.check(e.o, "Release", err, s.ctx.Err() != nil)
		}
		return
	}
	w := k.world()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range s.ids {
		w.unlocked[id] = time.Now()
	}
}

// meddle changes the number of permits, or somebody's permits.
func (k *worker) meddle(e *expiring, sem *rlock.PermitSemaphore) {
	x := k.r.IntN(3)
	if x == 0 {
		k.addPermits(&e.inLine, sem.AddPermits)
		return
	}
	s, id := e.pick(k.r)
	if s == nil {
		return
	}
	ctx, cancel := k.bounded()
	defer cancel()
	e.ended(k.process, s, id, x == 2)
	what := "Release"
	var err error
	if x == 1 {
		err = sem.Release(ctx, hex.EncodeToString([]byte(id)))
	} else {
		what = "UpdateLease"
		err = sem.UpdateLease(ctx, hex.EncodeToString([]byte(id)), between(k.r, tick, 2*k.world().plan.Watchdog))
	}
	e.endedBy(k.process, id, what, err)
	if err != nil && !errors.Is(err, rlock.ErrNotHeld) {
		k.check(e.o, what, err, ctx.Err() != nil)
	}
}
