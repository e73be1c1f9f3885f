package sim

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-rlock/rlock/rlock"
)

// oracle knows who is inside one lock, and who waits for it.
type oracle struct {
	world   *world
	name    Name
	counter counter // nil: it is a lock, and the other fields are about that

	mu       sync.Mutex // guards the fields below
	sections map[*section]struct{}
	empty    time.Time            // since when nobody is inside; zero: somebody is
	expires  bool                 // the last one inside had a lease of its own, which may have ended before the unlock arrived, without a message
	free     time.Time            // since when the server has no key of it; zero: it has
	gate     time.Time            // since when it has no reader that may upgrade; zero: it has
	lost     time.Time            // when its server may last have forgotten holds
	doomed   map[string]time.Time // owners that it may have forgotten then, passed on until their process notices
	token    int64
	taken    time.Time // until when the lock stays taken after an unlock, see WithMinHold
	alone    time.Time // when somebody was last alone inside
	wanted   time.Time // or wanted to be
	tickets  map[*along]struct{}
	clean    time.Time // when an unlock returned after which nobody was inside; zero: somebody was, or the server forgot
	written  int       // how often somebody was alone inside

	entered int
	longest time.Duration // wait for it
}

// section is one Lock's hold on one lock.
type section struct {
	process *process
	ctx     context.Context
	owner   string
	holds   string // owner, as the world knows it
	shared  bool
	fixed   bool     // it, or one beside it, may end by itself
	within  *section // the reader that became this writer
	ticket  *along   // that was adopted; nil: none
	began   time.Time
	excused time.Time // when its server may have forgotten it; zero: it may not

	asked   <-chan struct{} // closed when somebody waits; nil: it does not want to know
	minHold time.Duration   // see WithMinHold
	unwatch func() bool     // its ctx
}

func (s *section) String() string {
	side := "holder"
	if s.shared {
		side = "reader"
	}
	return fmt.Sprintf("the %s of p%d (%s, since %v)", side, s.process.number, short(s.owner), s.process.world.since(s.began))
}

func (s *section) isLive() bool { return s.ctx.Err() == nil && !s.process.isDead() }

// enter notes that a Lock returned.
func (o *oracle) enter(s *section, asked time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.entered++
	o.longest = max(o.longest, time.Since(asked))
	s.began = time.Now()
	s.unwatch = func() bool { return true }
	o.world.entered(s)
	if !s.isLive() {
		return // lost, or its process was killed, as it returned
	}
	if o.name.Kind == Quorum {
		s.owner = o.ofMost(s.process)
		if s.owner == "" {
			o.world.violation(o.name.Text, "no majority of the servers has %v when its Lock returns (G1)", s)
		}
	}
	guessed := s.owner == ""
	if guessed && !s.shared {
		s.owner = o.ownerOf(s.process) // it may be another section's, if the server has forgotten this one
	}
	if !o.lost.IsZero() && asked.Before(o.lost) && (guessed || !o.isThere(s)) {
		s.excused = o.lost
		s.fixed = s.fixed || guessed // it may be there
	}
	if at, ok := o.doomed[s.owner]; ok && !o.isThere(s) {
		s.excused = at
	}
	if guessed && s.owner == "" && !s.shared && !o.lost.IsZero() && time.Since(o.lost) < o.world.plan.Watchdog/3+time.Second {
		s.excused = o.lost // it may have been passed on one of these
	}
	if !s.excused.IsZero() && s.owner != "" {
		o.doom(s.owner, s.excused)
	}
	if s.excused.IsZero() {
		for other := range o.sections {
			if other.isLive() && other.excused.IsZero() && (!other.shared || !s.shared) && other != s.within {
				o.world.violation(o.name.Text, "two owners (G1): %v and %v", other, s)
			}
		}
		if !o.isThere(s) {
			o.world.violation(o.name.Text, "the server does not have %v when its Lock returns (G1)", s)
		}
		o.heeds(s)
		if early := time.Until(o.taken); early > 2*time.Millisecond {
			o.world.violation(o.name.Text, "%v has the lock %v before the end of a WithMinHold", s, early)
		}
	}
	token, has := rlock.FencingToken(s.ctx, o.name.Text)
	if has != (o.name.Token && !s.shared) {
		o.world.violation(o.name.Text, "%v has a token: %v", s, has)
	}
	if has {
		if token <= o.token && (o.lost.IsZero() || time.Since(o.lost) > o.world.settle()) && s.excused.IsZero() {
			o.world.violation(o.name.Text, "token %d of %v after token %d", token, s, o.token)
		}
		o.token = token
	}
	if !s.shared {
		o.isAlone()
		o.written++
	}
	o.clean = time.Time{}
	o.sections[s] = struct{}{}
	o.empty, o.expires = time.Time{}, s.fixed
	o.world.uses(o)
	o.world.entered(s)
	s.unwatch = context.AfterFunc(s.ctx, func() { o.told(s) })
}

// isAlone notes that somebody is alone inside; o.mu is held.
func (o *oracle) isAlone() {
	if now := time.Now(); now.After(o.alone) {
		o.alone = now
	}
}

// unlocked notes that an unlock has returned, after which nobody was inside.
func (o *oracle) unlocked() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.sections) == 0 {
		o.clean = time.Now()
	}
}

// told is called at the instant when the ctx of a section ends before its unlock.
func (o *oracle) told(s *section) {
	o.mu.Lock()
	defer o.mu.Unlock()
	var loss *rlock.LostError
	if _, in := o.sections[s]; !in || !s.excused.IsZero() || s.process.isDead() || !errors.As(context.Cause(s.ctx), &loss) ||
		loss.Name != o.name.Text || s.owner != "" && loss.Owner != s.owner {
		return
	}
	if loss.Reason == rlock.LostExpired && !o.isThere(s) {
		o.world.violation(o.name.Text, "%v learns of the end of its lease at %v only when the server has dropped it (G2)", s, o.world.since(loss.Since))
	}
	if (loss.Reason == rlock.LostExpired || loss.Reason == rlock.LostGone) && !s.fixed && o.world.quiet() > o.world.settle() {
		o.world.violation(o.name.Text, "%v is lost, and nothing disturbed it: %v", s, loss)
	}
}

// leave notes that the unlock of a section is about to be called. It reports whether the server may have forgotten
// the hold.
func (o *oracle) leave(s *section) bool {
	s.unwatch()
	o.world.leaves(s)
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.sections, s)
	if !s.shared {
		o.isAlone()
	}
	if s.minHold > 0 && s.isLive() && s.excused.IsZero() && s.process.quiet() > o.world.plan.Watchdog {
		o.taken = s.began.Add(s.minHold)
	}
	return !s.excused.IsZero()
}

// share notes that a writer is about to become a reader. It reports whether the server may have forgotten the hold,
// and how many writers there were.
func (o *oracle) share(s *section) (excused bool, writers int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	s.shared, s.owner = true, ""
	o.isAlone()
	return !s.excused.IsZero(), o.written
}

// forgotten notes that the server forgot the lock.
func (o *oracle) forgotten() {
	if o.counter != nil {
		o.counter.forgotten()
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lost, o.token, o.taken, o.clean = time.Now(), 0, time.Time{}, time.Time{}
	for s := range o.sections {
		if s.excused.IsZero() {
			s.excused = o.lost
		}
	}
	for t := range o.tickets {
		t.forgot = true
	}
	for _, owner := range o.world.owners() {
		o.doom(owner, o.lost)
	}
}

// doom notes that the server may have forgotten an owner; o.mu is held.
func (o *oracle) doom(owner string, at time.Time) {
	if o.doomed == nil {
		o.doomed = make(map[string]time.Time)
	}
	if _, known := o.doomed[owner]; !known {
		o.doomed[owner] = at
	}
}

// isThere reports whether a majority of the servers has the hold; o.mu is held.
func (o *oracle) isThere(s *section) bool {
	if s.owner == "" {
		return true // not known by one name
	}
	if o.name.Kind != Quorum {
		return o.world.servers[0].has(o.name.Text, s.owner)
	}
	have := 0
	for i, server := range o.world.servers { // only the Client's part differs
		if server.has(o.name.Text, s.process.locks[i].ID()+s.owner[len(s.process.locks[i].ID()):]) {
			have++
		}
	}
	return have > len(o.world.servers)/2
}

// ownerOf returns a process's owner on the server, which cannot be a reader; empty: there is none. o.mu is held.
func (o *oracle) ownerOf(p *process) string {
	for _, field := range o.world.servers[0].fields(o.name.Text) {
		if strings.HasPrefix(field, p.locks[0].ID()) {
			return field
		}
	}
	return ""
}

// ofMost returns a process's owner on a majority of the servers, as the first of them has it; empty: there is none.
// o.mu is held.
func (o *oracle) ofMost(p *process) string {
	have := make(map[string]int)
	for i, server := range o.world.servers {
		for _, field := range server.fields(o.name.Text) {
			if tag, ok := strings.CutPrefix(field, p.locks[i].ID()); ok {
				if have[tag]++; have[tag] > len(o.world.servers)/2 {
					return p.locks[0].ID() + tag
				}
			}
		}
	}
	return ""
}

// look is called at each tick. It reports whether somebody is inside, or there is more to watch.
func (o *oracle) look() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	inside := false
	for s := range o.sections {
		if !s.shared {
			o.isAlone()
		}
		if !s.isLive() {
			delete(o.sections, s)
			continue
		}
		inside = true
		switch {
		case !s.excused.IsZero():
			if quiet := min(time.Since(s.excused), o.world.quiet()); !s.fixed && quiet > o.world.plan.Watchdog/3+time.Second {
				o.world.violation(o.name.Text, "%v is not notified of its loss at %v (G2)", s, o.world.since(s.excused))
				s.excused = time.Now()
			}
		case !o.isThere(s):
			o.world.violation(o.name.Text, "the server does not have %v any more, and its ctx is not cancelled (G2)", s)
			delete(o.sections, s)
		}
	}
	if o.isExported() {
		inside = true
		o.isAlone()
	}
	since(&o.empty, !inside)
	first := o.world.servers[0]
	since(&o.free, !inside && o.name.Kind != Quorum && !first.exists(o.name.Text))
	since(&o.gate, o.name.Kind == ReadWrite && !first.exists(gate(o.name.Text)))
	return inside || o.free.IsZero() && o.name.Kind != Quorum || o.gate.IsZero() && o.name.Kind == ReadWrite
}

// since notes the time at which a condition became true; zero: it is not.
func since(at *time.Time, is bool) {
	switch {
	case !is:
		*at = time.Time{}
	case at.IsZero():
		*at = time.Now()
	}
}

// gate returns the key of the lock held by readers that may upgrade.
func gate(name string) string { return "rlock_upgrade:{" + name + "}" }

// idle returns since when nobody is inside a lock, and since when the waiter could have it; zero: it could not.
// expires means that the last one inside may have ended with its lease.
func (o *oracle) idle(v *waiter) (empty, free time.Time, expires bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	free = o.free
	if v.gate && !free.IsZero() && (o.gate.IsZero() || o.gate.After(free)) {
		free = o.gate
	}
	return o.empty, free, o.expires
}

// unnoticed is how long rueidis may take a dead connection for alive.
const unnoticed = 15 * time.Second

// waiter is a call that waits for locks.
type waiter struct {
	process *process
	locks   []*oracle
	shared  []bool // of which it wants a share
	gate    bool   // it waits for other readers that may upgrade, too
	began   time.Time
	told    bool // that it sleeps has been reported

	// The rest is about a waiter for one lock; world.mu guards it.
	here   int              // waiters of its process that came before it
	passed map[*process]int // sections of others meanwhile
	unfair string           // who overtook it; reported if it continues to wait
	since  time.Time        // when that was
}

// isAlone reports whether it waits for one lock, and would be alone inside.
func (v *waiter) isAlone() bool { return len(v.locks) == 1 && !v.shared[0] }

// look reports a waiter that sleeps though nobody is inside its locks.
func (v *waiter) look() {
	w := v.process.world
	if v.told || v.process.isDead() {
		return
	}
	v.lookAtOrder()
	for i, o := range v.locks {
		if !v.shared[i] {
			o.want()
		}
	}
	empty, free, expires := v.began, v.began, false // the latest of its locks
	for _, o := range v.locks {
		e, f, x := o.idle(v)
		expires = expires || x
		if e.IsZero() {
			return
		}
		if e.After(empty) {
			empty = e
		}
		if f.IsZero() {
			f = time.Now()
		}
		if f.After(free) {
			free = f
		}
	}
	o := v.locks[0]
	report := func(d time.Duration, what string, bound time.Duration) {
		v.told = true
		w.violation(o.name.Text, "p%d waits since %v and %s for %v, longer than %v (G4); the server has %s",
			v.process.number, w.since(v.began), what, d, bound, o.state())
	}
	if d, bound := v.sinceUnlock(); d > bound {
		report(d, "nobody got it from the last one inside", bound)
	}
	quiet, settle := w.quiet(), w.settle()
	bound := settle
	switch {
	case quiet <= settle+time.Since(empty):
	case expires: // waiters look a grant lease after a grant, or when the remaining lease that they saw is over
		bound = min(settle, w.isFree(o.name.Kind))
	default:
		bound = w.handOver()
	}
	if d := min(time.Since(empty), quiet); d > bound {
		report(d, "nobody is inside", bound)
	}
	bound = w.isFree(o.name.Kind)
	if d := time.Since(free); len(v.locks) == 1 && d > bound && v.process.quiet() > d+unnoticed {
		report(d, "the lock is free", bound)
	}
}

// sinceUnlock returns how long the lock has been free since the last holder's unlock could have granted it, and the
// bound for that: each disturbed process may get a grant, which costs one grant lease.
func (v *waiter) sinceUnlock() (d, bound time.Duration) {
	w, o := v.process.world, v.locks[0]
	options := w.plan.Processes[0].Options
	if len(v.locks) > 1 || o.name.Kind == ReadWrite || o.name.Kind == Quorum || options.HandOff.Most < 0 || options.Replicas > 0 {
		return 0, 0
	}
	o.mu.Lock()
	clean := o.clean
	o.mu.Unlock()
	if clean.IsZero() || v.began.Add(w.reach()).After(clean) {
		return 0, 0
	}
	d = time.Since(clean)
	if v.process.quiet() < d+unnoticed {
		return 0, 0
	}
	each := min(grantLease, w.plan.Watchdog)
	if o.name.Kind == Fair {
		each += placeLease
	}
	return d, w.handOver() + min(grantLease, w.plan.Watchdog) + time.Duration(w.disturbed(d+unnoticed))*each
}

// want notes that somebody wants to be alone inside.
func (o *oracle) want() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.wanted = time.Now()
}

// left notes that a waiter to be alone has left: a grant that it gives back lets others in.
func (o *oracle) left() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.alone = time.Now().Add(o.world.reach())
}

// lookAtOrder reports a waiter that others overtook, and a reader that waits for no writer.
func (v *waiter) lookAtOrder() {
	w, o := v.process.world, v.locks[0]
	w.mu.Lock()
	unfair, since := v.unfair, v.since
	w.mu.Unlock()
	if unfair != "" && time.Since(since) > 500*time.Millisecond { // or it was about to leave
		v.told = true
		w.violation(o.name.Text, "p%d waits since %v, and %s", v.process.number, w.since(v.began), unfair)
	}
	if o.name.Kind != ReadWrite || len(v.locks) > 1 || !v.shared[0] || v.gate {
		return
	}
	o.mu.Lock()
	d := min(time.Since(o.alone), time.Since(o.wanted), time.Since(v.began))
	o.mu.Unlock()
	if d > w.handOver() && w.quiet() > w.settle()+d {
		v.told = true
		w.violation(o.name.Text, "the reader of p%d waits since %v, and no writer was in, or wanted to be, for %v; the server has %s",
			v.process.number, w.since(v.began), d, o.state())
	}
}

// overtaken notes that a Lock called at asked got the lock, and who has waited for it since before that.
func (o *oracle) overtaken(s *section, asked time.Time) {
	w := o.world
	counts := o.name.Kind == Plain || o.name.Kind == Fenced
	if counts && (!w.isInLine() || len(w.all) > 100) {
		return // counting costs time for each waiter
	}
	o.mu.Lock()
	alone := o.alone
	o.mu.Unlock()
	if s.shared { // for so long others of its process may have let it in
		asked = asked.Add(-w.reach() - cmp.Or(s.process.plan.Options.HandOff.For, rlock.DefaultHandOffFor))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for v := range w.waiting {
		if i := slices.Index(v.locks, o); i >= 0 && len(v.locks) > 1 && !v.shared[i] {
			alone = time.Now() // it may have it now and then
		}
	}
	for v := range w.waiting {
		if len(v.locks) > 1 || v.locks[0] != o || v.process == s.process || v.unfair != "" || v.process.isDead() {
			continue
		}
		if w.active > 0 || time.Since(w.lastFault) < w.settled()+time.Since(v.began) {
			continue // it may have lost its place
		}
		switch known := v.began.Add(time.Duration(v.here+1) * w.reach()); { // its process asks for one place after the other
		case o.name.Kind == Fair && asked.After(known):
			v.unfair = fmt.Sprintf("%v, who came at %v, was before it in a fair lock", s, w.since(asked))
		case o.name.Kind == ReadWrite && s.shared && v.isAlone() && v.here == 0 && asked.After(known) && asked.After(alone):
			v.unfair = fmt.Sprintf("%v, who came at %v, was let in before that writer", s, w.since(asked))
		case counts && time.Since(v.began) > w.reach(): // since it is in line
			if v.passed == nil {
				v.passed = make(map[*process]int)
			}
			v.passed[s.process]++
			if most := w.turn() * (v.here + 3); v.passed[s.process] > 2*most {
				v.unfair = fmt.Sprintf("p%d had the lock %d times meanwhile", s.process.number, v.passed[s.process])
			}
		}
		v.since = time.Now()
	}
}

// state returns the servers' state of the lock.
func (o *oracle) state() string {
	var all []string
	for _, s := range o.world.servers {
		fields := s.fields(o.name.Text)
		for i := range fields {
			fields[i] = short(fields[i])
		}
		all = append(all, fmt.Sprintf("%v for %v", fields, s.redis.TTL(o.name.Text)))
	}
	return strings.Join(all, "; ")
}

func short(owner string) string {
	switch {
	case len(owner) > 36:
		return owner[:4] + owner[36:]
	case len(owner) == 16: // the id of a permit
		return hex.EncodeToString([]byte(owner[:4]))
	}
	return owner
}
