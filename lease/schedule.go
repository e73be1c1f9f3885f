package lease

import (
	"cmp"
	"math/rand/v2"
	"time"
)

// jitter is a factor that shortens a wait by up to a tenth, so that processes do not march in step.
type jitter float64

func newJitter() jitter { return jitter(1 - rand.Float64()/10) }

func (j jitter) of(d time.Duration) time.Duration { return time.Duration(float64(j) * float64(d)) }

// upTo returns the earlier of at and the limit.
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

// schedule makes the renewal of a lease that is nowhere due a period after its last success was sent. Called under
// mu.
//
// It derives that time from the end of trust. For a lease acquired for, or renewed to, the watchdog time, that is
// exact. A lease with more time left comes later, as the rule "never shorten an expiry" wants: an earlier renewal
// would gain nothing.
func (r *Renewer) schedule(l *Lease, j jitter) { r.scheduleFor(l, j, r.ttlOf(l), never) }

// ttlOf returns the ttl of a call about l; its periods are thirds of that.
func (r *Renewer) ttlOf(l *Lease) time.Duration { return cmp.Or(l.ttl.duration(), r.ttl) }

// scheduleFor is schedule after a success for ttl, which sets the period. The lease is due at by at the latest.
//
// A guarded lease that lasts longer than a period is due a period from now at the latest.
func (r *Renewer) scheduleFor(l *Lease, j jitter, ttl, by time.Duration) {
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
	case inCall:
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
	case nowhere, inCall:
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
