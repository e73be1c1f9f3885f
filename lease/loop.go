package lease

import (
	"context"
	"errors"
	"fmt"
	"time"
)

func (r *Renewer) loop() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		wait, ok := r.turn()
		if !ok {
			return
		}
		if wait == 0 {
			continue
		}
		timer.Reset(wait)
		select {
		case <-timer.C:
		case <-r.wake:
		case <-r.ctx.Done():
		}
	}
}

// turn does the most urgent piece of work. Losses go first, then collecting due leases, then starting calls, so that
// calls start as full as possible. It returns the time to sleep, 0 if there may be more to do, and false after Close.
func (r *Renewer) turn() (time.Duration, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return 0, false
	}
	now := r.clock()
	switch last := len(r.ready) - 1; {
	case r.ends.first() <= now:
		r.tell()
	case r.collect(now):
	case last >= 0:
		g := r.ready[last]
		r.ready[last] = nil
		r.ready = r.ready[:last]
		r.start(g, now)
	default:
		if r.wakeAt <= now {
			r.wakeAt = never
		}
		r.wakeAt = min(r.wakeAt, r.ends.first(), r.dues.first())
		return r.wakeAt - now, true
	}
	return 0, true
}

// tell takes the first lease from the heap of ends and calls its keeper's Lost. Called under mu, which it releases
// meanwhile: the keeper may call Stop, or take a lock under which others call in.
func (r *Renewer) tell() {
	until := r.ends.first()
	l := r.ends.pop()
	loss := Loss{Gone: l.state == gone, Until: r.epoch.Add(until), Renewed: l.ttl > 0}
	loss.Limit = !loss.Gone && l.atLimit()
	switch {
	case l.tries > 0:
		loss.Err = l.failure.err
	case l.place == queued && l.g.failure != nil:
		loss.Err = l.g.failure.err
	}
	l.state = ended
	r.leave(l)
	r.telling++
	r.mu.Unlock()
	l.keeper.Lost(loss)
	r.mu.Lock()
	if r.telling--; r.telling == 0 {
		r.told.Broadcast()
	}
}

// step bounds how many leases are collected under one hold of the mutex. With all of 100,000 in one, callers and
// losses would wait up to 80 ms; with this, 3 ms (go test -run xxx -bench DueAtOnce ./lease).
const step = 1000

// collect queues due leases, and reports whether there were any. It also takes new leases due within the slack:
// otherwise many leases begun in a row would each cost a call (TestSlack, TestBatches/groups). It stops at a lease
// that was renewed before, which has its batch already and would be renewed more often than necessary.
func (r *Renewer) collect(now time.Duration) bool {
	if r.dues.first() <= now {
		r.horizon = now + r.ttlOf(r.dues.entries[0].l)/20
	}
	n := 0
	for ; n < step && r.dues.first() <= r.horizon; n++ {
		l := r.dues.entries[0].l
		if l.g != nil && r.dues.first() > now {
			break
		}
		r.enqueue(l)
	}
	if n < step {
		r.horizon = 0 // all taken: later leases have their own time
	}
	return n > 0
}

// enqueue moves a lease from resting to the queue in which it waits for a call.
func (r *Renewer) enqueue(l *Lease) {
	r.unschedule(l)
	r.regroup(l)
	g := l.g
	if g == nil {
		// Here, not in Keep: most leases end before they are due, and need not pay for the map.
		key := groupKey{l.keeper.Group(), r.ttlOf(l)}
		if g = r.groups[key]; g == nil {
			g = &group{groupKey: key}
			r.groups[key] = g
		}
		g.members++
		l.g = g
	}
	if !g.waits() {
		r.ready = append(r.ready, g)
	}
	l.place = queued
	g.queue(l).push(l)
}

// start starts calls of g. Leases beyond the bounds follow when a call ends. Called under mu.
func (r *Renewer) start(g *group, now time.Duration) {
	for g.maySend(r.batch) {
		leases := r.take(g, now)
		items := make([]Item, len(leases))
		for i, l := range leases {
			l.place = inCall
			items[i] = l.keeper.Item()
			if l.guarded {
				items[i].Lease = r.left(l, now)
			}
		}
		g.calls++
		g.items += len(items)
		r.wg.Go(func() { r.call(g, leases, items) }) // ends with its timeout, or by Close
	}
}

// take takes the leases for the next call of g out of its queues.
//
// Leases that are not due yet fill the call: it costs much the same with them, and from then on they are due
// together. The slack alone would take long to bring the few leases of a cluster slot together (TestSmallGroupsMerge;
// BenchmarkPeriod/leases=100000/groups=16384 makes 16,000 calls a period, 73,000 without it).
func (r *Renewer) take(g *group, now time.Duration) []*Lease {
	if l := g.failed.head; l != nil && l.alone() {
		g.failed.remove(l)
		return []*Lease{l}
	}
	leases := make([]*Lease, 0, min(r.batch, g.members))
	for _, q := range []*queue{&g.failed, &g.due} {
		for l := q.head; l != nil && !l.alone() && len(leases) < cap(leases); l = q.head {
			q.remove(l)
			leases = append(leases, l)
		}
	}
	if g.failure != nil {
		return leases // do not draw in leases that have not failed
	}
	next := g.resting.head
	for range cap(leases) - len(leases) {
		l := next
		if l == nil {
			break
		}
		next = l.next
		if l.failure == nil && l.until <= now+g.ttl { // neither waiting for its own retry, nor longer than a renewal makes it
			r.unschedule(l)
			leases = append(leases, l)
		}
	}
	return leases
}

func (r *Renewer) call(g *group, leases []*Lease, items []Item) {
	ctx, cancel := context.WithTimeout(r.ctx, r.timeoutOf(g.ttl))
	defer cancel()
	sent := r.clock() // before anything can be sent: the origin of the new trusted time
	verdicts, err := r.renew(ctx, g.of, g.ttl, items)
	if err == nil && len(verdicts) != len(items) { // trust none of them
		err = fmt.Errorf("%w: %d verdicts on %d items", ErrRefused, len(verdicts), len(items))
	}
	var f *failure
	if err != nil {
		f = &failure{err, errors.Is(err, ErrRefused)}
	}
	if renewals := r.finish(g, leases, items, sent, verdicts, f); len(renewals) > 0 {
		r.renewed(renewals)
	}
}

// finish applies the outcome of a call: its verdicts, or its failure.
func (r *Renewer) finish(
	g *group, leases []*Lease, items []Item, sent time.Duration, verdicts []Verdict, failed *failure,
) (renewals []Renewal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	now := r.clock()
	j := newJitter() // one for all: they stay together, and batches stay full
	for i, l := range leases {
		soon := l.place == inCallSoon
		l.place = nowhere
		if !l.isKept() {
			continue // an ended lease stays ended; for one being released, Gone is no news
		}
		verdict, failure := Failed, failed
		if failed == nil {
			verdict, failure = verdicts[i], failedVerdict
		}
		switch {
		case verdict == Gone && l.until <= now:
			// It has expired, which the loop reports: no wonder that the store does not have it.
		case verdict == Gone:
			l.state = gone
			r.ends.move(l, now) // the loop reports it
			r.wakeBy(now)
		case l.ttl == 0 && !l.guarded:
			// Switched off while the call was in flight.
		case verdict == Renewed:
			if r.renewed != nil && l.ttl > 0 {
				renewals = append(renewals, Renewal{l.keeper, l.until - now, g.ttl, l.state == given})
			}
			told := items[i].Lease == 0 || items[i].Lease >= g.ttl // false if renewal was switched on only during the call
			if until := l.upTo(sent + g.ttl); l.ttl > 0 && told && until > l.until {
				l.until = until
				r.ends.move(l, until)
			}
			l.tries, l.failure, l.state = 0, nil, kept
			if soon {
				r.rest(l, now)
			} else {
				r.schedule(l, j, r.ttlOf(l), never)
			}
		default:
			// A refused call may be due to one of its items (a forbidden key, a key in a slot that is moving, a value
			// that the script chokes on). Such an item would fail each of its batches until all their leases are
			// lost. Sent alone it fails alone. The others pay one small call each, and batch again after that. A call
			// without an answer says nothing about its items. They stay together, or an outage would multiply the
			// calls at the worst moment.
			l.failure = failure
			r.retry(l, now, j)
		}
	}
	g.calls--
	g.items -= len(leases)
	g.failure = nil
	switch {
	case failed == nil:
		g.renewed = now
	case !failed.refused:
		g.failure = failed
	}
	r.start(g, now)
	r.forget(g)
	return renewals
}
