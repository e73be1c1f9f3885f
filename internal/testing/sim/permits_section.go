package sim

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-rlock/rlock/rlock"
)

// permit is a section: the permits of one Acquire.
type permit struct {
	process *process
	ctx     context.Context
	ids     []string
	slots   []int
	began   time.Time
	fixed   bool      // it ends by itself
	ended   bool      // its permits were given back by their ids, or their leases changed
	excused time.Time // since when the server may not have it, and nobody could notice; zero: it has
	missing time.Time // since when the server does not have it; zero: it has
	over    bool      // its Release is called
	unwatch func() bool
}

func (s *permit) isLive() bool { return !s.over && s.ctx.Err() == nil && !s.process.isDead() }

// isThere reports whether all permits of a section are; mu is held.
func (e *expiring) isThere(s *permit) bool {
	return !slices.ContainsFunc(s.ids, func(id string) bool { return !e.has(id) })
}

func (s *permit) String() string {
	var ids []string
	for _, id := range s.ids {
		ids = append(ids, short(id))
	}
	return "the holder of permit " + strings.Join(ids, ", ") + " in p" + strconv.Itoa(s.process.number)
}

// begins notes that an Acquire is called.
func (e *expiring) begins(p *process, n int64) *permitWait {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.calls++
	v := e.comes(p, n)
	v.call = e.calls
	e.serve(e.available())
	return v
}

// enter notes that it has returned, with s if there is no error.
func (e *expiring) enter(v *permitWait, s *permit) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.goes(v)
	defer func() { e.serve(e.available()) }()
	if s == nil {
		return
	}
	s.unwatch = func() bool { return true }
	for _, id := range s.ids {
		i := e.issued[id]
		if i == nil { // the server has it no more
			i = &issue{process: s.process}
			e.issued[id] = i
		}
		if i.section != nil {
			e.violation("two owners of a permit (G1): %v and %v", i.section, s)
		}
		i.section, i.orphan = s, time.Time{}
	}
	e.sections = append(e.sections, s)
	if !s.isLive() {
		return
	}
	if v.began.Before(e.forgot) && !e.isThere(s) {
		s.excused = e.forgot
	}
	if s.excused.IsZero() {
		for _, other := range e.sections {
			if other == s || !other.isLive() || !other.excused.IsZero() {
				continue
			}
			for _, slot := range s.slots {
				if slices.Contains(other.slots, slot) {
					e.violation("two owners of slot %d (G1): %v and %v", slot, other, s)
				}
			}
		}
		if !e.isThere(s) {
			e.violation("the server does not have %v when its Acquire returns (G1)", s)
		}
	}
	s.unwatch = context.AfterFunc(s.ctx, func() { e.isTold(s) })
}

// isTold is called at the instant when the ctx of a section ends before its Release.
func (e *expiring) isTold(s *permit) {
	e.mu.Lock()
	defer e.mu.Unlock()
	var loss *rlock.LostError
	if s.over || !s.excused.IsZero() || s.process.isDead() || !errors.As(context.Cause(s.ctx), &loss) || loss.Name != e.o.name.Text {
		return
	}
	if loss.Reason == rlock.LostExpired && !e.isThere(s) {
		e.violation("%v learns of the end of its lease at %v only when the server has dropped it (G2)", s, e.o.world.since(loss.Since))
	}
	w := e.o.world
	if (loss.Reason == rlock.LostExpired || loss.Reason == rlock.LostGone) && !s.fixed && !s.ended && w.quiet() > w.settle() {
		e.violation("%v is lost, and nothing disturbed it: %v", s, loss)
	}
}

// leave notes that the Release of a section is about to be called. It reports whether it may fail.
func (e *expiring) leave(s *permit) (excused bool) {
	s.unwatch()
	e.mu.Lock()
	defer e.mu.Unlock()
	s.over = true
	e.happens(len(e.waits))
	return s.fixed || s.ended || !s.excused.IsZero() || s.ctx.Err() != nil
}

// left notes that it has returned.
func (e *expiring) left(s *permit, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.happens(len(e.waits))
	e.sections = slices.DeleteFunc(e.sections, func(other *permit) bool { return other == s })
	for _, id := range s.ids {
		if i := e.issued[id]; i != nil {
			i.section = nil
		}
		if e.has(id) && err == nil {
			e.violation("the server still has %v after its Release returned", s)
		}
	}
	e.forget()
}
