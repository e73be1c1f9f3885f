package engine

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-rlock/rlock/internal/kinds"
)

// A tenure of a handle that lingers outlives its last hold: it is idle, still renewed, and the next Lock of the process goes on with it in
// memory. Whoever waits for it asks for it (ear.go), and is given it at once.
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
// Whoever asks Redis for it while it lasts sees the mark in the owner, and asks. Those that waited in Redis before that are
// looked for when it is idle for the first time (idle_look.go). So nobody of this library waits for a tenure that is idle without its process
// knowing of that.
//
// Idle tenures belong to the list below; whoever takes one out of it has the right to make calls for it (I1).

const (
	// MaxIdle bounds how many tenures of a Client are idle.
	MaxIdle = 1000
	// unkeptFor is for how long a lock is not kept again that somebody has asked for. So processes that take turns soon do that as others do.
	unkeptFor = time.Second
)

// idleTenures are those of a Client.
type idleTenures struct {
	count atomic.Int32  // of them; for those that only look whether there are any
	ear   atomic.Uint64 // the number of the time for which the ear has listened without a gap; 0: it does not
	ears  atomic.Uint64 // how many of those there were

	mu          sync.Mutex             // guards the following, and what says so in idle; no other lock is taken under it
	of          map[string]*idle       // by the key of the lock
	tags        map[uint64]*idle       // the same by the tag of the tenure
	asked       [rememberedTags]uint64 // tenures that were asked for, and seemed to be neither held nor idle
	oldest      int                    // of these
	first, last *idle                  // in the order of their last use
	timer       *time.Timer
	timerAt     time.Time            // when it fires; zero: it is not to
	unkept      map[string]time.Time // keys that somebody has asked for, and until when they are not kept
}

// idle is a tenure that may be idle, now or between two holds.
type idle struct {
	tenure *Tenure

	// Guarded by idleTenures.mu.
	until      time.Time // when it is released
	prev, next *idle     // of those that are idle
	look       look
}

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
	// Looked at when others see that it is idle, so that it or they notice.
	if (t.mayIdle() == nil || c.IsShut() || c.idle.ear.Load() == 0 || c.Hub.IsAwaited(m.waiters())) && c.idle.remove(x) {
		return false
	}
	if oldest != nil {
		c.release1(oldest)
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

// add makes a tenure idle for so long. It returns the one that has to go for it, if there are too many.
func (i *idleTenures) add(x *idle, d time.Duration) (oldest *idle, ok bool) {
	now, key := time.Now(), x.tenure.Spec.Key
	i.mu.Lock()
	defer i.mu.Unlock()
	if now.Before(i.unkept[key]) || x.look.failed(x.tenure.Spec) || slices.Contains(i.asked[:], x.tenure.Tag) {
		return nil, false
	}
	if i.of == nil {
		i.of, i.tags = make(map[string]*idle), make(map[uint64]*idle)
	}
	if len(i.of) >= MaxIdle {
		oldest = i.first
		i.unlink(oldest)
	}
	i.of[key], i.tags[x.tenure.Tag] = x, x
	x.until = now.Add(d)
	if x.prev = i.last; i.last != nil {
		i.last.next = x
	} else {
		i.first = x
	}
	i.last = x
	i.count.Store(int32(len(i.of)))
	i.setTimer(x.until)
	return oldest, true
}

// unlink takes a tenure out of the list: it is the caller's. mu is held.
func (i *idleTenures) unlink(x *idle) {
	delete(i.of, x.tenure.Spec.Key)
	delete(i.tags, x.tenure.Tag)
	if x.prev != nil {
		x.prev.next = x.next
	} else {
		i.first = x.next
	}
	if x.next != nil {
		x.next.prev = x.prev
	} else {
		i.last = x.prev
	}
	x.prev, x.next = nil, nil
	i.count.Store(int32(len(i.of)))
}

// take takes the idle tenure of a lock; nil: there is none.
func (i *idleTenures) take(key string) *idle {
	if i.count.Load() == 0 {
		return nil
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	x := i.of[key]
	if x != nil {
		i.unlink(x)
	}
	return x
}

// remove takes a tenure, if it is idle.
func (i *idleTenures) remove(x *idle) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if x == nil || i.of[x.tenure.Spec.Key] != x {
		return false
	}
	i.unlink(x)
	return true
}

// takeAll takes those whose time is over by then; all, if that is zero.
func (i *idleTenures) takeAll(now time.Time) (all []*idle) {
	i.mu.Lock()
	defer i.mu.Unlock()
	var earliest time.Time
	for x := i.first; x != nil; {
		next := x.next
		switch {
		case now.IsZero() || !now.Before(x.until):
			i.unlink(x)
			all = append(all, x)
		case earliest.IsZero() || x.until.Before(earliest):
			earliest = x.until
		}
		x = next
	}
	i.timerAt = time.Time{}
	i.setTimer(earliest)
	return all
}

// setTimer has those be released whose time is over then. The timer runs on when they are used before that, and finds nothing: it is not to be set by
// each Lock. mu is held.
func (i *idleTenures) setTimer(at time.Time) {
	switch {
	case !at.IsZero() && (i.timerAt.IsZero() || at.Before(i.timerAt)):
		i.timerAt = at
		i.timer.Reset(time.Until(at))
	case i.timerAt.IsZero():
		i.timer.Stop()
	}
}

// releaseIdle releases the idle tenures whose time is over by then, or all.
func (c *Engine) releaseIdle(now time.Time) {
	for _, x := range c.idle.takeAll(now) {
		c.release1(x)
	}
}

// release1 releases a tenure that was idle, on a goroutine of its own.
func (c *Engine) release1(x *idle) {
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
		c.release1(x)
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

// remember returns an idle tenure that is asked for. If it is not idle, it is on its way from a hold, or to one, and will not be.
func (i *idleTenures) remember(tag uint64) *idle {
	i.mu.Lock()
	defer i.mu.Unlock()
	x := i.tags[tag]
	if x == nil && !slices.Contains(i.asked[:], tag) {
		i.asked[i.oldest] = tag
		i.oldest = (i.oldest + 1) % len(i.asked)
	}
	return x
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
		c.release1(x)
	}
}

// want has the tenure be idle no more. It returns what is known of it if it was; nil otherwise.
func (t *Tenure) want() *idle {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.wanted = true
	return t.known()
}

// refrain has a lock not be kept for a while.
func (i *idleTenures) refrain(key string) {
	now := time.Now()
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(i.unkept) >= MaxIdle {
		maps.DeleteFunc(i.unkept, func(_ string, until time.Time) bool { return !now.Before(until) })
	}
	if i.unkept == nil || len(i.unkept) >= MaxIdle {
		i.unkept = make(map[string]time.Time)
	}
	i.unkept[key] = now.Add(unkeptFor)
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
