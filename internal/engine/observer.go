package engine

import (
	"slices"
	"time"

	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/pubsub"
)

// Features observe the locks of a Client (Engine.Use). The engine names none of them, and a Lock that none observes calls none.
//
// Their methods return at once. They are called on the goroutines of Lock, unlock and Close, and on those that keep leases, with no mutex
// of the engine held.

// An Observer is told of the holds of those locks that it observes.
type Observer interface {
	// Observes reports whether it is to be told of holds that a handle takes on those terms.
	Observes(t *Terms) bool
	// Mark returns the mark of the owners that Locks of m are about to make; 0: none.
	Mark(m *Lock) kinds.Mark
	// Began is called when a Lock has begun a hold, before it returns.
	Began(l *Attempt, h *Hold)
	// Ended is called when the last level of a hold is closed, and when it is lost.
	Ended(h *Hold)
}

// A Watcher is told of the waits of all Locks of a Client.
type Watcher interface {
	// Waits is called before each sleep of a Lock, which fails with the error that the channel delivers, if any; nil: it never does.
	Waits(l *Attempt) (fails <-chan error)
	// Refused is called when a Lock that does not wait is refused.
	Refused(l *Attempt)
	// WaitOver is called at the end of a Lock that competed.
	WaitOver(l *Attempt)
}

// A Cache keeps the tenures of ended holds for the next Lock of the process. It has the right to make calls for those that it keeps (I1),
// and counts them with Caches.
type Cache interface {
	// Keep keeps the tenure on which h stood, or reports false.
	Keep(h *Hold) bool
	// Take returns the tenure that the Lock continues, and the token for that; nil: none. Then err is why the Lock fails, or ErrOver.
	Take(l *Attempt) (t *Tenure, token int64, err error)
	// Free begins to release the tenure of a lock, and returns a channel that is closed when that has ended; nil: none is kept.
	Free(key string) (ended <-chan struct{})
	// FreeAll begins to release all.
	FreeAll()
	// Lost is told of each lost tenure.
	Lost(t *Tenure)
	// Kept returns the number of those that nobody is known to want.
	Kept() int
}

// Use makes the engine's locks known to a feature: an Observer, a Watcher, or a Cache. It is called before any lock is made.
func (c *Engine) Use(feature any) {
	c.features = append(c.features, feature)
	if o, ok := feature.(Observer); ok {
		c.observers = append(c.observers, o)
		if o.Observes(&Terms{}) { // first come those of all locks, see observersOf
			slices.Reverse(c.observers)
		}
	}
	if w, ok := feature.(Watcher); ok {
		c.watchers = append(c.watchers, w)
	}
	if k, ok := feature.(Cache); ok {
		c.cache = k
	}
}

// observersOf returns the observers of locks on those terms. Those of all locks are one slice.
func (c *Engine) observersOf(t *Terms) (all []Observer) {
	for i, o := range c.observers {
		switch {
		case !o.Observes(t):
		case len(all) == i:
			all = c.observers[: i+1 : i+1]
		default:
			all = append(all, o)
		}
	}
	return all
}

// Feature returns what the engine uses of that type; false: nothing.
func Feature[F any](c *Engine) (f F, ok bool) {
	for _, used := range c.features {
		if f, ok = used.(F); ok {
			return f, true
		}
	}
	return f, false
}

// Mark returns the mark of the owners that Locks of m are about to make, of which the observers learn by that.
func (m *Lock) Mark() (mark kinds.Mark) {
	for _, o := range m.Observers {
		mark = mark.With(o.Mark(m))
	}
	return mark
}

// canHave reports whether an existing tenure is renewed as a Lock of m wants, and its mark says all that this wants.
func (m *Lock) canHave(t *Tenure) bool {
	want := m.Mark()
	return m.WatchdogIn(m.Engine) == t.Lock.WatchdogIn(m.Engine) && (want == 0 || kinds.MarkOfTag(t.Tag).Wants(want))
}

// IsMade reports whether a tenure with that tag was made by this process.
func IsMade(tag uint64) bool { return kinds.Unmarked(tag) <= lastTag.Load() }

// observed tells the observers of a hold that has begun.
func (l *Attempt) observed(h *Hold) {
	for _, o := range l.Lock.Observers {
		o.Began(l, h)
	}
}

// observedNoMore tells the observers that a hold has ended.
func (h *Hold) observedNoMore() {
	for _, o := range h.first.lock.Observers {
		o.Ended(h)
	}
}

// isKept has the tenure, already detached from the hold, kept for the next Lock, if the hold's handle wants that.
func (h *Hold) isKept() bool {
	m := h.first.lock
	return m.Linger > 0 && !h.tenure.unkept && m.Engine.cache.Keep(h)
}

// watched tells the watchers that the Lock is about to sleep. fails delivers the error with which one of them has it fail; nil: none may.
func (l *Attempt) watched() (fails <-chan error) {
	l.waited = true
	for _, w := range l.Lock.Engine.watchers {
		if may := w.Waits(l); may != nil {
			fails = may
		}
	}
	return fails
}

// refusedOnce tells the watchers that a Lock that does not wait is refused.
func (l *Attempt) refusedOnce() {
	for _, w := range l.Lock.Engine.watchers {
		w.Refused(l)
	}
}

// watcherError is the error of a Lock that a Watcher has fail.
type watcherError struct{ error }

// watchedNoMore tells the watchers that the Lock is over.
func (l *Attempt) watchedNoMore() {
	for _, w := range l.Lock.Engine.watchers {
		w.WaitOver(l)
	}
}

// Beginning says how a hold began, and so who may wait for it.
type Beginning int8

const (
	Alone      Beginning = iota // no waiter here can know less than its owner
	AfterOther                  // its Lock waited. Those that waited when it did may know only the owner before
	Granted                     // the same, and another process gave it the lock
	Unheard                     // from an owner that did not unlock: nobody was woken, and those that wait know only that owner
)

// beginning returns how a hold of the Lock begins.
func (l *Attempt) beginning(a AcquireResult) Beginning {
	switch {
	case a.how != byCall:
		return Alone
	case l.within != nil || l.ticket != nil:
		return Unheard
	case a.lease > 0:
		return Granted
	case l.waiter != nil && l.waiter.Waited():
		return AfterOther
	}
	return Alone
}

// Beginning returns how the Lock's hold began.
func (l *Attempt) Beginning() Beginning { return l.begun }

// Waiter returns its place in the line of the process; nil: it never waited there.
func (l *Attempt) Waiter() *pubsub.Waiter { return l.waiter }

// Within returns the hold that lets the Lock in: the writer's, or that of the reader that becomes the writer; nil: none.
func (l *Attempt) Within() *Hold { return l.within }

// CanContinue reports whether the Lock can take over an idle tenure as it is.
func (l *Attempt) CanContinue(t *Tenure) bool {
	m := l.Lock
	return m.Kind == t.Lock.Kind && m.passes && m.canHave(t) && time.Until(m.Engine.Leases.Until(&t.Lease)) >= t.given/3
}

// continueKept continues a tenure that the process has kept. ErrOver: there is none.
func (l *Attempt) continueKept() (*Level, error) {
	c := l.Lock.Engine
	t, token, err := c.cache.Take(l)
	if t == nil {
		return nil, err
	}
	l.Tenure, t.run = t, nil // and with the run its tokens, which are older
	a := AcquireResult{how: passed}
	a.Token = token
	s, err := l.enter(a)
	if err == nil {
		l.Took(PathIdle)
		c.stats.kept.Add(1)
	}
	return s, err
}

// Caches counts tenures that a Cache has taken, or given up. Without any the engine does not ask it.
func (c *Engine) Caches(n int32) { c.kept.Add(n) }

// freeKept begins to release what the process keeps of a lock.
func (c *Engine) freeKept(key string) (ended <-chan struct{}) {
	if c.kept.Load() == 0 {
		return nil
	}
	return c.cache.Free(key)
}

// freeAllKept begins to release all that the process keeps.
func (c *Engine) freeAllKept() {
	if c.cache != nil {
		c.cache.FreeAll()
	}
}
