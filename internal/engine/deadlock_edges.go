package engine

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-rlock/rlock/internal/deadlock"
	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/lua"
	"github.com/go-rlock/rlock/pubsub"
)

// Keeps reports whether its ctx still carries the hold of that owner.
func (b *blocked) Keeps(owner string) bool {
	for l := levelOf(b.who.Ctx); l != nil; l = l.enclosing() {
		if l.hold.tenure.majority == nil && l.hold.tenure.Field() == owner && l.IsOpen() && l.hold.lossSoFar() == nil {
			return true
		}
	}
	return false
}

// holdsOf are the open holds of one server that ctx carries.
func holdsOf(ctx context.Context) (all []deadlock.Hold) {
	for l := levelOf(ctx); l != nil; l = l.enclosing() {
		t := l.hold.tenure
		if t.majority != nil || t.Spec.Engine.Options.Deadlock.After == 0 || !l.IsOpen() {
			continue
		}
		field := t.Field()
		if !slices.ContainsFunc(all, func(h deadlock.Hold) bool { return h.Owner == field }) {
			all = append(all, deadlock.Hold{Owner: field, Name: t.Spec.Name, Since: t.Spec.Engine.held.since(t)})
		}
	}
	return all
}

// Blockers are the owners that are in its way, as far as is known: those of its own process, the one that the last refusal named, and those that Redis
// named when it was asked. Those before it in line, of fair locks too, wait for the same owners: they are on no way that is not there without them.
func (b *blocked) Blockers() (all []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.waiter == nil {
		return nil
	}
	m := b.spec
	reads := m.Kind.Side == lua.Reader
	if reads {
		b.ahead = b.waiter.Exclusive()
	}
	shared := reads && b.ahead == nil // then other readers are not in its way
	for _, t := range m.Engine.held.of(m.Key) {
		if t != b.within && (!shared || t.Spec.Kind.Side != lua.Reader) {
			all = append(all, t.Field())
		}
	}
	if b.holder != "" && (!reads || !m.isReader(b.holder)) {
		all = append(all, b.holder)
	}
	return append(all, b.asked...)
}

// IsBlocked reports whether that owner has been in its way since somebody looked. That is so as long as both are there, but for readers beside which
// it waits for a writer: that may have left.
func (b *blocked) IsBlocked(owner string) bool {
	if b.spec.Kind.Side != lua.Reader || !b.spec.isReader(owner) {
		return slices.Contains(b.Blockers(), owner)
	}
	b.mu.Lock()
	ahead, marks := b.ahead, b.marks
	b.mu.Unlock()
	blockers := b.Blockers()
	if ahead == nil || ahead != b.nextWriter() {
		if !b.ask() || !b.hasOneOf(marks) {
			return false
		}
		blockers = b.Blockers()
	}
	return slices.Contains(blockers, owner)
}

func (b *blocked) nextWriter() *pubsub.Waiter {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ahead
}

func (b *blocked) hasOneOf(marks []string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.ContainsFunc(b.marks, func(m string) bool { return slices.Contains(marks, m) })
}

// isReader reports whether an owner of a read/write lock is one of its readers.
func (m *Spec) isReader(owner string) bool { return !strings.HasSuffix(owner, writerSuffix) }

// writerSuffix is what tells a writer's owner from a reader's.
const writerSuffix = ":write"

// askAgainAfter is for how long what Redis said counts as new.
const askAgainAfter = 10 * time.Millisecond

// Refresh asks Redis who is in its way, unless one of its own Client is, alone, or it has asked just now. If Redis does not answer, what is known has to do.
func (b *blocked) Refresh() {
	for _, t := range b.spec.Engine.held.of(b.spec.Key) {
		if t.Spec.Kind.Side != lua.Reader {
			return
		}
	}
	b.mu.Lock()
	recent := time.Since(b.askedAt) < askAgainAfter
	b.mu.Unlock()
	if !recent {
		b.ask()
	}
}

// ask asks Redis who is in its way. It reports false if that is not known.
func (b *blocked) ask() bool {
	info, err := b.spec.Look(b.ended)
	if err != nil || b.isOver() {
		return false
	}
	asked, marks := b.spec.inTheWay(info, b.within)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked, b.marks, b.askedAt = asked, marks, time.Now()
	return true
}

// inTheWay are the owners whose holds have to end before a Lock of m gets the lock, and for a reader the marks of the writers because of which some of
// them are readers.
func (m *Spec) inTheWay(info lua.Info, within *Tenure) (all, marks []string) {
	own, reads := "", m.Kind.Side == lua.Reader
	if within != nil {
		own = within.Field()
	}
	for field := range info.Fields {
		switch {
		case field == "" || field == "mode" || field == own || kinds.IsPlaceholder(field):
		case !reads || !m.isReader(field) || info.Fields["mode"] == "":
			all = append(all, field)
		case len(info.Queue) > 0: // the marks of writers
			all, marks = append(all, field), info.Queue
		}
	}
	return all, marks
}

// heldLocks are the tenures of an engine with open levels, by the keys of their locks, if it looks for deadlocks.
type heldLocks struct {
	mu  sync.Mutex                       // guards the following; no other lock is taken under it
	all map[string]map[*Tenure]time.Time // since when
}

func (h *heldLocks) add(t *Tenure) {
	h.mu.Lock()
	defer h.mu.Unlock()
	at := h.all[t.Spec.Key]
	if at == nil {
		at = make(map[*Tenure]time.Time, 1)
		if h.all == nil {
			h.all = make(map[string]map[*Tenure]time.Time)
		}
		h.all[t.Spec.Key] = at
	}
	at[t] = time.Now()
}

func (h *heldLocks) remove(t *Tenure) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if at := h.all[t.Spec.Key]; at != nil {
		if delete(at, t); len(at) == 0 {
			delete(h.all, t.Spec.Key)
		}
	}
}

// of are those of a lock.
func (h *heldLocks) of(key string) []*Tenure {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Collect(maps.Keys(h.all[key]))
}

// since is when the hold began that stands on the tenure; the first of them, if readers share it.
func (h *heldLocks) since(t *Tenure) time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.all[t.Spec.Key][t]
}
