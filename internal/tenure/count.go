package tenure

import (
	"cmp"
	"slices"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/lua"
)

// How many levels are open on a tenure, and what Redis is told of that.
//
// Levels are opened and closed in memory, and the count in Redis follows: some time after a change, one call states how many levels are
// open by then. At most one such call is under way for a tenure. Nobody waits for it; the last unlock does not either.
//
// Nothing is decided by that count, in Redis or here. A script that states one raises or lowers a count that is there, never to 0, and
// shortens no expiry; if the owner's field is not there, it does nothing. So a call that comes late, or twice, does no harm. If its answer
// is that the field is gone, the tenure is lost, as by a renewal.

// several returns the counts of its holds and levels; nil if there was one level at a time. mu is held.
func (t *Tenure) several() *openLevels {
	if t.callers == nil {
		return nil
	}
	return t.callers.open
}

// openLevels are the holds and the open levels of a tenure, counted, so that none of them walks the others. A tenure has it from its second
// level on. All fields are guarded by tenure.mu.
type openLevels struct {
	count   int                   // of open levels
	renewed map[time.Duration]int // of those that a watchdog renews, by Lock.Watchdog
	holds   []*Hold               // in the order in which they began; those that have left have a count of 0
	live    int                   // of those that have not left
	depths  []int                 // numbers of holds, by their count
}

// severalNow is several before a second level opens. mu is held.
func (t *Tenure) severalNow() *openLevels {
	if t.callers == nil {
		t.callers = new(Callers)
	}
	c := t.callers
	if c.open == nil {
		c.open = &openLevels{renewed: make(map[time.Duration]int, 1), depths: make([]int, 1)}
		c.open.begins(t.hold)
	}
	return c.open
}

// begins adds a hold, with its level; without one, if its last unlock has begun.
func (o *openLevels) begins(h *Hold) {
	o.holds = append(o.holds, h)
	o.moves(0, h.count)
	if h.levels != nil {
		o.opens(h.levels)
	}
}

// moves notes that the count of a hold changes.
func (o *openLevels) moves(from, to int32) {
	if from == 0 {
		o.live++
	} else {
		o.depths[from]--
	}
	if to == 0 {
		o.live--
	} else {
		for int(to) >= len(o.depths) {
			o.depths = append(o.depths, 0)
		}
		o.depths[to]++
	}
	for last := len(o.depths) - 1; last > 0 && o.depths[last] == 0; last-- {
		o.depths = o.depths[:last]
	}
}

// most returns the count of the deepest hold; 0: all have left.
func (o *openLevels) most() int32 { return int32(len(o.depths)) - 1 }

// last returns the last of the holds that have not left, or nil. It forgets most of those that have.
func (o *openLevels) last() *Hold {
	if len(o.holds) > 2*o.live {
		o.holds = slices.DeleteFunc(o.holds, func(h *Hold) bool { return h.count == 0 })
	}
	for i, h := range slices.Backward(o.holds) {
		if h.count > 0 {
			return h
		}
		o.holds[i], o.holds = nil, o.holds[:i]
	}
	return nil
}

func (o *openLevels) opens(l *Level) {
	o.count++
	if l.Lock.Lease == 0 {
		o.renewed[l.Lock.Watchdog]++
	}
}

func (o *openLevels) closes(l *Level) {
	o.count--
	if w := l.Lock.Watchdog; l.Lock.Lease > 0 {
		return
	} else if o.renewed[w]--; o.renewed[w] == 0 {
		delete(o.renewed, w)
	}
}

// renewedFor returns the longest lease to which the watchdog of c renews a level; 0: none is renewed.
func (o *openLevels) renewedFor(c *Client) (ttl time.Duration) {
	for w := range o.renewed {
		ttl = max(ttl, cmp.Or(w, c.Options.WatchdogTimeout))
	}
	return ttl
}

// leaves takes a hold off a tenure on which others stand, or soon will. mu is held.
func (h *Hold) leaves() {
	h.setCount(0)
	h.Tenure.hold = nil
	if o := h.Tenure.several(); o != nil {
		h.Tenure.hold = o.last()
	}
}

// holds yields the holds, the last one first. mu is held.
func (t *Tenure) holds(yield func(*Hold) bool) {
	o := t.several()
	if o == nil {
		if t.hold != nil {
			yield(t.hold)
		}
		return
	}
	for _, h := range slices.Backward(o.holds) {
		if h.count > 0 && !yield(h) {
			return
		}
	}
}

// open reports whether levels are open, and returns the count Redis should have: the levels of the deepest hold, up to a bound (counted). On
// its way from one hold to the next the tenure has no level, but keeps a count of one. mu is held.
func (t *Tenure) open() (levels bool, count int32) {
	o := t.several()
	switch {
	case t.hold == nil:
		return false, 1
	case o == nil:
		return t.hold.levels != nil, t.hold.count
	}
	return o.count > 0, t.counted(o.most())
}

// mostReads bounds the count of a reader in Redis: each of its levels has a key there, which scripts walk past, also those of a writer that
// asks. So a section that thousands of goroutines re-enter does not keep Redis from other work.
const mostReads = 100

// counted returns what Redis is told of a count.
func (t *Tenure) counted(n int32) int32 {
	if t.Lock.Kind.Side == lua.Reader {
		return min(n, mostReads)
	}
	return n
}

// isEmpty reports whether its last level is closed and none is about to open. mu is held.
func (t *Tenure) isEmpty() bool {
	levels, _ := t.open()
	return !levels && t.coming.Load() == 0
}

// renewedFor returns the lease to which the watchdog of c renews the tenure: the longest of its open levels; 0: none is renewed. mu is
// held.
func (t *Tenure) renewedFor(c *Client) (ttl time.Duration) {
	if o := t.several(); o != nil {
		return o.renewedFor(c)
	}
	if t.hold == nil || t.hold.levels == nil {
		return 0
	}
	return t.hold.levels.Lock.RenewedFor(c)
}

// renewed is renewedFor by its own Client. mu is held.
func (t *Tenure) renewed() time.Duration { return t.renewedFor(t.Lock.Client) }

// setCount changes the number of open levels of the hold. mu is held.
func (h *Hold) setCount(n int32) {
	if o := h.Tenure.several(); o != nil {
		o.moves(h.count, n)
	}
	h.count = n
}

// opens adds a level to the open ones of the hold. mu is held.
func (h *Hold) opens(l *Level) {
	t := h.Tenure
	t.severalNow().opens(l)
	h.setCount(h.count + 1)
	h.levels.prev, l.next, h.levels = l, h.levels, l
	t.follow()
	if ttl := l.Lock.RenewedFor(l.Lock.Client); ttl > t.Lock.TTL {
		t.callers.longest = max(t.callers.longest, ttl)
	}
}

// closes takes a level out of the open ones of the hold. last: it was the last one there; empty: no level of the tenure is open, or about to
// open. mu is held.
func (h *Hold) closes(l *Level) (last, empty bool) {
	t := h.Tenure
	if l.prev != nil {
		l.prev.next = l.next
	} else {
		h.levels = l.next
	}
	if l.next != nil {
		l.next.prev = l.prev
	}
	l.prev, l.next = nil, nil
	if o := t.several(); o != nil {
		o.closes(l)
	}
	last = h.levels == nil
	if !last && t.loss == nil {
		h.setCount(h.count - 1)
	}
	t.follow()
	return last, t.isEmpty()
}

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

// follows returns what is known of the count in Redis. mu is held.
func (t *Tenure) follows() *follower {
	if t.callers == nil {
		t.callers = new(Callers)
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
	lease, ctx := m.Expiry(max(left, time.Millisecond)), c.Calls.Context(t.Section())
	if !raise {
		reply, err := m.SendRelease(ctx, lua.ReleaseArgs{
			Name: m.Key, Side: m.Kind.Side, Owner: t.Field(), Count: int(count), Lease: lease, Publish: lua.Publish(c.KnownChannel(m)),
		})
		return reply.Status != lua.NotHeld, err
	}
	reply, err := lua.Acquire(ctx, c.RDB, lua.AcquireArgs{
		Name: m.Key, Side: m.Kind.Side, Owner: t.Field(), Count: int(count), Lease: lease,
	})
	c.Calls.Answered(m.Slot(), err)
	return reply.Status != lua.Lost, err
}
