package engine

import (
	"context"
	"slices"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/lua"
)

// call sends the first change and the first waiters' requests.
func (p *pool) call() {
	all := &p.m.of.pools
	waits := p.turn && p.m.queueKey() != "" && p.hub.Listens() && p.hub.TakePlace(p.m.Engine.ID)
	all.mu.Lock()
	var change *permitChange
	if len(p.changes) > 0 {
		change, p.changes = p.changes[0], p.changes[1:]
		p.sent = change
	}
	waiters := slices.Clone(p.waiters[:p.front()]) // first come, first served
	p.asked = p.turn                               // out of the hub, it may miss the message that follows
	all.mu.Unlock()
	p.ask(change, waiters, waits)
}

// ask makes a call. Without a change and waiters, the call leaves the line; it is tried once, because the place expires anyway.
func (p *pool) ask(change *permitChange, waiters []*permitWaiter, waits bool) {
	leaves := change == nil && len(waiters) == 0
	args := p.m.args(p.m.of.pools.requests.Add(1))
	args.Waits = waits
	ctx := context.Background()
	if change != nil {
		args.Change, args.N, args.Release, ctx = change.what, change.n, change.back, change.ctx
	} else if len(waiters) > 0 {
		ctx = waiters[0].ctx
	}
	for _, w := range waiters {
		args.Wants, args.Leases, args.IDs = append(args.Wants, w.n), append(args.Leases, w.lease), append(args.IDs, w.ids...)
	}
	reply, sent, err := p.send(ctx, args)
	switch {
	case err == nil:
		p.answer(reply, sent.at, change, waiters)
		p.again = reply.Again
		if waits {
			p.placed = len(reply.Granted) < len(waiters)
		}
	case calls.MayPass(err), sent.mayHaveRun, p.goesOn(change):
		p.since = sent.at
		p.fail(err, change, sent.mayHaveRun)
		p.placed = !leaves && !p.m.Engine.Calls.IsClosed() && (p.placed || waits && len(waiters) > 0)
		if sent.mayHaveRun || adds(args.Change) && (args.N != 0 || len(args.Release) > 0) {
			failed := args // a copy, so that args escapes to the heap only after failures
			p.failed = &failed
		} else {
			p.recovered()
		}
	default:
		p.placed = p.placed && !leaves
		p.refused(err, change, waiters)
	}
}

// goesOn reports whether a refused change must still be made: a caller that relies on it has left, or was told that it goes on.
func (p *pool) goesOn(change *permitChange) bool {
	all := &p.m.of.pools
	all.mu.Lock()
	defer all.mu.Unlock()
	return change != nil && adds(change.what) && change.goesOn
}

// sending says whether an unanswered call may have run, and when it was first sent.
type sending struct {
	mayHaveRun bool
	at         time.Time
}

// send asks Redis, and retries after transient errors.
func (p *pool) send(values context.Context, args lua.PermitsArgs) (reply lua.PermitsReply, s sending, err error) {
	m, c := p.m, p.m.Engine
	if len(args.IDs) > 0 { // permit ids name this Client
		c.showLabel()
	}
	again := calls.Retry{Least: calls.MinTries}
	s.at = time.Now()
	for {
		ctx := c.Calls.Context(values, time.Now(), 0)
		reply, err = m.use(ctx, args)
		c.Calls.Answered(m.Slot, err)
		s.mayHaveRun = s.mayHaveRun || err != nil && calls.MayHaveRun(err)
		if err == nil || !again.Wait(err, nil, c.Calls.Done()) {
			return reply, s, err
		}
	}
}

// answer hands out the granted permits. The next call gives back those without a waiter.
func (p *pool) answer(reply lua.PermitsReply, sent time.Time, change *permitChange, waiters []*permitWaiter) {
	all := &p.m.of.pools
	all.mu.Lock()
	defer all.mu.Unlock()
	p.answered()
	back := int64(0)
	slots := reply.Slots
	for _, i := range reply.Granted {
		w := waiters[i]
		if len(w.ids) > 0 {
			w.slots, slots, w.sent = slots[:len(w.ids)], slots[len(w.ids):], sent
		}
		switch {
		case !w.gone:
			p.let(w, nil)
		case len(w.ids) > 0:
			p.giveBack(0, w.ids...)
		default:
			back += w.n
		}
	}
	for _, w := range waiters {
		if w.gone || reply.More { // expired permits may suffice: ask again at once
			continue
		}
		w.wait(reply.Free)
		if w.once {
			p.remove(w)
			p.asked = false // the place in line is for it, too
		}
	}
	if len(reply.Granted) < len(waiters) && !reply.More {
		for _, w := range p.waiters[p.front():] {
			w.wait(reply.Free)
		}
	}
	p.asked = p.asked && !reply.More && (len(reply.Granted) == 0 || len(p.waiters) <= len(waiters)-len(reply.Granted))
	if change != nil {
		if change.what == lua.Drain && change.callers == 0 {
			back += reply.Done
		}
		change.given = reply.Released
		change.end(reply.Done, nil, false)
	}
	if back > 0 {
		p.giveBack(back)
	}
}

// refused fails the callers of a refused call.
func (p *pool) refused(err error, change *permitChange, waiters []*permitWaiter) {
	all := &p.m.of.pools
	all.mu.Lock()
	defer all.mu.Unlock()
	p.answered()
	for _, w := range waiters {
		if !w.gone {
			p.let(w, err)
		}
	}
	p.asked = false // for those who were not in the call
	if change != nil {
		change.end(0, err, false)
	}
}

// fail fails all callers after no answer from Redis. Of the unsent changes, only adding ones stay.
func (p *pool) fail(err error, change *permitChange, mayHaveRun bool) {
	all := &p.m.of.pools
	all.mu.Lock()
	defer all.mu.Unlock()
	p.refuse(err, p.waiters)
	p.sent, p.failing = nil, err
	if !calls.MayPass(err) {
		p.failing = calls.ErrNoAnswer // an adding change is still made, so err must not be a refusal
	}
	for _, call := range append([]*permitChange{change}, p.changes...) {
		switch {
		case call == nil:
		case adds(call.what) && call == change && call.goesOn && !calls.MayPass(err):
			call.end(0, err, true) // a refusal, of which its caller should know
		case adds(call.what):
			call.end(0, p.failing, true)
			call.goesOn = true
		default:
			call.end(0, err, call == change && mayHaveRun && stays(call.what))
		}
	}
	p.changes = slices.DeleteFunc(p.changes, func(call *permitChange) bool { return !adds(call.what) })
}

func (p *pool) recovered() {
	all := &p.m.of.pools
	all.mu.Lock()
	defer all.mu.Unlock()
	p.failing = nil
}

// cancel ends the unanswered call: permits it took are given back, and permits it should give back are. When the time for that is over,
// which is one for all changes, those that are left are dropped.
func (p *pool) cancel() {
	args := *p.failed
	args.Cancel = true
	var reply lua.PermitsReply
	answered := p.m.insist(p.since, "the number of permits of a semaphore", func(ctx context.Context) (err error) {
		reply, err = p.m.use(ctx, args)
		return err
	})
	all := &p.m.of.pools
	all.mu.Lock()
	defer all.mu.Unlock()
	p.answered()
	if answered && args.Change == lua.Drain && reply.Done > 0 {
		p.giveBack(reply.Done)
	}
	if p.failed, p.failing = nil, nil; answered {
		return
	}
	for _, call := range p.changes {
		call.end(0, calls.ErrNoAnswer, true)
	}
	p.changes = nil
}
