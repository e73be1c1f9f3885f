package rlocktest

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/go-rlock/rlock/rlock"
)

// follow returns a Trace that records the order and the places of Locks, and calls the given Trace.
func (c *Client) follow(to *rlock.Trace) *rlock.Trace {
	var t rlock.Trace
	if to != nil {
		t = *to
	}
	acquired, released := t.Acquired, t.Released
	t.Acquired = func(ctx context.Context, i rlock.AcquiredInfo) {
		c.bubble.check() // a call for a ctx that can end is made elsewhere
		c.order.acquired(ctx, i)
		if acquired != nil {
			acquired(ctx, i)
		}
		c.places.begin(ctx, i) // not if acquired panics: then there is no Released
	}
	t.Released = func(ctx context.Context, i rlock.ReleasedInfo) {
		c.places.end(ctx)
		if released != nil {
			released(ctx, i)
		}
	}
	return &t
}

// lockPlaces knows where the locks were taken that have not been unlocked yet.
type lockPlaces struct {
	mu  sync.Mutex // guards the following
	all map[context.Context]lockPlace
}

// lockPlace is the place of one Lock. Each Lock has a ctx of its own, re-entries included.
type lockPlace struct {
	names []string
	owner string // of the last name; "" for permits
	at    string // source position
}

func (p *lockPlaces) begin(ctx context.Context, i rlock.AcquiredInfo) {
	names := i.Names
	if names == nil {
		names = []string{i.Name}
	}
	place := lockPlace{names, rlock.Owner(ctx), caller()}
	if place.at == "" { // a HoldElsewhere, which is not reported
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all == nil {
		p.all = make(map[context.Context]lockPlace)
	}
	p.all[ctx] = place
}

func (p *lockPlaces) end(ctx context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.all, ctx)
}

// of describes where a lock was taken: by that owner if that is known, otherwise by anybody. It is "" for a lock of an rlock.Client of the
// test's own.
func (p *lockPlaces) of(name, owner string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var owners, anybody []string
	for _, place := range p.all {
		if !slices.Contains(place.names, name) {
			continue
		}
		anybody = append(anybody, place.at)
		if place.owner == owner {
			owners = append(owners, place.at)
		}
	}
	if owners == nil {
		owners = anybody
	}
	if owners == nil {
		return ""
	}
	slices.Sort(owners)
	return ", locked in " + strings.Join(slices.Compact(owners), " and ")
}

// library is what the names of all functions of the library itself begin with.
const library = "github.com/go-rlock/rlock/"

// caller returns the source position that called the library; "" if that is in this kit.
func caller() string {
	var pcs [64]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(1, pcs[:])])
	for {
		f, more := frames.Next()
		file := filepath.Base(f.File)
		inKit := strings.HasPrefix(f.Function, library+"rlocktest.") && !strings.HasSuffix(file, "_test.go")
		inTrace := inKit && (file == "order.go" || file == "trace.go")
		switch {
		case inTrace, strings.HasPrefix(f.Function, library+"rlock."), strings.HasPrefix(f.Function, library+"internal/"):
		case inKit:
			return ""
		default:
			return fmt.Sprintf("%s:%d", file, f.Line)
		}
		if !more {
			return "an unknown place"
		}
	}
}
