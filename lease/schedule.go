package lease

import (
	"cmp"
	"math"
	"math/rand/v2"
	"time"
)

// The life of one lease: how it is kept, renewed and released, and when its renewals are due.

// Keep starts tracking l for k: l is trusted until `until`. It is renewed for ttl every third of that, or has a fixed
// length if ttl is 0. ttl counts in whole milliseconds.
//
// A Lease is kept once: Keep panics on a second call with l. After Close, Keep tracks nothing and returns false; only
// Until still answers.
func (r *Renewer) Keep(l *Lease, k Keeper, until time.Time, ttl time.Duration) bool {
	return r.KeepShort(l, k, until, ttl, ttl)
}

// KeepShort is Keep for a lease renewed for ttl but first granted for the time first, which may be shorter: its first
// renewal is due a third of that after the grant was requested.
func (r *Renewer) KeepShort(l *Lease, k Keeper, until time.Time, first, ttl time.Duration) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l.state != idle {
		panic("lease: Keep of a lease that was kept before")
	}
	l.until = l.upTo(r.at(until))
	if r.closed {
		l.state = ended
		return false
	}
	l.keeper, l.ttl, l.state = k, toMillis(ttl), kept
	if first < ttl {
		l.state = given
	}
	if ttl > 0 || l.guarded {
		r.schedule(l, newJitter(), cmp.Or(first, r.ttl), never)
	}
	r.ends.push(l, l.until)
	r.wakeBy(l.until)
	return true
}

// Limit bounds the trusted time of l, which is not kept yet: it ends at limit, whatever renews it. Once the trusted
// time reaches the limit, renewals stop.
func (r *Renewer) Limit(l *Lease, limit time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l.limit = max(r.at(limit), 1) // 0 is none
}

// Update sets the ttl of l's renewals, see [Renewer.Keep], and moves the trusted time to `until` if that is later
// (never earlier). It does nothing if l is lost, stopped or being released.
//
// It works at any time. If l is in a call in flight and ttl is 0, a success of that call no longer moves the trusted
// time.
func (r *Renewer) Update(l *Lease, until time.Time, ttl time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || !l.isKept() {
		return
	}
	at := l.upTo(r.at(until))
	moved := at > l.until
	if moved {
		l.until = at
		r.ends.move(l, at)
	}
	if !moved && l.ttl == toMillis(ttl) {
		return
	}
	l.ttl = toMillis(ttl)
	// A later end means that the expiry was extended by other means (a re-entry), which is as good as a renewal.
	l.tries = 0
	if l.place == inCall || l.place == inCallSoon {
		return // finish decides what comes next
	}
	by := never
	if l.guarded {
		by = r.dueOf(l) // must not be put off again and again
	}
	r.unschedule(l)
	if ttl > 0 || l.guarded {
		r.schedule(l, newJitter(), r.ttlOf(l), by)
	}
}

// Soon makes the next renewal of l due now, or as soon as one that is under way has succeeded, unless l is not renewed. It is for an owner
// that needs to know whether the store has it from now on.
func (r *Renewer) Soon(l *Lease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || !l.isKept() {
		return
	}
	switch l.place {
	case resting:
		r.unschedule(l)
		r.rest(l, r.clock())
	case inCall:
		l.place = inCallSoon
	case nowhere, queued, inCallSoon:
	}
}

// Releasing is for an owner that is about to release the name for good, and calls Stop once it knows the outcome.
// From then on renewals exclude l, Update does nothing, and a call in flight no longer counts for l: its Gone may be
// due to the release itself, which is no loss. The end of the trusted time still is.
func (r *Renewer) Releasing(l *Lease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || !l.isKept() {
		return
	}
	l.state = releasing
	r.unschedule(l)
}

// Until returns the trusted time of l, also after it was lost or stopped; the zero Time if it was never kept.
func (r *Renewer) Until(l *Lease) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l.state == idle {
		return time.Time{}
	}
	return r.epoch.Add(l.until)
}

// Stop ends the tracking of l: no later renewal includes l, and Lost is not called any more. It does not wait. It may
// cross with a Lost in progress. A renewal in flight may still reach the store, where it changes nothing once the
// name is released: the store compares owners, and an owner is used for one hold only.
//
// It may be called at any time and repeatedly, also after Close.
func (r *Renewer) Stop(l *Lease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l.state == idle || l.state == ended {
		return
	}
	l.state = ended
	if !r.closed {
		r.ends.remove(l)
		r.leave(l)
	}
}

// CatchUp returns when every lease that has ended by now was reported to its keeper, even if the renewer's goroutine
// was not scheduled in time; it calls Lost itself. Call it after acquiring a name that another keeper may have had.
// After an outage longer than the leases, there may be many losses.
func (r *Renewer) CatchUp() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for now := r.clock(); r.ends.first() <= now; {
		r.tell()
	}
	r.awaitTold()
}

// Overdue returns the loss of a lease that was kept when the Renewer was closed, and whose time has ended since: nobody reports that. ok is
// false for any other lease.
func (r *Renewer) Overdue(l *Lease) (loss Loss, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed || l.state == idle || l.state == ended || r.clock() < l.until {
		return loss, false
	}
	return Loss{Until: r.epoch.Add(l.until), Limit: l.atLimit(), Renewed: l.ttl > 0}, true
}

// awaitTold returns when no Lost is running. Called under mu, which it releases meanwhile.
func (r *Renewer) awaitTold() {
	for r.telling > 0 {
		r.told.Wait()
	}
}

func (r *Renewer) at(t time.Time) time.Duration { return t.Sub(r.epoch) }

// jitter is a factor that shortens a wait by up to a tenth, so that processes do not march in step.
type jitter float64

func newJitter() jitter { return jitter(1 - rand.Float64()/10) }

func (j jitter) of(d time.Duration) time.Duration { return time.Duration(float64(j) * float64(d)) }

func (l *Lease) upTo(at time.Duration) time.Duration {
	if l.limit > 0 {
		return min(at, l.limit)
	}
	return at
}

// atLimit reports whether renewals can no longer extend the trusted time.
func (l *Lease) atLimit() bool { return l.limit > 0 && l.until >= l.limit }

// isKept reports whether l may be renewed and lost.
func (l *Lease) isKept() bool { return l.state == given || l.state == kept }

// alone reports whether l needs a call of its own because its last renewal was refused.
func (l *Lease) alone() bool { return l.failure != nil && l.failure.refused }

// millis is a compact ttl: whole milliseconds, up to 49 days. Longer ttls are cut to that.
type millis uint32

func toMillis(ttl time.Duration) millis { return millis(min(ttl/time.Millisecond, math.MaxUint32)) }

func (m millis) duration() time.Duration { return time.Duration(m) * time.Millisecond }

// ttlOf returns the ttl of a call about l; its periods are thirds of that.
func (r *Renewer) ttlOf(l *Lease) time.Duration { return cmp.Or(l.ttl.duration(), r.ttl) }

// schedule makes the renewal of a lease that is nowhere due a period after its last success, for ttl, was sent; at by at the latest. Called
// under mu.
//
// It derives that time from the end of trust. For a lease acquired for, or renewed to, the watchdog time, that is
// exact. A lease with more time left comes later, as the rule "never shorten an expiry" wants: an earlier renewal
// would gain nothing. A guarded lease that lasts longer than a period is due a period from now at the latest.
func (r *Renewer) schedule(l *Lease, j jitter, ttl, by time.Duration) {
	period := j.of(ttl/3 + ttl/3/18) // not /19, so that there are never more calls than n/batch
	due := by
	if l.ttl > 0 && !l.atLimit() {
		due = min(due, l.until-ttl+period)
	}
	if l.guarded {
		if next := r.clock() + period; next < l.until {
			due = min(due, next)
		}
	}
	if due != never {
		r.rest(l, due)
	}
}

// left returns the remaining time that the store gets for a guarded lease, plus the loss from rounding to whole
// milliseconds.
func (r *Renewer) left(l *Lease, now time.Duration) time.Duration {
	left := l.until - now + time.Millisecond
	if l.ttl > 0 && !l.atLimit() {
		return max(left, l.ttl.duration())
	}
	return left
}

// maxTries is the number of failures after which every backoff is at its longest.
const maxTries = 6

// retry schedules the next try of a lease whose renewal failed.
//
// The longest backoff is short, since a longer one would sleep through a brief recovery of the store. It costs
// little: without answers, a group has few calls in flight. Only a store that refuses all of many leases, which are
// sent one by one, is spared (TestStoreThatRefusesAllIsSpared).
func (r *Renewer) retry(l *Lease, now time.Duration, j jitter) {
	ttl := r.ttlOf(l)
	shortest, longest := max(ttl/100, 10*time.Millisecond), ttl/30
	if l.alone() && l.g.members > r.batch && now-l.g.renewed > ttl/3 {
		longest = ttl / 6
	}
	l.tries = min(l.tries+1, maxTries)
	// Near the end a full backoff would waste the last chance.
	wait := min(shortest<<(l.tries-1), longest, (l.until-now)/2)
	r.rest(l, now+j.of(max(wait, shortest)))
}

// rest puts a lease that is nowhere among those due later. Called under mu.
func (r *Renewer) rest(l *Lease, due time.Duration) {
	r.regroup(l)
	l.place = resting
	r.dues.push(l, due)
	if l.g != nil {
		l.g.resting.push(l)
	}
	r.wakeBy(due)
}

// wakeBy makes the loop look again at that instant, if it would sleep longer. Called under mu.
func (r *Renewer) wakeBy(at time.Duration) {
	if at >= r.wakeAt {
		return
	}
	r.wakeAt = at
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// unschedule takes a lease out of its place. Called under mu.
func (r *Renewer) unschedule(l *Lease) {
	switch l.place {
	case resting:
		r.dues.remove(l)
		if l.g != nil {
			l.g.resting.remove(l)
		}
	case queued:
		l.g.queue(l).remove(l)
	case inCall, inCallSoon:
		return // until finish
	case nowhere:
	}
	l.place = nowhere
}

// leave ends the renewal of a lost or stopped lease. Called under mu.
func (r *Renewer) leave(l *Lease) {
	r.unschedule(l)
	r.ungroup(l)
}

// dueOf returns when a lease is due, or never if it is in a call. Called under mu.
func (r *Renewer) dueOf(l *Lease) time.Duration {
	switch l.place {
	case resting:
		return r.dues.at(l)
	case queued:
		return r.clock()
	case nowhere, inCall, inCallSoon:
	}
	return never
}

// regroup takes a lease that is nowhere out of a group with another ttl; it joins the right one when due. Called
// under mu.
func (r *Renewer) regroup(l *Lease) {
	if l.g != nil && l.g.ttl != r.ttlOf(l) {
		r.ungroup(l)
	}
}

func (r *Renewer) ungroup(l *Lease) {
	if g := l.g; g != nil {
		l.g = nil
		g.members--
		r.forget(g)
	}
}

// forget drops an unused group. Called under mu.
func (r *Renewer) forget(g *group) {
	if g.members == 0 && g.calls == 0 {
		delete(r.groups, g.groupKey)
	}
}
