package ear

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/internal/tenure"
	"github.com/go-rlock/rlock/lua"
)

// A hold can ask to be notified of waiters, see WithAsked. There are four ways:
//
//   - a goroutine of this process is about to wait (tellHere), or waits already when the hold begins;
//   - another process says so (yield_ask.go), to the ear;
//   - a look in Redis: when a hold begins whose Lock had to wait, or that was left to a ticket, since those that wait behind it may not
//     know who has the lock; and when the ear is live, for what it has missed;
//   - a look every third of the watchdog time, for those that cannot speak: Redisson, and whoever may not publish.
//
// A request from another process is recorded for the tenure, and applies to all its holds. It may arrive before the reply that grants the
// lock, or between two holds. So tenures that were asked for without a hold here are remembered, the last 10,000 at least.

// askables are the holds of a Client that want notifications of waiters. In a crowd of holds, requests or waiters, each hold is visited once.
type askables struct {
	some     atomic.Int32 // how many tenures they stand on: mostly none, and then nobody who waits looks here
	watching sync.Once
	due      chan struct{} // capacity 1: some are to be looked at

	mu          sync.Mutex                    // guards the following; no other lock is taken under it
	of          map[uint64]*askable           // by the tag of the tenure
	holds       map[*tenure.Hold]*Askable     // by the hold
	quiet       map[lockSide]*chain[*askable] // those with holds that no waiter was noted for, by their lock
	toLook      map[*askable]struct{}         // those to be looked at
	askedBefore recentTags                    // tenures that were asked for, and had no hold here
}

// lockSide is a lock, or one side of a read/write lock.
type lockSide struct {
	key     string
	readers bool
}

// askable is a tenure with holds that want notifications.
type askable struct {
	lock    *tenure.Lock // of the lock on that server
	tag     uint64
	holds   int             // number of them
	quiet   chain[*askedAt] // those that no waiter was noted for
	place   link[*askable]  // in askables.quiet, while there are some
	asked   bool            // somebody elsewhere waits
	unsure  bool            // the last look did not learn all
	wakes   bool            // the next look wakes waiters that it may not see
	outside time.Time       // when somebody was first seen to listen who may not wait; zero: nobody was
}

// Askable notifies one hold of waiters.
type Askable struct {
	question

	hold *tenure.Hold
	at   []askedAt                // one for each server that the lock is on
	with atomic.Pointer[question] // to all locks that were taken together; nil: it is alone
}

// askedAt is what an Askable has on one server.
type askedAt struct {
	*Askable

	lock  *tenure.Lock
	of    *askable       // nil before and after
	place link[*askedAt] // in askable.quiet, until it is asked
}

// newAskable returns the notifier of a hold that begins, and is to be asked after a term; 0: at once.
func newAskable(h *tenure.Hold, after time.Duration, at ...*tenure.Lock) *Askable {
	a := &Askable{hold: h, at: make([]askedAt, len(at))}
	a.begins(1, after)
	for i, m := range at {
		x := &a.at[i]
		x.Askable, x.lock, x.place.of = a, m, x
	}
	return a
}

// Ask notifies the hold, and those of locks taken together with it. It does nothing if a is nil.
func (a *Askable) Ask() {
	if a == nil {
		return
	}
	a.ask()
	if with := a.with.Load(); with != nil {
		with.ask()
	}
}

// ends notes that the hold has ended, so that a question not yet due is not put.
func (a *Askable) ends() {
	a.question.ends()
	if with := a.with.Load(); with != nil {
		with.ends()
	}
}

// AskedTogether links the holds taken between outer and ctx: a waiter for one of their locks notifies all of them.
func AskedTogether(ctx, outer context.Context) {
	var all []*Askable
	var after time.Duration
	end := tenure.LevelFrom(tenure.InnermostOpen(outer))
	for l := tenure.LevelOf(ctx); l != nil && l != end; l = l.Enclosing() {
		if l.IsReentry() {
			continue
		}
		if a := askableOf(l.Hold); a != nil {
			all = append(all, a)
			after = max(after, l.Hold.First.Lock.AskedAfter)
		}
	}
	if len(all) < 2 {
		return
	}
	with := new(question)
	with.begins(len(all), after)
	for _, a := range all {
		a.with.Store(with)
	}
	for _, a := range all {
		if a.put.Load() { // before the others knew of it
			with.ask()
		}
	}
}

// askableOf returns the notifier of a hold; nil if it wants none.
func askableOf(h *tenure.Hold) *Askable {
	if m := h.First.Lock; m.Wants.Wants(kinds.WantsAsked) {
		return Of(m.Client).askables.find(h)
	}
	return nil
}

// BeginOn starts notifications of waiters for any member of a majority, if l wants them, whose Lock has waited or not.
func BeginOn(l *tenure.Level, members []*tenure.Lock, waited bool) *Askable {
	if !l.Hold.First.Lock.Wants.Wants(kinds.WantsAsked) {
		return nil
	}
	a, b := newAskable(l.Hold, l.Hold.First.Lock.AskedAfter, members...), tenure.Alone
	if waited {
		b = tenure.AfterOther
	}
	a.begin(l.Hold.Tenure.Tag, b)
	return a
}

// begin registers a new hold. A waiter here joins the hub before it looks for holds, so one of the two sees the other.
func (a *Askable) begin(tag uint64, b tenure.Beginning) {
	for i := range a.at {
		x := &a.at[i]
		e := Of(x.lock.Client)
		e.Listen()
		e.askables.watching.Do(func() { e.Calls.Background(e.watchAskables) }) // ends with Close
		e.askables.add(x, tag, b)
		all, exclusive := e.Hub.Queued(x.lock.Waiters())
		if exclusive > 0 || all > 0 && x.lock.Kind.Side != lua.Reader {
			a.Ask()
		}
	}
}

// Ended ends the notifications of a hold.
func (*Ear) Ended(h *tenure.Hold) {
	if a := askableOf(h); a != nil {
		a.ends()
		for i := range a.at {
			x := &a.at[i]
			Of(x.lock.Client).askables.remove(x)
		}
	}
}

func (s *askables) add(x *askedAt, tag uint64, b tenure.Beginning) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of == nil {
		s.of, s.holds, s.toLook = make(map[uint64]*askable), make(map[*tenure.Hold]*Askable), make(map[*askable]struct{})
		s.quiet = make(map[lockSide]*chain[*askable])
	}
	e := s.of[tag]
	if e == nil {
		e = &askable{lock: x.lock, tag: tag, asked: s.askedBefore.take(tag)}
		e.place.of = e
		s.of[tag] = e
		s.some.Add(1)
	}
	s.holds[x.hold], x.of = x.Askable, e
	e.holds++
	if e.asked {
		x.Ask()
		return
	}
	s.noteQuiet(x)
	if b != tenure.Alone { // somebody may not know the new owner
		e.wakes = e.wakes || b == tenure.Unheard
		s.toLook[e] = struct{}{}
		s.lookSoon()
	}
}

// remove removes a hold on one server.
func (s *askables) remove(x *askedAt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := x.of
	if e == nil {
		return
	}
	s.noteAsked(x)
	x.of = nil
	delete(s.holds, x.hold)
	if e.holds--; e.holds > 0 {
		return
	}
	delete(s.of, e.tag)
	delete(s.toLook, e)
	s.some.Add(-1)
	if e.asked { // the tenure may go on
		s.askedBefore.add(e.tag)
	}
}

// noteQuiet notes that no waiter is known for a hold. mu is held.
func (s *askables) noteQuiet(x *askedAt) {
	e := x.of
	if e.quiet.isEmpty() {
		side := e.side()
		if s.quiet[side] == nil {
			s.quiet[side] = new(chain[*askable])
		}
		s.quiet[side].add(&e.place)
	}
	e.quiet.add(&x.place)
}

// noteAsked ends noteQuiet. mu is held.
func (s *askables) noteAsked(x *askedAt) {
	e := x.of
	if e.quiet.remove(&x.place); !e.quiet.isEmpty() {
		return
	}
	side := e.side()
	if at := s.quiet[side]; at != nil {
		if at.remove(&e.place); at.isEmpty() {
			delete(s.quiet, side)
		}
	}
}

func (a *askable) side() lockSide { return lockSide{a.lock.Key, a.lock.Kind.Side == lua.Reader} }

func (s *askables) heardOf(tag uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.of[tag]; e != nil {
		s.ask(e)
	} else {
		s.askedBefore.add(tag)
	}
}

// ownTag reads the tag of a tenure that was made here.
func ownTag(payload string) (tag uint64, ok bool) {
	tag, err := strconv.ParseUint(payload, 10, 64)
	return tag, err == nil && kinds.CapabilityOfTag(tag) != 0 && tenure.IsMade(tag)
}

// ask notifies all holds of a tenure, also later ones, of a waiter elsewhere. mu is held.
func (s *askables) ask(e *askable) {
	e.asked = true
	s.askQuiet(e, nil)
}

// askQuiet notifies the holds of a tenure that no waiter was noted for. mu is held.
func (s *askables) askQuiet(e *askable, except *tenure.Hold) {
	for x := range e.quiet.all {
		if x.hold != except {
			x.Ask()
			s.noteAsked(x)
		}
	}
}

// tellHere notifies the holds of this process that block a Lock of the same process, except the one that lets it in.
func (e *Ear) tellHere(m *tenure.Lock, within *tenure.Hold) {
	s := &e.askables
	if s.some.Load() == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.askSide(lockSide{key: m.Key}, within)
	if m.Kind.Side != lua.Reader { // a reader waits for a writer
		s.askSide(lockSide{m.Key, true}, within)
	}
}

// askSide notifies the holds of a lock, or of one side. mu is held.
func (s *askables) askSide(side lockSide, within *tenure.Hold) {
	if at := s.quiet[side]; at != nil {
		for e := range at.all {
			s.askQuiet(e, within)
		}
	}
}

// find returns the notifier of a hold; nil if the hold has ended.
func (s *askables) find(h *tenure.Hold) *Askable {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.holds[h]
}

// Asked returns the channel of the innermost hold in ctx that wants notifications of waiters; nil if there is none.
func Asked(ctx context.Context) <-chan struct{} {
	for l := tenure.LevelOf(ctx); l != nil; l = l.Enclosing() {
		if a := askableOf(l.Hold); a != nil && l.IsOpen() {
			if with := a.with.Load(); with != nil {
				return with.asked
			}
			return a.asked
		}
	}
	return nil
}
