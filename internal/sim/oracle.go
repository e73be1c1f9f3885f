package sim

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"
)

// oracle knows of one lock who is inside, and who waits.
type oracle struct {
	world *world
	name  Name

	mu       sync.Mutex // guards the following
	sections map[*section]struct{}
	empty    time.Time // since when nobody is inside; zero: somebody is
	free     time.Time // since when the server has nothing of it; zero: it has
	lost     time.Time // when its server may have forgotten holds last
	token    int64

	entered int
	longest time.Duration // of a wait for it
}

// section is what one Lock has of one lock.
type section struct {
	process *process
	ctx     context.Context
	owner   string
	shared  bool
	fixed   bool     // it may end by itself
	within  *section // the reader that became this writer
	began   time.Time
	excused time.Time // when its server may have forgotten it; zero: it may not
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
func (o *oracle) enter(s *section, asked time.Time, token int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.entered++
	o.longest = max(o.longest, time.Since(asked))
	s.began = time.Now()
	if !s.isLive() {
		return // lost, or its process was killed, as it returned
	}
	if !o.lost.IsZero() && asked.Before(o.lost) && !o.isThere(s) {
		s.excused = o.lost
	}
	if s.excused.IsZero() {
		for other := range o.sections {
			if other.isLive() && other.excused.IsZero() && (!other.shared || !s.shared) && other != s.within {
				o.world.violation(o.name.Text, "two owners (G1): %v and %v", other, s)
			}
		}
		if !o.isThere(s) {
			o.world.violation(o.name.Text, "the server does not have %v, whose Lock returns (G1)", s)
		}
	}
	if token != 0 {
		if token <= o.token && (o.lost.IsZero() || time.Since(o.lost) > o.world.settle()) && s.excused.IsZero() {
			o.world.violation(o.name.Text, "token %d of %v after token %d", token, s, o.token)
		}
		o.token = token
	}
	o.sections[s] = struct{}{}
	o.empty = time.Time{}
}

// leave notes that the unlock of a section is about to be called. It reports whether the server may have forgotten the hold.
func (o *oracle) leave(s *section) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.sections, s)
	return !s.excused.IsZero()
}

// share notes that a writer is about to become a reader. It reports whether the server may have forgotten the hold.
func (o *oracle) share(s *section) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	s.shared, s.owner = true, ""
	return !s.excused.IsZero()
}

// forgotten notes that the server forgot the lock.
func (o *oracle) forgotten() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lost, o.token = time.Now(), 0
	for s := range o.sections {
		if s.excused.IsZero() {
			s.excused = o.lost
		}
	}
}

// isThere reports whether a majority of the servers has the hold; o.mu is held.
func (o *oracle) isThere(s *section) bool {
	if o.name.Kind == Quorum || s.owner == "" {
		return true // not known by one name
	}
	return o.world.servers[0].has(o.name.Text, s.owner)
}

// look is called at each tick.
func (o *oracle) look() {
	o.mu.Lock()
	defer o.mu.Unlock()
	inside := false
	for s := range o.sections {
		if !s.isLive() {
			delete(o.sections, s)
			continue
		}
		inside = true
		switch {
		case !s.excused.IsZero():
			if quiet := min(time.Since(s.excused), o.world.quiet()); !s.fixed && quiet > o.world.plan.Watchdog/3+time.Second {
				o.world.violation(o.name.Text, "%v is not told of its loss at %v (G2)", s, o.world.since(s.excused))
				s.excused = time.Now()
			}
		case !o.isThere(s):
			o.world.violation(o.name.Text, "the server does not have %v any more, who was not told (G2)", s)
			delete(o.sections, s)
		}
	}
	since(&o.empty, !inside)
	since(&o.free, !inside && o.name.Kind != Quorum && !o.world.servers[0].redis.Exists(o.name.Text))
}

// since notes the time at which something became true; zero: it is not.
func since(at *time.Time, is bool) {
	switch {
	case !is:
		*at = time.Time{}
	case at.IsZero():
		*at = time.Now()
	}
}

// idle returns since when nobody is inside of a lock, and since when it is free; zero: it is not.
func (o *oracle) idle() (empty, free time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.empty, o.free
}

// unnoticed is how long rueidis may take a connection for alive that is not.
const unnoticed = 15 * time.Second

// waiter is a call that waits for locks.
type waiter struct {
	process *process
	locks   []*oracle
	began   time.Time
	told    bool // that it sleeps
}

// look reports a waiter that sleeps though nobody is inside of its locks.
func (v *waiter) look() {
	w := v.process.world
	if v.told || v.process.isDead() {
		return
	}
	empty, free := v.began, v.began // the latest of its locks
	for _, o := range v.locks {
		e, f := o.idle()
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
	quiet, settle := w.quiet(), w.settle()
	bound := settle
	if quiet > settle+time.Since(empty) {
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

// state is what the servers have of the lock.
func (o *oracle) state() string {
	var all []string
	for _, s := range o.world.servers {
		fields, _ := s.redis.HKeys(o.name.Text)
		for i := range fields {
			fields[i] = short(fields[i])
		}
		all = append(all, fmt.Sprintf("%v for %v", fields, s.redis.TTL(o.name.Text)))
	}
	return strings.Join(all, "; ")
}

func short(owner string) string {
	if len(owner) > 36 {
		return owner[:4] + owner[36:]
	}
	return owner
}
