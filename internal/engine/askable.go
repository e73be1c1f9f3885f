package engine

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/lua"
)

// A hold may want to know if somebody waits for its lock, see WithAsked. It learns so in four ways:
//
//   - a goroutine of this process is about to wait (askHere), or waits already when the hold begins;
//   - another process says so (asking.go), to the ear;
//   - a look in Redis: when a hold begins whose Lock had to wait, or that was left to a ticket, since those that wait behind it may not know who has the lock; and when the ear
//     is live, for what it has missed;
//   - a look every third of the watchdog time, for those that cannot speak: Redisson, older versions, and whoever may not publish.
//
// What another process has said is known of the tenure, and holds for all that stand on it. It may come before the answer that the tenure has
// the lock, and between two holds: so the last ones that were asked and have no hold here are remembered.

// askables are the holds of a Client that want to know.
type askables struct {
	some     atomic.Int32 // how many tenures they stand on: mostly none, and then nobody who waits looks here
	watching sync.Once
	due      chan struct{} // capacity 1: some are to be looked at

	mu     sync.Mutex             // guards the following; no other lock is taken under it
	of     map[uint64]*askable    // by the tag of the tenure
	at     map[string][]*askable  // the same by the key of the lock
	early  [rememberedTags]uint64 // tenures that were asked for, and had no hold here
	oldest int                    // of these
}

// rememberedTags bounds what is remembered.
const rememberedTags = 64

// askable is a tenure on which holds stand that want to know.
type askable struct {
	spec    *Spec // of the lock on that server
	tag     uint64
	holds   []*Askable
	asked   bool      // somebody elsewhere waits
	look    bool      // it is to be looked at
	unsure  bool      // the last look did not learn all
	outside time.Time // when somebody was first seen to listen who may not wait; zero: nobody was
}

// Askable is what a hold knows of those who wait for it.
type Askable struct {
	hold  *hold
	once  sync.Once
	asked chan struct{}
	at    []*Spec                    // the lock, on each server that it is on
	with  atomic.Pointer[[]*Askable] // those of locks that were taken together, itself included; nil: it is alone
}

func newAskable(h *hold, at ...*Spec) *Askable {
	return &Askable{hold: h, asked: make(chan struct{}), at: at}
}

// ask says that somebody waits, for its lock or for one that was taken with it.
func (a *Askable) ask() {
	a.isAsked()
	if with := a.with.Load(); with != nil {
		for _, other := range *with {
			other.isAsked()
		}
	}
}

func (a *Askable) isAsked() { a.once.Do(func() { close(a.asked) }) }

// AskedTogether has the holds that began under outer, of which ctx carries the last, learn together that somebody waits for one of their locks.
func AskedTogether(ctx, outer context.Context) {
	var all []*Askable
	end, _ := Innermost[*Level](InnermostOpen(outer))
	for l := levelOf(ctx); l != nil && l != end; l = l.enclosing() {
		if l != &l.hold.first { // a re-entry
			continue
		}
		if a := l.hold.askable(); a != nil {
			all = append(all, a)
		}
	}
	if len(all) < 2 {
		return
	}
	for _, a := range all {
		a.with.Store(&all)
	}
	for _, a := range all {
		if calls.IsClosed(a.asked) { // before the others knew of it
			a.ask()
		}
	}
}

// askable is what a hold knows of those who wait; nil if it does not want to know.
func (h *hold) askable() *Askable {
	if m := h.first.spec; m.Mark.Wants(kinds.WantsAsked) {
		return m.Engine.askables.find(h, h.tenure.Tag)
	}
	return nil
}

// mayBeAsked has a hold know of those who wait, from now on. looks says that there may be some that do not know who has the lock.
func (l *attempt) mayBeAsked(a AcquireResult) {
	if l.Spec.Mark.Wants(kinds.WantsAsked) {
		newAskable(l.level.hold, l.Spec).begin(l.Tenure.Tag, a.how == byCall && (l.waiter.Waited() || l.within != nil || l.ticket != nil))
	}
}

// MayBeAsked has a hold of a majority know of those who wait for one of the members. looks is as above.
func (l *Level) MayBeAsked(members []*Spec, looks bool) *Askable {
	if !l.spec.Mark.Wants(kinds.WantsAsked) {
		return nil
	}
	a := newAskable(l.hold, members...)
	a.begin(l.hold.tenure.Tag, looks)
	return a
}

// Ask says that somebody waits. It does nothing if nobody wants to know.
func (a *Askable) Ask() {
	if a != nil {
		a.ask()
	}
}

// begin enters a hold that has just begun. Whoever waits here has joined the hub before it looks for holds; so it is seen in one of the two.
func (a *Askable) begin(tag uint64, looks bool) {
	for _, m := range a.at {
		c := m.Engine
		c.listen()
		c.askables.watching.Do(func() { c.inBackground(c.watchAskables) }) // ends with Close
		c.askables.add(m, tag, a, looks)
		all, exclusive := c.Hub.Queued(m.waiters())
		if exclusive > 0 || all > 0 && m.Kind.Side != lua.Reader {
			a.ask()
		}
	}
}

// isAskedNoMore is the end of a hold.
func (h *hold) isAskedNoMore() {
	if m := h.first.spec; m.Mark.Wants(kinds.WantsAsked) {
		m.Engine.askables.forget(h, h.tenure.Tag)
	}
}

func (s *askables) add(m *Spec, tag uint64, a *Askable, looks bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.of[tag]
	if e == nil {
		e = &askable{spec: m, tag: tag}
		if at := slices.Index(s.early[:], tag); at >= 0 {
			e.asked, s.early[at] = true, 0
		}
		if s.of == nil {
			s.of, s.at = make(map[uint64]*askable), make(map[string][]*askable)
		}
		s.of[tag] = e
		s.at[m.Key] = append(s.at[m.Key], e)
		s.some.Add(1)
	}
	e.holds = append(e.holds, a)
	switch {
	case e.asked:
		a.ask()
	case looks:
		e.look = true
		s.lookSoon()
	}
}

// forget is the end of a hold.
func (s *askables) forget(h *hold, tag uint64) {
	for _, m := range s.remove(h, tag) {
		if other := &m.Engine.askables; other != s {
			other.remove(h, tag)
		}
	}
}

// remove takes a hold out, and returns where else it is.
func (s *askables) remove(h *hold, tag uint64) (at []*Spec) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.of[tag]
	if e == nil {
		return nil
	}
	e.holds = slices.DeleteFunc(e.holds, func(a *Askable) bool {
		if a.hold == h {
			at = a.at
		}
		return a.hold == h
	})
	if len(e.holds) > 0 {
		return at
	}
	delete(s.of, tag)
	s.some.Add(-1)
	key := e.spec.Key
	if s.at[key] = slices.DeleteFunc(s.at[key], func(x *askable) bool { return x == e }); len(s.at[key]) == 0 {
		delete(s.at, key)
	}
	if e.asked { // the tenure may go on
		s.remember(tag)
	}
	return at
}

func (s *askables) remember(tag uint64) {
	if !slices.Contains(s.early[:], tag) {
		s.early[s.oldest] = tag
		s.oldest = (s.oldest + 1) % len(s.early)
	}
}

// heard is told by another process that it waits for an owner with that tag.
func (s *askables) heard(payload string) {
	if tag, ok := ownTag(payload); ok {
		s.heardOf(tag)
	}
}

func (s *askables) heardOf(tag uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.of[tag]; e != nil {
		e.ask()
	} else {
		s.remember(tag)
	}
}

// ownTag reads the tag of a tenure that was made here.
func ownTag(payload string) (tag uint64, ok bool) {
	tag, err := strconv.ParseUint(payload, 10, 64)
	return tag, err == nil && kinds.MarkOfTag(tag) != 0 && kinds.Unmarked(tag) <= lastTag.Load()
}

// ask tells all holds of a tenure that somebody elsewhere waits. askables.mu is held.
func (e *askable) ask() {
	e.asked = true
	for _, a := range e.holds {
		a.ask()
	}
}

// askHere tells the holds of this process that a Lock of the same process waits for.
func (l *attempt) askHere() { l.Spec.askHere(l.within) }

func (m *Spec) askHere(within *hold) {
	s := &m.Engine.askables
	if s.some.Load() == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.at[m.Key] {
		if m.Kind.Side == lua.Reader && e.spec.Kind.Side == lua.Reader {
			continue // it waits for a writer
		}
		for _, a := range e.holds {
			if a.hold != within {
				a.ask()
			}
		}
	}
}

// find returns what is known of a hold; nil if there is no such hold any more.
func (s *askables) find(h *hold, tag uint64) *Askable {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.of[tag]; e != nil {
		for _, a := range e.holds {
			if a.hold == h {
				return a
			}
		}
	}
	return nil
}

// Asked is closed when somebody waits for the innermost hold that ctx carries and that wants to know; nil if there is none.
func Asked(ctx context.Context) <-chan struct{} {
	for l := levelOf(ctx); l != nil; l = l.enclosing() {
		if a := l.hold.askable(); a != nil && l.IsOpen() {
			return a.asked
		}
	}
	return nil
}
