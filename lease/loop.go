package lease

import (
	"context"
	"errors"
	"time"
)

// step bounds how many leases the loop moves from the heaps to the queues under
// one hold of the mutex. 100,000 at once would keep callers, and losses, waiting
// for tens of milliseconds.
const step = 1000

// loop is the goroutine of the renewer.
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

// turn does the most urgent piece of work: a loss goes before taking what is
// due, and that before starting calls, so that calls are started with all
// there is. It returns how long to sleep, 0 when there may be more to do, and
// false after Close.
func (r *Renewer) turn() (time.Duration, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return 0, false
	}
	r.sleep = awake
	now := r.clock()
	switch {
	case r.ends.first() <= now:
		r.tell()
		return 0, true
	case r.collect(now) || r.start(now):
		return 0, true
	}
	if r.plan <= now {
		r.plan = never
	}
	r.plan = min(r.plan, r.ends.first(), r.dues.first(), r.retries.first())
	r.sleep = r.plan
	return r.sleep - now, true
}

// tell takes the first lease from the heap of ends and tells its keeper. Called under mu, which is released
// meanwhile: the keeper may call Stop, or take a lock under which others call in.
func (r *Renewer) tell() {
	l := r.ends.pop()
	reason := ErrExpired
	if l.state == gone {
		reason = ErrGone
	}
	l.state = lost
	r.leave(l)
	r.telling++
	r.mu.Unlock()
	l.keeper.Lost(reason)
	r.mu.Lock()
	if r.telling--; r.telling == 0 {
		r.told.Broadcast()
	}
}

// awaitTold returns when no keeper is being told. Called under mu, which is released meanwhile.
func (r *Renewer) awaitTold() {
	for r.telling > 0 {
		r.told.Wait()
	}
}

// collect queues leases to be renewed now, and reports whether there were any.
// When one is due, the ones due within the slack come along, up to one that has
// been renewed before: it has its batch, and would be renewed more often than need be.
func (r *Renewer) collect(now time.Duration) bool {
	if r.dues.first() <= now {
		r.horizon = now + r.slack
	}
	n := 0
	for ; n < step && r.retries.first() <= now; n++ {
		r.enqueue(r.retries.entries[0].l)
	}
	for ; n < step && r.dues.first() <= r.horizon; n++ {
		l := r.dues.entries[0].l
		if l.g != nil && r.dues.first() > now {
			break
		}
		r.enqueue(l)
	}
	if n < step {
		r.horizon = 0 // all taken: what comes in later has its own time
	}
	return n > 0
}

// enqueue moves a lease from the heap it is in to a queue of its group.
func (r *Renewer) enqueue(l *Lease) {
	r.unplace(l)
	g := l.g
	if g == nil {
		// Here, not in Keep: most leases end before they are due, and don't pay
		// for the map.
		key := l.keeper.Group()
		if g = r.groups[key]; g == nil {
			g = &group{key: key}
			r.groups[key] = g
		}
		g.members++
		l.g = g
	}
	l.place = inQueue
	g.queue(l).push(l)
	r.rouse(g)
}

// rouse has the loop try to start calls of g.
func (r *Renewer) rouse(g *group) {
	if !g.ready {
		g.ready = true
		r.ready = append(r.ready, g)
	}
}

// start starts the calls of one group, and reports whether there was one to
// look at. What the bounds hold back stays queued until a call ends.
func (r *Renewer) start(now time.Duration) bool {
	n := len(r.ready) - 1
	if n < 0 {
		return false
	}
	g := r.ready[n]
	r.ready[n] = nil
	r.ready = r.ready[:n]
	g.ready = false
	for g.waiting() && !g.full(r.batch) {
		c := r.call(g, now)
		r.wg.Go(func() { r.run(c) }) // ended by its timeout, or by Close
	}
	return true
}

// call is one call of the renew function.
type call struct {
	g      *group
	leases []*Lease
	items  []Item
	done   chan struct{} // closed when the call has ended; nil until someone asks for it
}

// call makes a call of the leases that are next in the queues of g.
func (r *Renewer) call(g *group, now time.Duration) *call {
	c := &call{g: g}
	if g.alone.head != nil {
		c.leases = g.take(make([]*Lease, 0, 1))
	} else {
		c.leases = r.fill(g, g.take(make([]*Lease, 0, r.batch)), now)
	}
	c.items = make([]Item, len(c.leases))
	for i, l := range c.leases {
		l.place, l.call = inCall, c
		c.items[i] = l.keeper.Item()
	}
	g.calls++
	g.items += len(c.items)
	return c
}

// fill uses the room left in a call for leases of the group that aren't due yet.
// The call costs much the same with them, and from then on they are due
// together. The slack alone would not bring the few leases of a cluster slot
// together for a long time.
func (r *Renewer) fill(g *group, leases []*Lease, now time.Duration) []*Lease {
	if g.failing {
		return leases // don't draw in those who have nothing to do with it
	}
	next := g.resting.head
	for range cap(leases) - len(leases) {
		l := next
		if l == nil {
			break
		}
		next = l.next
		if l.alone || l.until > now+r.ttl {
			continue // not to be batched, or longer than the renewal would leave it
		}
		r.unplace(l)
		leases = append(leases, l)
	}
	return leases
}

func (r *Renewer) run(c *call) {
	ctx, cancel := context.WithTimeout(r.ctx, r.timeout)
	defer cancel()
	sent := r.clock() // before anything can be sent: the origin of the new trusted time
	verdicts, err := r.renew(ctx, c.g.key, r.ttl, c.items)
	if err == nil && len(verdicts) != len(c.items) {
		err = ErrRefused // too few or too many: trust none of them
	}
	if err != nil {
		verdicts = nil
	}
	r.finish(c, sent, verdicts, errors.Is(err, ErrRefused))
}

// finish works the verdicts of a call in, nil for a call that failed, with or without an answer.
func (r *Renewer) finish(c *call, sent time.Duration, verdicts []Verdict, refused bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.done != nil {
		close(c.done)
	}
	now := r.clock()
	if verdicts != nil {
		c.g.renewed = now
	}
	j := newJitter() // one for all: they stay together, and batches stay full
	for i, l := range c.leases {
		l.call, l.place = nil, nowhere
		if r.closed || l.state != kept {
			continue // a lost lease stays lost, and a stopped one stopped
		}
		verdict := Failed
		if verdicts != nil {
			verdict = verdicts[i]
		}
		switch {
		case l.releasing:
			// Gone would be no news: the release may have got to the store first.
		case verdict == Gone:
			l.state = gone
			r.ends.move(l, now) // the loop reports it
			r.poke(now)
		case !l.renewed:
			// Switched off while the call was in flight.
		case verdict == Renewed:
			if until := sent + r.ttl; until > l.until {
				l.until = until
				r.ends.move(l, until)
			}
			l.tries, l.alone = 0, false
			r.schedule(l, j)
		default:
			// When a whole call is refused, one of its items may be the cause (a
			// forbidden key, a key in a slot that is moving, a value that the
			// script chokes on), and it would fail every batch that it is in
			// until all of them are lost. Sent alone it fails alone. The others
			// pay one small call, and batch again after it. A call without an
			// answer says nothing about its items: they stay together, or an
			// outage would multiply the calls when they can be afforded least.
			l.alone = refused
			r.retry(l, now, j)
		}
	}
	if r.closed {
		return
	}
	c.g.calls--
	c.g.items -= len(c.items)
	c.g.failing = verdicts == nil && !refused
	if c.g.waiting() {
		r.rouse(c.g)
		r.poke(now)
	}
	r.forget(c.g)
}

// maxTries is how many renewals have to fail until the backoff is at its longest, whichever that is.
const maxTries = 6

// retry schedules the next try of a lease whose renewal failed.
func (r *Renewer) retry(l *Lease, now time.Duration, j jitter) {
	longest := r.retryMax
	if l.alone && l.g.members > r.batch && now-l.g.renewed > r.period {
		longest = r.spareMax // nobody of many is renewed, and all of them would come alone
	}
	l.tries = min(l.tries+1, maxTries)
	backoff := min(r.retryMin<<(l.tries-1), longest)
	// Near the end a full backoff would give away the last chance.
	wait := min(backoff, max((l.until-now)/2, r.retryMin))
	due := now + j.of(wait)
	l.place = inRetries
	r.retries.push(l, due)
	r.poke(due)
}
