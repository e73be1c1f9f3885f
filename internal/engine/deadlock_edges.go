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

// Keeps reports whether its ctx still carries the open hold of that owner.
func (b *blocked) Keeps(owner string) bool {
	for l := LevelOf(b.who.Ctx); l != nil; l = l.Enclosing() {
		if l.hold.tenure.majority == nil && l.hold.tenure.Field() == owner && l.IsOpen() && l.hold.lossSoFar() == nil {
			return true
		}
	}
	return false
}

// holdsOf returns the open holds in ctx, except those of a majority and of Clients without the option.
func holdsOf(ctx context.Context) (all []deadlock.Hold) {
	for l := LevelOf(ctx); l != nil; l = l.Enclosing() {
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

// Blockers returns the owners known to be in its way: those of its own process, the one in the last refusal, and those in the last reply of
// Redis. Waiters ahead in line, also of fair locks, are left out: they wait for the same owners, so they add no path.
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

// IsBlocked reports whether that owner has been in its way since the last look. That holds while both exist, except for a reader queued
// behind a writer that waits for other readers: the writer may have left.
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

// isReader reports whether an owner of a read/write lock is a reader.
func (m *Spec) isReader(owner string) bool { return !strings.HasSuffix(owner, writerSuffix) }

// writerSuffix distinguishes a writer's owner from a reader's.
const writerSuffix = ":write"

// askAgainAfter is how long a reply of Redis counts as recent.
const askAgainAfter = 10 * time.Millisecond

// Refresh asks Redis for the owners in its way, unless a hold of its own Client excludes all others or it asked just now. Without a reply
// it keeps the last result.
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

// ask asks Redis for the owners in its way. It reports false if they are unknown.
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

// inTheWay returns the owners whose holds have to end before a Lock of m gets the lock. If m reads and waits behind writers, marks are the
// marks of those writers.
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

// heldLocks are the tenures of an engine with open levels, by lock key. It is empty without the deadlock option.
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

// of returns the tenures of a lock.
func (h *heldLocks) of(key string) []*Tenure {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Collect(maps.Keys(h.all[key]))
}

// since returns when the hold of the tenure began; the first, if readers share it.
func (h *heldLocks) since(t *Tenure) time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.all[t.Spec.Key][t]
}
