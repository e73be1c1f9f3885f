package sim

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/go-rlock/rlock/rlock"
)

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
	first   bool // it came before its process had connected: such calls go on in any order
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
		if len(v.locks) > 1 || v.locks[0] != o || v.process == s.process || v.unfair != "" || v.process.isDead() || v.first {
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
