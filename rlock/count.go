package rlock

import (
	"time"

	"github.com/go-rlock/rlock/lua"
)

// Levels are opened and closed in memory, and the count in Redis follows: some time after a change, one call states how many levels are
// open by then. At most one such call is under way for a hold. Nobody waits for it; the last unlock does not either.
//
// Nothing is decided by that count, in Redis or here. A script that states one raises or lowers a count that is there, never to 0, and
// shortens no expiry; if the owner's field is not there, it does nothing. So a call that comes late, or twice, does no harm. If its answer
// is that the field is gone, the hold is lost, as by a renewal.

// followAfter is how long after a change the count in Redis follows. Most sections are shorter, and so cost no command; nobody looks at
// locks in Redis more often.
const followAfter = 100 * time.Millisecond

// follower is what is known of the count in Redis. All fields are guarded by hold.mu.
type follower struct {
	low, high int32       // it is one of these, or between them; 0 until that matters
	calling   bool        // a call is under way
	due       bool        // the timer runs, or its function is about to
	failed    int         // calls since one was answered
	timer     *time.Timer // calls state
}

// isStating reports whether a call for the count is under way. mu is held.
func (h *hold) isStating() bool { return h.callers != nil && h.callers.count.calling }

// follows returns what is known of the count in Redis; nil if there was one level all the time. mu is held.
func (h *hold) follows() *follower {
	if h.callers == nil {
		if h.count < 2 {
			return nil
		}
		h.callers = new(callers)
	}
	f := &h.callers.count
	if f.low == 0 {
		f.low, f.high = 1, 1
	}
	return f
}

// stated notes that a call was sent that raises the count to that, and then that it was answered.
func (h *hold) stated(count int32, answered bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.callers == nil {
		h.callers = new(callers)
	}
	f := h.follows()
	f.high = max(f.high, count)
	if answered {
		f.low = max(f.low, count)
	}
}

// follow has the count in Redis follow the open levels, if it differs. mu is held.
func (h *hold) follow() {
	f := h.follows()
	if f == nil {
		return
	}
	behind := h.levels != nil && h.loss == nil && (f.low != h.count || f.high != h.count)
	switch {
	case behind && !f.due && !f.calling:
		f.due = true
		after := followAfter << min(f.failed, 8) // 26 s at the most
		if f.timer == nil {
			f.timer = time.AfterFunc(after, h.state)
		} else {
			f.timer.Reset(after)
		}
	case !behind && f.due && f.timer.Stop():
		f.due = false
	}
}

// state makes the call; again after a while, and then after a longer one, if that fails.
func (h *hold) state() {
	c := h.mutex.client
	started := c.start() // Close waits for it
	if started {
		defer c.running.Done()
	}
	left := time.Until(c.leases.Until(&h.lease))
	if left <= 0 {
		c.leases.CatchUp() // it is lost, whoever notices first
	}
	h.mu.Lock()
	f, count := &h.callers.count, h.count
	f.due = false
	raise := f.low < count
	// Whoever has the right to make calls has it follow afterwards.
	if !started || left <= 0 || h.calling || h.levels == nil || h.loss != nil || !raise && f.high <= count {
		h.mu.Unlock()
		return
	}
	f.calling, f.low, f.high = true, min(f.low, count), max(f.high, count)
	h.mu.Unlock()

	held, err := true, errSilent
	if !c.left.isAny() || !c.left.isSilent(h.mutex.slot()) { // otherwise each hold would have a call that hangs
		held, err = h.send(count, raise, left)
	}
	h.mu.Lock()
	open := h.levels != nil // until a release is sent: if the field was gone, it was gone before that
	h.mu.Unlock()
	if err == nil && !held && open {
		h.gone()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	f.calling = false
	if f.failed++; err == nil {
		f.failed = 0
	}
	switch {
	case err != nil:
	case raise:
		f.low = max(f.low, count)
	default:
		f.high = min(f.high, count)
	}
	if !h.calling {
		h.pass()
	}
}

// send states a count, and reports whether the owner holds the lock, which is trusted for so long: the levels of a reader expire each by
// itself.
func (h *hold) send(count int32, raise bool, left time.Duration) (held bool, err error) {
	m := h.mutex
	c := m.client
	now, lease := time.Now(), m.expiry(max(left, time.Millisecond))
	if !raise {
		reply, err := c.release(c.call(&h.first, now, 0), m, lua.ReleaseArgs{
			Name: m.key, Side: m.kind.side, Owner: h.field(), Count: int(count), Lease: lease, Publish: lua.Publish(c.knownChannel(m)),
		})
		return reply.Status != lua.NotHeld, err
	}
	reply, err := lua.Acquire(c.call(&h.first, now, 0), c.rdb, lua.AcquireArgs{
		Name: m.key, Side: m.kind.side, Owner: h.field(), Count: int(count), Lease: lease,
	})
	c.answered(m.slot, err)
	return reply.Status != lua.Lost, err
}
