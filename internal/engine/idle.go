package engine

import (
	"context"
	"time"

	"github.com/go-rlock/rlock/internal/kinds"
)

// A tenure of a handle that lingers outlives its last hold: it is idle, still renewed, and the next Lock of the process goes on with it in
// memory. Whoever waits for it asks for it, and is given it at once.
//
//	state      event                                                   next
//	held       last unlock; nobody waits here, nobody has asked        idle
//	           last unlock otherwise                                   passed on, or released
//	idle       a Lock of this process that can have it                 held
//	           any other Lock of this process                          releasing
//	           asked; its time is over; too many others are idle;
//	           the ear is lost; Shutdown; Close                        releasing
//	           the lease ends, or the key is gone                      over: swept, and nobody is told
//	releasing  as by the unlock of a hold: a waiter here or elsewhere is given it
//
// Whoever asks Redis for it while it lasts sees the mark in the owner, and asks (asking.go). Those that waited in Redis before that are
// looked for when it is idle for the first time (idle_look.go). So nobody of this library waits for a tenure that is idle without its process
// knowing of that.
//
// Idle tenures belong to a list (idle_list.go); whoever takes one out of it has the right to make calls for it (I1).

const (
	// MaxIdle bounds how many tenures of a Client are idle.
	MaxIdle = 1000
	// unkeptFor is for how long a lock is not kept again that somebody has asked for. So processes that take turns soon do that as others do.
	unkeptFor = time.Second
)

// keepsIdle reports whether the tenure of a hold, which was taken off it, stays for the next Lock of the process.
func (h *hold) keepsIdle() bool {
	t, m := h.tenure, h.first.spec
	c := m.Engine
	x := t.mayIdle()
	if x == nil || c.IsShut() || m.Kind != t.Spec.Kind || !kinds.MarkOfTag(t.Tag).Wants(kinds.Lingers) {
		return false
	}
	oldest, ok := c.idle.add(x, m.Linger)
	if !ok {
		return false
	}
	if oldest != nil {
		c.giveUp(oldest)
	}
	// Looked at when others see that it is idle, so that it or they notice.
	if (t.mayIdle() == nil || c.IsShut() || c.idle.ear.Load() == 0 || c.Hub.IsAwaited(m.waiters())) && c.idle.remove(x) {
		return false
	}
	c.lookIfDue(x)
	return true
}

// mayIdle returns what is known of the tenure when it is idle; nil if somebody wants it.
func (t *Tenure) mayIdle() *idle {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.wanted {
		return nil
	}
	if t.callers == nil {
		t.callers = new(callers)
	}
	if t.callers.idle == nil {
		t.callers.idle = &idle{tenure: t}
	}
	return t.callers.idle
}

// known is what is known of the tenure when it is idle; nil if it never was. mu is held.
func (t *Tenure) known() *idle {
	if t.callers == nil {
		return nil
	}
	return t.callers.idle
}

// releaseIdle releases the idle tenures whose time is over by then, or all.
func (c *Engine) releaseIdle(now time.Time) {
	for _, x := range c.idle.takeAll(now) {
		c.giveUp(x)
	}
}

// giveUp releases a tenure that was idle, on a goroutine of its own.
func (c *Engine) giveUp(x *idle) {
	end := x.tenure.endIdle()
	if !c.Calls.Start() {
		end()
		return
	}
	go func() { // ends as unlocks do; Close waits for it
		defer c.Calls.Ended()
		end()
	}()
}

// endIdle has a hold stand on a tenure that was idle, which nobody is inside of, and returns the unlock of that.
func (t *Tenure) endIdle() (unlock func()) {
	t.Spec.Engine.stats.holds.Add(1) // Shutdown waits for its end
	h := t.newHold()
	l := &h.first
	l.Context, l.spec, l.hold = context.Background(), t.Spec, h
	t.mu.Lock()
	h.count, t.hold = 1, h
	t.mu.Unlock()
	return func() { releaseAll([]*Level{l}, new(unlocker), false, nil) }
}

// takeIdle has a Lock go on with the idle tenure of its lock. It returns ErrOver if there is none, or it wants another one: that is released first.
func (l *attempt) takeIdle() (*Level, error) {
	m := l.Spec
	c := m.Engine
	x := c.idle.take(m.Key)
	if x == nil {
		return nil, ErrOver
	}
	t, a := x.tenure, AcquireResult{how: passed}
	usable := m.Kind == t.Spec.Kind && m.mayPassOn() && m.canHave(t) && time.Until(c.Leases.Until(&t.Lease)) >= t.given/3
	if usable && m.Kind.Fence != nil {
		token, left, err := l.spareToken(x)
		if left {
			return nil, l.failure(err)
		}
		a.Token, usable = token, token > 0
	}
	if !usable {
		l.LeaveTo(t.endIdle(), c)
		return nil, ErrOver
	}
	l.Tenure, t.run = t, nil // and with the run its tokens, which are older than those of idle tenures
	s, err := l.enter(a)
	if err == nil {
		l.Took(PathIdle)
		c.stats.kept.Add(1)
	}
	return s, err
}

// freeIdle releases the idle tenures of locks that are about to be asked for by one call.
func (c *Engine) freeIdle(who Caller, all []*Spec) {
	for _, m := range all {
		if x := c.idle.take(m.Key); x != nil {
			who.LeaveTo(x.tenure.endIdle(), c)
		}
	}
}

// giveIdle gives the idle tenure of a lock to those that wait here.
func (c *Engine) giveIdle(key string) {
	if x := c.idle.take(key); x != nil {
		c.giveUp(x)
	}
}

// askedIdle is told by another process that it waits for an owner with that tag.
func (c *Engine) askedIdle(payload string) {
	if tag, ok := ownTag(payload); ok {
		c.askedIdleOf(tag)
	}
}

func (c *Engine) askedIdleOf(tag uint64) {
	if !kinds.MarkOfTag(tag).Wants(kinds.Lingers) {
		return
	}
	if t, ok := c.insiders.tenure(tag).(*Tenure); ok {
		c.wanted(t)
	} else if x := c.idle.remember(tag); x != nil {
		c.wanted(x.tenure)
	}
}

// triedIdle is told by another process that it has not got the lock of an owner with that tag, for which it does not wait.
func (c *Engine) triedIdle(payload string) {
	tag, ok := ownTag(payload)
	if !ok {
		return
	}
	c.idle.mu.Lock()
	x := c.idle.tags[tag]
	c.idle.mu.Unlock()
	if x != nil {
		c.wanted(x.tenure)
	}
}

// hearsIdle says that the ear listens, and may not have before: whoever asked meanwhile is found by a look.
func (c *Engine) hearsIdle() {
	c.missesIdle()
	c.idle.ear.Store(c.idle.ears.Add(1))
}

// missesIdle says that the ear does not listen: nobody can ask for what is idle, so it is released.
func (c *Engine) missesIdle() {
	c.idle.ear.Store(0)
	c.releaseIdle(time.Time{})
}

// wanted is what somebody in another process wants that asks for a tenure: it is released, now or by its last unlock.
func (c *Engine) wanted(t *Tenure) {
	x := t.want()
	c.idle.refrain(t.Spec.Key)
	if c.idle.remove(x) {
		c.giveUp(x)
	}
}

// want has the tenure be idle no more. It returns what is known of it if it was; nil otherwise.
func (t *Tenure) want() *idle {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.wanted = true
	return t.known()
}

// loseIdle ends a tenure that was lost while it was idle, if it was. It may still be there in Redis.
func (c *Engine) loseIdle(x *idle) {
	if !c.idle.remove(x) || !c.Calls.Start() {
		return
	}
	go func() { // ends soon: a call for a level of a hold before may be under way (I1)
		defer c.Calls.Ended()
		t := x.tenure
		t.awaitCallSlot()
		defer t.releaseCallSlot()
		t.forget()
	}()
}
