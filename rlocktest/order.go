package rlocktest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/go-rlock/rlock/internal/tenure"
	"github.com/go-rlock/rlock/rlock"
)

// LockOrder fails the test at its end if its Locks were taken in orders that could deadlock, even if none did: "b" under "a" in one place,
// and "a" under "b" in another, or a longer cycle. Call it first: it only sees later Locks.
//
// The names of a group count as one lock. With groups "order" and "stock", "stock:7" under "order:1" conflicts with "order:2" under
// "stock:3". Within a group, names must be taken in ascending order everywhere, or in descending order everywhere. If group is nil, each
// name is its own group; see [ByPrefix].
//
// Not reported, because they cannot deadlock:
//
//   - a Lock that re-enters, and a TryLock that does not wait,
//   - the members of an [rlock.All] among each other,
//   - readers, if nobody writes,
//   - opposite orders under a common outer lock, which keeps them apart.
//
// It covers the Locks of this Client and its [Client.Elsewhere]. It does not cover semaphores, [rlock.Acquire], which waits
// outside of its caller's section, or an rlock.Client made by the test.
func (c *Client) LockOrder(group func(name string) string) {
	if group == nil {
		group = func(name string) string { return name }
	}
	c.order.begin(group)
}

// ByPrefix groups names for [Client.LockOrder] by the text before the first colon: "order" for "order:42".
func ByPrefix(name string) string {
	prefix, _, _ := strings.Cut(name, ":")
	return prefix
}

// lockOrder records the locks taken under others.
type lockOrder struct {
	mu      sync.Mutex               // guards the following
	group   func(name string) string // nil: LockOrder was not called
	writers map[string]bool          // groups held by anybody other than readers
	edges   []*orderEdge
}

// orderEdge is a Lock taken under another lock.
type orderEdge struct {
	under, takes held
	gates        map[string]held // the other locks carried by the ctx
	at           string          // source position
}

// held is a lock being taken.
type held struct {
	name, group string
	shared      bool
}

func (o *lockOrder) begin(group func(name string) string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.group, o.writers, o.edges = group, make(map[string]bool), nil
}

// acquired records a Lock and the locks it was taken under.
func (o *lockOrder) acquired(ctx context.Context, i rlock.AcquiredInfo) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.group == nil {
		return
	}
	names := i.Names
	if names == nil {
		names = []string{i.Name}
	}
	taken, outer := make(map[string]held), make(map[string]held)
	entered := make(map[string]bool) // by re-entry, or readers by the writer around them
	for _, l := range tenure.HeldBy(ctx) {
		h := held{l.Name, o.group(l.Name), l.Shared}
		_, again := taken[l.Name]
		switch {
		case !slices.Contains(names, l.Name):
			if before, ok := outer[l.Name]; !ok || before.shared {
				outer[l.Name] = h
			}
		case again:
			entered[l.Name] = entered[l.Name] || taken[l.Name].shared // a writer waits for the other readers, even if it reads itself
		default:
			taken[l.Name], entered[l.Name] = h, l.Again
		}
	}
	at := ""
	for name, h := range taken {
		if !h.shared {
			o.writers[h.group] = true
		}
		if entered[name] || i.Tried {
			continue
		}
		for _, under := range outer {
			if at == "" {
				at = caller()
			}
			e := &orderEdge{under: under, takes: h, gates: maps.Clone(outer), at: at}
			delete(e.gates, under.name)
			if !slices.ContainsFunc(o.edges, e.equals) {
				o.edges = append(o.edges, e)
			}
		}
	}
}

func (e *orderEdge) equals(o *orderEdge) bool {
	return e.under == o.under && e.takes == o.takes && maps.Equal(e.gates, o.gates)
}

// longestOrder bounds the length of reported cycles.
const longestOrder = 5

// circles describes the orders that could deadlock.
func (o *lockOrder) circles() (all []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	seen := make(map[string]bool) // cycles of groups already reported
	for i, first := range o.edges {
		o.circle(o.edges[i:], []*orderEdge{first}, func(circle []*orderEdge) {
			groups := make([]string, len(circle))
			for i, e := range circle {
				groups[i] = e.under.group
			}
			slices.Sort(groups)
			if key := fmt.Sprintf("%q", groups); !seen[key] {
				seen[key] = true
				all = append(all, describeCircle(circle))
			}
		})
	}
	return all
}

// circle calls found for each cycle that begins with path.
func (o *lockOrder) circle(edges []*orderEdge, path []*orderEdge, found func([]*orderEdge)) {
	first, last := path[0], path[len(path)-1]
	if len(path) > 1 && o.leads(last, first) {
		found(path)
	}
	if len(path) == longestOrder {
		return
	}
	for _, e := range edges {
		if o.leads(last, e) && !slices.ContainsFunc(path, func(p *orderEdge) bool { return p == e || p.excludes(e) }) {
			o.circle(edges, append(slices.Clip(path), e), found)
		}
	}
}

// leads reports whether a Lock waiting as in a could wait for a lock held as in b.
func (o *lockOrder) leads(a, b *orderEdge) bool {
	switch wants, has := a.takes, b.under; {
	case wants.group != has.group:
		return false
	case wants.shared && has.shared && !o.writers[has.group]:
		return false
	case a.under.group == a.takes.group && b.under.group == b.takes.group: // names of one group conflict only in different orders
		return (a.under.name < a.takes.name) != (b.under.name < b.takes.name)
	}
	return true
}

// excludes reports whether two Locks can never wait at the same time, because an outer lock keeps their sections apart.
func (e *orderEdge) excludes(o *orderEdge) bool {
	for name, gate := range e.gates {
		if other, ok := o.gates[name]; ok && (!gate.shared || !other.shared) {
			return true
		}
	}
	return false
}

func describeCircle(circle []*orderEdge) string {
	var texts []string
	for _, e := range circle {
		texts = append(texts, fmt.Sprintf("%q under %q (%s)", e.takes.name, e.under.name, e.at))
	}
	return "locks are taken in orders that could deadlock: " + strings.Join(texts, ", and ") + "; keep one order, or take them together with All"
}
