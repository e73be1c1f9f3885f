package tenure

import (
	"time"

	"github.com/go-rlock/rlock/internal/kinds"
)

// Features observe the locks of a Client (Client.Use). This package and the engine name none of them, and a Lock that none observes calls none.
//
// Their methods return at once. They are called on the goroutines of Lock, unlock and Close, and on those that keep leases, with no mutex
// of theirs held.

// An Observer is told of the holds of those locks that it observes.
type Observer interface {
	// Observes reports whether it is to be told of holds that a handle takes on those terms.
	Observes(t *Terms) bool
	// Mark returns the mark of the owners that Locks of m are about to make; 0: none. It may be called with the hub's mutex held.
	Mark(m *Lock) kinds.Capability
	// Began is called when a Lock has begun a hold, before it returns; not for the hold of a majority.
	Began(h *Hold, b Beginning)
	// Ended is called when the last level of a hold is closed, and before that if it is lost, perhaps already before Began.
	Ended(h *Hold)
}

// A Cache keeps the tenures of ended holds for the next Lock of the process. It has the right to make calls for those that it keeps (I1),
// and counts them in Client.Kept: without any it is not asked.
type Cache interface {
	// Keep keeps the tenure on which h stood, or reports false.
	Keep(h *Hold) bool
	// Take returns the tenure that a Lock of m continues, and the token for that; nil: none. left: the caller leaves meanwhile, and err is why.
	Take(who Caller, m *Lock) (t *Tenure, token int64, left bool, err error)
	// Free begins to release the tenure of a lock, and returns a channel that is closed when that has ended; nil: none is kept.
	Free(key string) (ended <-chan struct{})
	// FreeAll begins to release all.
	FreeAll()
	// Lost is told of each lost tenure.
	Lost(t *Tenure)
	// Kept returns the number of those that nobody is known to want.
	Kept() int
}

// Use makes the Client's locks known to a feature: an Observer, a Cache, or a Watcher (package engine). It is called before any lock is made.
func (c *Client) Use(feature any) {
	c.Features = append(c.Features, feature)
	if o, ok := feature.(Observer); ok {
		c.observers = append(c.observers, o)
	}
	if k, ok := feature.(Cache); ok {
		c.Cache = k
	}
}

func (c *Client) observersOf(t *Terms) (all []Observer) {
	for _, o := range c.observers {
		if o.Observes(t) {
			all = append(all, o)
		}
	}
	return all
}

// Feature returns what the Client uses of that type; false: nothing.
func Feature[F any](c *Client) (f F, ok bool) {
	for _, used := range c.Features {
		if f, ok = used.(F); ok {
			return f, true
		}
	}
	return f, false
}

// Mark returns the mark of the owners that Locks of m are about to make, of which the observers learn by that.
func (m *Lock) Mark() (mark kinds.Capability) {
	for _, o := range m.Observers {
		mark = mark.With(o.Mark(m))
	}
	return mark
}

// CanHave reports whether an existing tenure is renewed as a Lock of m wants, and its mark says all that this wants.
func (m *Lock) CanHave(t *Tenure) bool {
	want := m.Mark()
	return m.WatchdogIn(m.Client) == t.Lock.WatchdogIn(m.Client) && (want == 0 || kinds.CapabilityOfTag(t.Tag).Wants(want))
}

// IsMade reports whether a tenure with that tag was made by this process.
func IsMade(tag uint64) bool { return kinds.Unmarked(tag) <= lastTag.Load() }

func (h *Hold) observedNoMore() {
	for _, o := range h.First.Lock.Observers {
		o.Ended(h)
	}
}

// IsKept has the tenure, already detached from the hold, kept for the next Lock, if the hold's handle wants that.
func (h *Hold) IsKept() bool {
	m := h.First.Lock
	return m.Linger > 0 && !h.Tenure.unkept && m.Client.Cache.Keep(h)
}

// Beginning says how a hold began, and so who may wait for it.
type Beginning int8

const (
	Alone      Beginning = iota // no waiter here can know less than its owner
	AfterOther                  // its Lock waited. Those that waited when it did may know only the owner before
	Granted                     // the same, and another process gave it the lock
	Unheard                     // from an owner that did not unlock: nobody was woken, and those that wait know only that owner
)

// FreeKept begins to release what the process keeps of a lock.
func (c *Client) FreeKept(key string) (ended <-chan struct{}) {
	if c.Kept.Load() == 0 {
		return nil
	}
	return c.Cache.Free(key)
}

// FreeAllKept begins to release all that the process keeps.
func (c *Client) FreeAllKept() {
	if c.Cache != nil {
		c.Cache.FreeAll()
	}
}

// CanContinue reports whether a Lock of m can take over a tenure without a hold, as it is.
func (m *Lock) CanContinue(t *Tenure) bool {
	return m.Kind == t.Lock.Kind && m.Passes && m.CanHave(t) && time.Until(m.Client.Leases.Until(&t.Lease)) >= t.FirstLease/3
}
