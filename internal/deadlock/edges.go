package deadlock

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/internal/tenure"
	"github.com/go-rlock/rlock/lua"
	"github.com/go-rlock/rlock/pubsub"
)

// Keeps reports whether its ctx still carries the open hold of that owner.
func (b *blocked) Keeps(owner string) bool {
	for l := tenure.LevelOf(b.who.Ctx); l != nil; l = l.Enclosing() {
		if t := l.Hold.Tenure; t.Majority == nil && t.Field() == owner && l.IsOpen() && l.Loss() == nil {
			return true
		}
	}
	return false
}

// holdsOf returns the open holds in ctx, except those of a majority and of Clients without the option.
func holdsOf(ctx context.Context) (all []Hold) {
	for l := tenure.LevelOf(ctx); l != nil; l = l.Enclosing() {
		t := l.Hold.Tenure
		c := of(t.Lock)
		if t.Majority != nil || c == nil || !l.IsOpen() {
			continue
		}
		field := t.Field()
		if !slices.ContainsFunc(all, func(h Hold) bool { return h.Owner == field }) {
			all = append(all, Hold{Owner: field, Name: t.Lock.Name, Since: Micros{c.held.since(l.Hold)}})
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
	m := b.lock
	reads := m.Kind.Side == lua.Reader
	if reads {
		b.ahead = b.waiter.Exclusive()
	}
	shared := reads && b.ahead == nil // then other readers are not in its way
	for t := range b.client.held.of(m.Key) {
		if t != b.within && (!shared || t.Lock.Kind.Side != lua.Reader) {
			all = append(all, t.Field())
		}
	}
	if b.holder != "" && (!reads || !isReader(b.holder)) {
		all = append(all, b.holder)
	}
	return append(all, b.asked...)
}

// IsBlocked reports whether that owner has been in its way since the last look. That holds while both exist, except for a reader queued
// behind a writer that waits for other readers: the writer may have left.
func (b *blocked) IsBlocked(owner string) bool {
	if b.lock.Kind.Side != lua.Reader || !isReader(owner) {
		return slices.Contains(b.Blockers(), owner)
	}
	ahead, marks := b.writers()
	blockers := b.Blockers()
	if still, _ := b.writers(); ahead == nil || ahead != still {
		if !b.ask() {
			return false
		}
		_, now := b.writers()
		if !slices.ContainsFunc(now, func(m string) bool { return slices.Contains(marks, m) }) {
			return false
		}
		blockers = b.Blockers()
	}
	return slices.Contains(blockers, owner)
}

// writers returns those that a reader is behind.
func (b *blocked) writers() (ahead *pubsub.Waiter, marks []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ahead, b.marks
}

func isReader(owner string) bool { return !strings.HasSuffix(owner, kinds.WriterSuffix) }

// askAgainAfter is how long a reply of Redis counts as recent.
const askAgainAfter = 10 * time.Millisecond

// Refresh asks Redis for the owners in its way, unless a hold of its own Client excludes all others or it asked just now. Without a reply
// it keeps the last result.
func (b *blocked) Refresh() {
	for t := range b.client.held.of(b.lock.Key) {
		if t.Lock.Kind.Side != lua.Reader {
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
	info, err := b.lock.Inspect(b.ended)
	if err != nil || b.isOver() {
		return false
	}
	asked, marks := inTheWay(b.lock, info, b.within)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked, b.marks, b.askedAt = asked, marks, time.Now()
	return true
}

// inTheWay returns the owners whose holds have to end before a Lock of m gets the lock. If m reads and waits behind writers, marks are the
// marks of those writers.
func inTheWay(m *tenure.Lock, info lua.Info, within *tenure.Tenure) (all, marks []string) {
	own, reads := "", m.Kind.Side == lua.Reader
	if within != nil {
		own = within.Field()
	}
	for field := range info.Fields {
		switch {
		case field == "" || field == "mode" || field == own || kinds.IsPlaceholder(field):
		case !reads || !isReader(field) || info.Fields["mode"] == "":
			all = append(all, field)
		case len(info.Queue) > 0: // the marks of writers
			all, marks = append(all, field), info.Queue
		}
	}
	return all, marks
}

// heldLocks are the holds of a Client with open levels, by lock key, and when they began.
type heldLocks struct {
	mu  sync.Mutex // guards the following; no other lock is taken under it
	all map[string]map[*tenure.Hold]time.Time
}

func (k *heldLocks) add(h *tenure.Hold) {
	key := h.Tenure.Lock.Key
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.all == nil {
		k.all = make(map[string]map[*tenure.Hold]time.Time)
	}
	if k.all[key] == nil {
		k.all[key] = make(map[*tenure.Hold]time.Time, 1)
	}
	k.all[key][h] = time.Now()
}

func (k *heldLocks) remove(h *tenure.Hold) {
	key := h.Tenure.Lock.Key
	k.mu.Lock()
	defer k.mu.Unlock()
	if delete(k.all[key], h); len(k.all[key]) == 0 {
		delete(k.all, key)
	}
}

// of returns the tenures of a lock: readers may share one.
func (k *heldLocks) of(key string) map[*tenure.Tenure]bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	all := make(map[*tenure.Tenure]bool, len(k.all[key])) // there may be many readers
	for h := range k.all[key] {
		all[h.Tenure] = true
	}
	return all
}

// since returns when a hold began.
func (k *heldLocks) since(h *tenure.Hold) time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.all[h.Tenure.Lock.Key][h]
}
