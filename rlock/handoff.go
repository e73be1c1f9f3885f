package rlock

import (
	"time"

	"github.com/go-rlock/rlock/lua"
)

// An unlock gives the hold to the first goroutine of the same process that waits for it, with one script
// call instead of two and without anybody else being told. The one that unlocks, the claimant, stands for
// the waiter while its call is under way: it has the waiter's turn, and makes the calls for its
// hold (I1). A waiter that gives up meanwhile returns at once, and its claimant finishes for it.
//
// If the reply is lost, the release that follows tells: if the owner still had the lock, it was not handed off,
// and cannot be any more; if it had not, the waiter asks whether it has it.

// run is how many hand-offs followed each other, and since when. The holds pass it on to each other.
type run struct {
	length int
	began  time.Time
}

// over reports whether there should be no further hand-off. A nil run is one that has not begun.
func (r *run) over(o HandOff, now time.Time) bool {
	if r == nil {
		return o.Most <= 0 || o.For <= 0
	}
	return r.length >= o.Most || now.Sub(r.began) >= o.For
}

// claim tells the queue that the hold ends, and claims the waiter that gets it: nil if there is none or others should
// have the lock first.
func (h *hold) claim(now time.Time) *locking {
	c, q := h.mutex.client, h.mutex.queue()
	if c.options.Replicas > 0 || h.run.over(c.options.HandOff, now) {
		c.hub.Ending(q)
		return nil
	}
	w := c.hub.Claim(q)
	if w == nil {
		return nil
	}
	if h.run == nil {
		h.run = &run{began: now}
	}
	return w.Value.(*locking) //nolint:errcheck // no other value is ever set
}

// handOff makes the one attempt to hand the hold off to a claimed waiter. Unless it fails, the claim is
// over.
func (h *hold) handOff(next *locking, until time.Time) released {
	c, m := h.mutex.client, next.mutex
	args := lua.HandOffArgs{Name: m.name, Fence: m.fenceOf(), Owner: h.field(), Next: next.hold.field(), Lease: m.ttl()}
	sent := time.Now()
	ctx := h.call(sent, until)
	reply, err := m.kind.handOff(ctx, c.rdb, args)
	switch granted := reply.Status == lua.Acquired; {
	case err == nil && !granted && ctx.isRepeated():
		return released{late: true, err: errRepeated}
	case err != nil:
		return released{late: mayHaveRun(err), err: err}
	case !granted:
		next.unclaim(true) // nobody knows who has the lock
		return released{}
	}
	h.run.length++
	next.hold.run = h.run
	next.handed = answer{reply, sent}
	if !next.waiter.Grant(m.ttl()) {
		undo := func() { next.undo(next.handed, nil) }
		if c.start() { // not here: the hold that was handed off has ended well, however long this takes
			go func() { // ends when Redis has answered, or with the call's time-out; Close waits for it
				defer c.running.Done()
				undo()
			}()
		} else {
			undo()
		}
	}
	return released{sent: sent, held: true}
}

// notHandedOff ends the claim after an attempt that failed, when it is known what came of the release
// instead.
func (l *locking) notHandedOff(r released) {
	if r.late && r.err != nil { // it may still run
		l.hold.lateAcquire(l.mutex.ttl())
	} else { // also a script that was refused: it may have been half-way
		l.hold.doubted(time.Now().Add(min(l.mutex.ttl(), maxSweep))).unsure = true
	}
	l.unclaim(r.late || r.err != nil)
}

// unclaim ends a claim that came to nothing. If turn is true, the waiter is to ask Redis.
func (l *locking) unclaim(turn bool) {
	if !l.waiter.Unclaim(turn) {
		l.undo(answer{}, nil)
	}
}
