package sim

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
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

// state returns the servers' state of the lock.
func (o *oracle) state() string {
	var all []string
	for _, s := range o.world.servers {
		fields := s.fields(o.name.Text)
		for i := range fields {
			fields[i] = short(fields[i])
		}
		all = append(all, fmt.Sprintf("%v for %v ms", fields, s.do("pttl", o.name.Text)))
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
