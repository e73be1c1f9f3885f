package engine

import (
	"time"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/lua"
)

// A tenure of a handle with WithLinger outlives its last hold: it is idle, still renewed, and the next Lock of the process continues it in
// memory. A waiter asks for it, and it is released at once.
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
// A Lock that Redis refuses meanwhile sees the mark in the owner, and asks (asking.go). A look finds those that were waiting before the
// tenure first became idle (idle_look.go). So no waiter of this library waits for an idle tenure unknown to its process.
//
// Idle tenures are in a list (idle_list.go). Taking a tenure out of it gives the right to make calls for it (I1).

const (
	// MaxIdle bounds the number of idle tenures of a Client.
	MaxIdle = 1000
	// unkeptFor is how long a lock is not kept after somebody asked for it, so that processes taking turns soon behave as without WithLinger.
	unkeptFor = time.Second
)

// keepsIdle makes the tenure of a hold, already detached from it, idle for the next Lock of the process. It reports whether it did.
func (h *Hold) keepsIdle() bool {
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
	// Checked again now that others can see it idle: either they notice it, or this does.
	if (t.mayIdle() == nil || c.IsShut() || c.idle.ear.Load() == 0 || c.Hub.IsAwaited(m.Waiters())) && c.idle.remove(x) {
		return false
	}
	c.lookIfDue(x)
	return true
}

// mayIdle returns the idle state of the tenure, made if needed; nil if somebody wants the lock.
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

// known returns the idle state of the tenure; nil if it has none. mu is held.
func (t *Tenure) known() *idle {
	if t.callers == nil {
		return nil
	}
	return t.callers.idle
}

// releaseIdle releases the idle tenures that are due at now; all, if now is zero.
func (c *Engine) releaseIdle(now time.Time) {
	for _, x := range c.idle.takeAll(now) {
		c.giveUp(x)
	}
}

// giveUp releases a tenure taken out of the list, on a goroutine of its own, which closes ended.
func (c *Engine) giveUp(x *idle) (ended <-chan struct{}) {
	over := make(chan struct{})
	by := &unlocker{counted: c.Calls.Start()}
	go func() { // ends as unlocks do; Close waits for it
		if by.counted {
			defer c.Calls.Ended()
		}
		defer close(over)
		x.tenure.end(by)
	}()
	return over
}

// takeIdle lets a Lock continue the idle tenure of its lock. It returns ErrOver if there is none, or if it does not suit: then it is
// released first. That takes a moment, or no longer than one call may take: after that the Lock waits for its end as for that of any
// hold here.
func (l *Attempt) takeIdle() (*Level, error) {
	m := l.Spec
	c := m.Engine
	x := c.idle.take(m.Key)
	if x == nil {
		return nil, ErrOver
	}
	t, a, until := x.tenure, AcquireResult{how: passed}, l.callEnds()
	usable := m.Kind == t.Spec.Kind && m.mayPassOn() && m.canHave(t) && time.Until(c.Leases.Until(&t.Lease)) >= t.given/3
	if usable && m.Kind.Fence != nil {
		token, left, err := l.nextToken(t, until)
		if left {
			c.giveUp(x)
			if l.isOver() {
				return nil, l.Failure(err)
			}
			return nil, ErrOver
		}
		a.Token, usable = token, token > 0
	}
	if !usable {
		l.awaitEnd(c.giveUp(x), until)
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

// nextToken raises one more token for a tenure. If the caller leaves meanwhile, or it takes until then, left is true.
func (l *Attempt) nextToken(t *Tenure, until time.Time) (token int64, left bool, err error) {
	m := l.Spec
	return Leavable(l.Ctx, m, until, func(<-chan struct{}) (int64, error) {
		token, err := lua.NextToken(m.Engine.Calls.Context(l.Ctx, time.Now(), 0), m.Engine.RDB, m.Key, m.FenceKey(), t.Field())
		m.Engine.Calls.Answered(m.Slot, err)
		return token, err
	}, nil)
}

// freeIdle releases the idle tenures of locks that one call is about to ask for.
func (c *Engine) freeIdle(who Caller, all []*Spec) {
	var ended []<-chan struct{}
	for _, m := range all {
		if x := c.idle.take(m.Key); x != nil {
			ended = append(ended, c.giveUp(x))
		}
	}
	until := who.callEnds()
	for _, e := range ended {
		who.awaitEnd(e, until)
	}
}

// callEnds returns when a call that begins now, and has to precede that of the Lock, is left.
func (c Caller) callEnds() time.Time {
	end := time.Now().Add(calls.Timeout)
	if !c.Limit.IsZero() {
		end = calls.Earlier(end, c.Limit)
	}
	return end
}

// isOver reports whether the Lock must end.
func (l *Attempt) isOver() bool {
	return l.Ctx.Err() != nil || l.Spec.Engine.Calls.IsClosed() || !l.Limit.IsZero() && !time.Now().Before(l.Limit)
}

// awaitEnd waits for the end of what precedes a Lock, at most until then, or until the caller leaves. Close ends it, too.
func (c Caller) awaitEnd(ended <-chan struct{}, until time.Time) {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-ended:
	case <-timer.C:
	case <-c.Ctx.Done():
	}
}

// giveIdle releases the idle tenure of a lock to the waiters here.
func (c *Engine) giveIdle(key string) {
	if x := c.idle.take(key); x != nil {
		c.giveUp(x)
	}
}

// askedIdle handles a message that another process waits for the owner with that tag.
func (c *Engine) askedIdle(payload string) {
	if tag, ok := ownTag(payload); ok {
		c.askedIdleOf(tag)
	}
}

// askedFor handles that another process waits for the owner with that tag. A holder that is told may unlock at once, so it is known before
// that the lock is not to be kept.
func (c *Engine) askedFor(tag uint64) {
	c.askedIdleOf(tag)
	c.askables.heardOf(tag)
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

// triedIdle handles a message that an owner with that tag caused a refusal of a Lock that does not wait.
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

// hearsIdle notes that the ear is live, possibly after a gap. Idle tenures are released; new ones need a look for requests missed in the
// gap.
func (c *Engine) hearsIdle() {
	c.missesIdle()
	c.idle.ear.Store(c.idle.ears.Add(1))
}

// missesIdle notes that the ear is not live: nobody can ask for idle tenures, so they are released.
func (c *Engine) missesIdle() {
	c.idle.ear.Store(0)
	c.releaseIdle(time.Time{})
}

// wanted handles a request from another process: the tenure is released, now if it is idle, otherwise by its last unlock.
func (c *Engine) wanted(t *Tenure) {
	x := t.want()
	c.idle.refrain(t.Spec.Key)
	if c.idle.remove(x) {
		c.giveUp(x)
	}
}

// want stops the tenure from becoming idle again. It returns its idle state; nil if it has none.
func (t *Tenure) want() *idle {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.wanted = true
	return t.known()
}

// loseIdle ends a tenure that was lost while idle; otherwise it does nothing. The tenure may still exist in Redis.
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
