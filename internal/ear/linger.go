package ear

import (
	"time"

	"github.com/go-rlock/rlock/internal/engine"
	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/internal/tenure"
	"github.com/go-rlock/rlock/lua"
)

// A tenure of a handle with WithLinger outlives its last hold: it is kept, still renewed, and the next Lock of the process continues it in
// memory. A waiter asks for it, and it is released at once.
//
//	state      event                                                   next
//	held       last unlock; nobody waits here, nobody has asked        kept
//	           last unlock otherwise                                   passed on, or released
//	kept       a Lock of this process that can have it                 held
//	           any other Lock of this process                          releasing
//	           asked; its time is over; too many others are kept;
//	           the ear is lost; Shutdown; Close                        releasing
//	           the lease ends, or the key is gone                      over: swept, and nobody is told
//	releasing  as by the unlock of a hold: a waiter here or elsewhere is given it
//
// A Lock that Redis refuses meanwhile sees the mark in the owner, and asks (yield_ask.go). A look finds those that were waiting before the
// tenure was first kept (linger_look.go). So no waiter of this library waits for a kept tenure unknown to its process.
//
// Kept tenures are in a list (linger_list.go). Taking a tenure out of it gives the right to make calls for it (I1).

const (
	// MaxKept bounds the number of kept tenures of a Client.
	MaxKept = 1000
	// unkeptFor is how long a lock is not kept after somebody asked for it, so that processes taking turns soon behave as without WithLinger.
	unkeptFor = time.Second
)

// Keep keeps the tenure of a hold for the next Lock of the process, unless somebody wants the lock. It reports whether it did.
func (e *Ear) Keep(h *tenure.Hold) bool {
	t, m := h.Tenure, h.First.Lock
	if m.Kind != t.Lock.Kind || !kinds.CapabilityOfTag(t.Tag).Wants(kinds.Lingers) {
		return false
	}
	x := stateOf(t)
	instead, ok := e.kept.add(e, x, m.Linger)
	if !ok {
		return false
	}
	if instead != nil {
		e.end(instead)
	}
	// Checked again now that others can see it: either they notice it, or this does.
	if (e.kept.ear.Load() == 0 || e.Hub.IsAwaited(m.Waiters())) && e.kept.remove(e, t) {
		e.continues(x)
		return false
	}
	e.lookIfDue(x)
	return true
}

// Take returns the kept tenure of the lock for a Lock that continues it. If it does not suit, it is released first. That takes a moment, or
// no longer than one call may take: after that the Lock waits for its end as for that of any hold here.
func (e *Ear) Take(who tenure.Caller, m *tenure.Lock) (t *tenure.Tenure, token int64, left bool, err error) {
	x := e.kept.take(e, m.Key)
	if x == nil {
		return nil, 0, false, nil
	}
	until, usable := who.CallEnds(), m.CanContinue(x.tenure)
	if usable && m.Kind.Fence != nil {
		token, left, err = e.nextToken(who, m, x.tenure, until)
		usable = token > 0
	}
	switch {
	case left:
		e.end(x)
		return nil, 0, who.Ctx.Err() != nil || e.Calls.IsClosed() || !who.Limit.IsZero() && !time.Now().Before(who.Limit), err
	case !usable:
		who.AwaitEnd(e.end(x), until)
		return nil, 0, false, nil
	}
	e.continues(x)
	return x.tenure, token, false, nil
}

// nextToken raises one more token for a tenure. If the caller leaves meanwhile, or it takes until then, left is true.
func (e *Ear) nextToken(who tenure.Caller, m *tenure.Lock, t *tenure.Tenure, until time.Time) (token int64, left bool, err error) {
	return tenure.Leavable(who.Ctx, m, until, func(<-chan struct{}) (int64, error) {
		token, err := lua.NextToken(e.Calls.Context(who.Ctx), e.RDB, m.Key, m.Fence, t.Field())
		e.Calls.Answered(m.Slot(), err)
		return token, err
	}, nil)
}

// Free begins to release the kept tenure of a lock.
func (e *Ear) Free(key string) (ended <-chan struct{}) {
	if x := e.kept.take(e, key); x != nil {
		return e.end(x)
	}
	return nil
}

// FreeAll begins to release all kept tenures.
func (e *Ear) FreeAll() { e.releaseDue(time.Time{}) }

// releaseDue releases the kept tenures that are due at now; all, if now is zero.
func (e *Ear) releaseDue(now time.Time) {
	for _, x := range e.kept.takeAll(e, now) {
		e.end(x)
	}
}

// Lost ends a tenure that was lost while it was kept. It may still exist in Redis.
func (e *Ear) Lost(t *tenure.Tenure) {
	if e.kept.remove(e, t) {
		e.continues(stateOf(t))
		e.Calls.Background(t.ForgetInTurn) // which waits for the end of calls
	}
}

// keepNot handles a request for the owner with that tag: its tenure is released, now if it is kept, otherwise by its last unlock.
func (e *Ear) keepNot(tag uint64) {
	if !kinds.CapabilityOfTag(tag).Wants(kinds.Lingers) {
		return
	}
	var held *keptTenure
	if t := e.Open.Tenure(tag); t != nil {
		held = stateOf(t)
	}
	if x := e.kept.want(tag, held); x != nil {
		e.releaseWanted(x)
	}
}

// heardTried handles a message that an owner with that tag caused a refusal of a Lock that does not wait.
func (e *Ear) heardTried(payload string) {
	if tag, ok := ownTag(payload); ok {
		if x := e.kept.tagged(tag); x != nil {
			e.releaseWanted(x)
		}
	}
}

// releaseWanted releases a tenure that others want, if it is kept.
func (e *Ear) releaseWanted(x *keptTenure) {
	e.kept.markContended(x.tenure.Lock.Key)
	if e.kept.remove(e, x.tenure) {
		e.end(x)
	}
}

// isContended notes that a Lock waits for another process.
func (e *Ear) isContended(l *engine.Attempt) {
	if l.Lock.Linger > 0 && !e.IsOwn(l.Refusal().Holder) {
		e.kept.markContended(l.Lock.Key)
	}
}

// lives notes that the ear is live, possibly after a gap. Kept tenures are released; new ones need a look for requests missed in the gap.
// So do askable ones.
func (e *Ear) lives() {
	e.keepsNone()
	e.kept.ear.Store(e.kept.ears.Add(1))
	e.askables.mayHaveMissed()
}

// keepsNone notes that the ear is not live: nobody can ask for kept tenures, so they are released.
func (e *Ear) keepsNone() {
	e.kept.ear.Store(0)
	e.FreeAll()
}
