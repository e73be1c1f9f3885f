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

// A hold can ask to be notified of waiters, see WithAsked. There are four ways:
//
//   - a goroutine of this process is about to wait (askHere), or waits already when the hold begins;
//   - another process says so (asking.go), to the ear;
//   - a look in Redis: when a hold begins whose Lock had to wait, or that was left to a ticket, since those that wait behind it may not
//     know who has the lock; and when the ear is live, for what it has missed;
//   - a look every third of the watchdog time, for those that cannot speak: Redisson, older versions, and whoever may not publish.
//
// A request from another process is recorded for the tenure, and applies to all its holds. It may arrive before the reply that grants the
// lock, or between two holds. So the last tenures that were asked for without a hold here are remembered.

// askables are the holds of a Client that want notifications of waiters.
type askables struct {
	some     atomic.Int32 // how many tenures they stand on: mostly none, and then nobody who waits looks here
	watching sync.Once
	due      chan struct{} // capacity 1: some are to be looked at

	mu    sync.Mutex            // guards the following; no other lock is taken under it
	of    map[uint64]*askable   // by the tag of the tenure
	at    map[string][]*askable // the same by the key of the lock
	early tagRing               // tenures that were asked for, and had no hold here
}

// askable is a tenure with holds that want notifications.
type askable struct {
	spec    *Spec // of the lock on that server
	tag     uint64
	holds   []*Askable
	asked   bool      // somebody elsewhere waits
	look    bool      // it is to be looked at
	unsure  bool      // the last look did not learn all
	wakes   bool      // the next look wakes waiters that it may not see
	outside time.Time // when somebody was first seen to listen who may not wait; zero: nobody was
}

// Askable notifies one hold of waiters.
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

// ask notifies the hold, and those of locks taken together with it.
func (a *Askable) ask() {
	a.isAsked()
	if with := a.with.Load(); with != nil {
		for _, other := range *with {
			other.isAsked()
		}
	}
}

func (a *Askable) isAsked() { a.once.Do(func() { close(a.asked) }) }

// AskedTogether links the holds taken between outer and ctx: a waiter for one of their locks notifies all of them.
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

// askable returns the notifier of a hold; nil if it wants none.
func (h *hold) askable() *Askable {
	if m := h.first.spec; m.Mark.Wants(kinds.WantsAsked) {
		return m.Engine.askables.find(h, h.tenure.Tag)
	}
	return nil
}

// firstLook is what a new hold does for earlier waiters that may not know the new owner.
type firstLook int8

const (
	noLook firstLook = iota
	lookOnce
	lookAndWake // no unlock has woken those who know another owner
)

// mayBeAsked starts notifications for a hold.
func (l *attempt) mayBeAsked(a AcquireResult) {
	if !l.Spec.Mark.Wants(kinds.WantsAsked) {
		return
	}
	look := noLook
	switch {
	case a.how != byCall:
	case l.within != nil || l.ticket != nil:
		look = lookAndWake
	case l.waiter.Waited():
		look = lookOnce
	}
	newAskable(l.level.hold, l.Spec).begin(l.Tenure.Tag, look)
}

// MayBeAsked starts notifications of waiters for any member of a majority whose Lock has waited or not.
func (l *Level) MayBeAsked(members []*Spec, waited bool) *Askable {
	if !l.spec.Mark.Wants(kinds.WantsAsked) {
		return nil
	}
	look := noLook
	if waited {
		look = lookOnce
	}
	a := newAskable(l.hold, members...)
	a.begin(l.hold.tenure.Tag, look)
	return a
}

// Ask notifies the hold. It does nothing if a is nil.
func (a *Askable) Ask() {
	if a != nil {
		a.ask()
	}
}

// begin registers a new hold. A waiter here joins the hub before it looks for holds, so one of the two sees the other.
func (a *Askable) begin(tag uint64, look firstLook) {
	for _, m := range a.at {
		c := m.Engine
		c.listen()
		c.askables.watching.Do(func() { c.inBackground(c.watchAskables) }) // ends with Close
		c.askables.add(m, tag, a, look)
		all, exclusive := c.Hub.Queued(m.waiters())
		if exclusive > 0 || all > 0 && m.Kind.Side != lua.Reader {
			a.ask()
		}
	}
}

// isAskedNoMore ends the notifications of a hold.
func (h *hold) isAskedNoMore() {
	if m := h.first.spec; m.Mark.Wants(kinds.WantsAsked) {
		m.Engine.askables.forget(h, h.tenure.Tag)
	}
}

func (s *askables) add(m *Spec, tag uint64, a *Askable, look firstLook) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.of[tag]
	if e == nil {
		e = &askable{spec: m, tag: tag, asked: s.early.take(tag)}
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
	case look != noLook:
		e.look, e.wakes = true, e.wakes || look == lookAndWake
		s.lookSoon()
	}
}

// forget removes a hold, on all its servers.
func (s *askables) forget(h *hold, tag uint64) {
	for _, m := range s.remove(h, tag) {
		if other := &m.Engine.askables; other != s {
			other.remove(h, tag)
		}
	}
}

// remove removes a hold here, and returns its lock on all servers.
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
		s.early.add(tag)
	}
	return at
}

// heard handles a message that another process waits for the owner with that tag.
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
		s.early.add(tag)
	}
}

// ownTag reads the tag of a tenure that was made here.
func ownTag(payload string) (tag uint64, ok bool) {
	tag, err := strconv.ParseUint(payload, 10, 64)
	return tag, err == nil && kinds.MarkOfTag(tag) != 0 && kinds.Unmarked(tag) <= lastTag.Load()
}

// ask notifies all holds of a tenure of a waiter elsewhere. askables.mu is held.
func (e *askable) ask() {
	e.asked = true
	for _, a := range e.holds {
		a.ask()
	}
}

// askHere notifies the holds of this process that block a Lock of the same process.
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

// find returns the notifier of a hold; nil if the hold has ended.
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

// Asked returns the channel of the innermost hold in ctx that wants notifications of waiters; nil if there is none.
func Asked(ctx context.Context) <-chan struct{} {
	for l := levelOf(ctx); l != nil; l = l.enclosing() {
		if a := l.hold.askable(); a != nil && l.IsOpen() {
			return a.asked
		}
	}
	return nil
}
