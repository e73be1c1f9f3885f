package tenure

import (
	"time"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/lua"
)

// Levels are opened and closed in memory, and the count in Redis follows: some time after a change, one call states how many levels are
// open by then. At most one such call is under way for a tenure. Nobody waits for it; the last unlock does not either.
//
// Nothing is decided by that count, in Redis or here. A script that states one raises or lowers a count that is there, never to 0, and
// shortens no expiry; if the owner's field is not there, it does nothing. So a call that comes late, or twice, does no harm. If its answer
// is that the field is gone, the tenure is lost, as by a renewal.

// followAfter is the delay before the count in Redis follows a change. Most sections are shorter and so cost no command, and people
// inspect locks in Redis less often.
const followAfter = 100 * time.Millisecond

// follower is the known state of the count in Redis. All fields are guarded by tenure.mu.
type follower struct {
	low, high int32       // bounds of the count; 0 until needed
	calling   bool        // a call is under way
	due       bool        // the timer runs, or its function is about to
	failed    int         // calls since one was answered
	timer     *time.Timer // calls state
}

// isStating reports whether a call for the count is under way. mu is held.
func (t *Tenure) isStating() bool { return t.callers != nil && t.callers.count.calling }

// follows returns what is known of the count in Redis. mu is held.
func (t *Tenure) follows() *follower {
	if t.callers == nil {
		t.callers = new(callers)
	}
	f := &t.callers.count
	if f.low == 0 {
		f.low, f.high = 1, 1
	}
	return f
}

// Stated records that a call raising the count was sent, and later that it was answered.
func (t *Tenure) Stated(count int32, answered bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f := t.follows()
	f.high = max(f.high, count)
	if answered {
		f.low = max(f.low, count)
	}
}

// follow schedules an update of the count in Redis, if it differs from the open levels. mu is held.
func (t *Tenure) follow() {
	if t.Majority != nil {
		return // the count stays 1 on all servers
	}
	if t.callers == nil && (t.hold == nil || t.hold.count < 2) {
		return // there was one level all the time
	}
	f := t.follows()
	levels, count := t.open()
	behind := levels && t.loss == nil && (f.low != count || f.high != count)
	switch {
	case behind && !f.due && !f.calling:
		f.due = true
		after := followAfter << min(f.failed, 8) // 26 s at the most
		if f.timer == nil {
			f.timer = time.AfterFunc(after, t.state)
		} else {
			f.timer.Reset(after)
		}
	case !behind && f.due && f.timer.Stop():
		f.due = false
	}
}

// state makes the call, and retries after growing pauses if it fails.
func (t *Tenure) state() {
	c := t.Lock.Client
	started := c.Calls.Start() // Close waits for it
	if started {
		defer c.Calls.Ended()
	}
	left := time.Until(c.Leases.Until(&t.Lease))
	if left <= 0 {
		c.Leases.CatchUp() // the lease has expired, even if the renewer has not noticed yet
	}
	t.mu.Lock()
	f := &t.callers.count
	levels, count := t.open()
	f.due = false
	raise := f.low < count
	// The owner of the right to make calls updates the count afterwards.
	if !started || left <= 0 || t.calling || !levels || t.loss != nil || !raise && f.high <= count {
		t.mu.Unlock()
		return
	}
	f.calling, f.low, f.high = true, min(f.low, count), max(f.high, count)
	t.mu.Unlock()

	held, err := true, calls.ErrSilent
	if !c.Calls.AnyLeft() || !c.Calls.IsSilent(t.Lock.Slot()) { // otherwise each tenure would have a call that hangs
		held, err = t.send(count, raise, left)
	}
	t.mu.Lock()
	levels, _ = t.open() // there are some until a release is sent: if the field was gone, it was gone before that
	t.mu.Unlock()
	if err == nil && !held && levels {
		t.Gone()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
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
	if !t.calling {
		t.pass()
	}
}

// send states a count and reports whether the owner holds the lock. left is the trusted time: each of a reader's levels has its own
// expiry.
func (t *Tenure) send(count int32, raise bool, left time.Duration) (held bool, err error) {
	m := t.Lock
	c := m.Client
	now, lease := time.Now(), m.Expiry(max(left, time.Millisecond))
	if !raise {
		reply, err := c.SendRelease(c.Calls.Context(t.Section(), now, 0), m, lua.ReleaseArgs{
			Name: m.Key, Side: m.Kind.Side, Owner: t.Field(), Count: int(count), Lease: lease, Publish: lua.Publish(c.KnownChannel(m)),
		})
		return reply.Status != lua.NotHeld, err
	}
	reply, err := lua.Acquire(c.Calls.Context(t.Section(), now, 0), c.RDB, lua.AcquireArgs{
		Name: m.Key, Side: m.Kind.Side, Owner: t.Field(), Count: int(count), Lease: lease,
	})
	c.Calls.Answered(m.Slot(), err)
	return reply.Status != lua.Lost, err
}
