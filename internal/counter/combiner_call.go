package counter

import (
	"context"
	"slices"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/internal/sweep"
	"github.com/go-rlock/rlock/lua"
)

// call sends the first change and the first waiters' requests.
func (b *combiner) call() {
	all := &b.m.of.combiners
	all.mu.Lock()
	var change *counterChange
	if b.m.Kind != kinds.Latch { // one may have come since wants
		change = b.next()
	}
	waiters, _ := b.front() // first come, first served
	waiters = slices.Clone(waiters)
	b.asked = true
	b.came, b.later = false, nil
	for _, w := range waiters {
		w.known = true
	}
	var offered *counterWaiter
	owner := b.m.Client.ID
	if len(waiters) == 1 && waiters[0].grants {
		offered, owner = waiters[0], waiters[0].ids[0].String()
	}
	waits := b.turn && b.m.queueKey() != "" && b.hub.Listens() && b.hub.TakePlace(owner)
	if waits { // any former one is in this call, or its permit is to be given back
		b.offered = offered
	}
	all.mu.Unlock()
	b.ask(change, waiters, waits)
}

// change sends the first change by itself.
func (b *combiner) change() {
	all := &b.m.of.combiners
	all.mu.Lock()
	change := b.next()
	all.mu.Unlock()
	b.ask(change, nil, false)
}

// next takes the first change. combiners.mu is held.
func (b *combiner) next() (change *counterChange) {
	if len(b.changes) > 0 {
		change, b.changes = b.changes[0], b.changes[1:]
		b.sent = change
	}
	return change
}

// ask makes a call. Without a change and waiters, the call leaves the line; it is tried once, because the place expires anyway.
func (b *combiner) ask(change *counterChange, waiters []*counterWaiter, waits bool) {
	leaves := change == nil && len(waiters) == 0
	args := b.m.args(b.m.of.combiners.requests.Add(1))
	args.Waits = waits
	ctx := context.Background()
	if change != nil {
		args.Change, args.N, args.Release, ctx = change.what, change.n, change.back, change.ctx
	} else if len(waiters) > 0 {
		ctx = waiters[0].ctx
	}
	args.Offers = waits && len(waiters) == 1 && waiters[0].grants
	for _, w := range waiters {
		args.Wants, args.Leases, args.IDs = append(args.Wants, w.n), append(args.Leases, w.lease), append(args.IDs, w.ids...)
	}
	reply, sent, err := b.send(ctx, args)
	switch {
	case err == nil:
		b.answer(reply, sent.at, change, waiters)
		if change == nil || b.m.Kind != kinds.Latch {
			b.again = reply.Again
		}
		if waits {
			b.placed, b.seen = len(reply.Granted) < len(waiters), sent.at
		}
	case change == nil && b.m.Kind == kinds.Latch: // a look has nothing to be undone
		b.refused(err, nil, waiters)
	case !calls.IsTransient(err) && !sent.mayHaveRun && b.refused(err, change, waiters):
		b.placed = b.placed && !leaves
	default:
		b.since = sent.at
		b.fail(err, change, sent.mayHaveRun)
		b.placed = !leaves && !b.m.Client.Calls.IsClosed() && (b.placed || waits && len(waiters) > 0)
		if sent.mayHaveRun || adds(args.Change) && (args.N != 0 || len(args.Release) > 0) {
			failed := args // a copy, so that args escapes to the heap only after failures
			b.failed = &failed
		} else {
			b.recovered()
		}
	}
}

// sending says whether an unanswered call may have run, and when it was first sent.
type sending struct {
	mayHaveRun bool
	at         time.Time
}

// send asks Redis, and retries after transient errors.
func (b *combiner) send(values context.Context, args lua.PermitsArgs) (reply counterReply, s sending, err error) {
	m, c := b.m, b.m.Client
	if len(args.IDs) > 0 { // permit ids name this Client
		_ = m.Mark()
	}
	again := calls.Retry{Least: calls.MinTries}
	s.at = time.Now()
	for {
		ctx := c.Calls.Context(values)
		reply, err = m.use(ctx, args)
		c.Calls.Answered(m.Slot(), err)
		s.mayHaveRun = s.mayHaveRun || err != nil && calls.MayHaveRun(err)
		if err == nil || !again.Wait(err, nil, c.Calls.Done()) {
			return reply, s, err
		}
	}
}

// answer hands out what the waiters want. The next call gives back granted permits without a waiter.
func (b *combiner) answer(reply counterReply, sent time.Time, change *counterChange, waiters []*counterWaiter) {
	all := &b.m.of.combiners
	all.mu.Lock()
	defer all.mu.Unlock()
	b.answered()
	back := int64(0)
	if b.m.Kind == kinds.Latch {
		b.looked(reply.latch, waiters)
	} else {
		back = b.granted(reply.PermitsReply, sent, waiters)
	}
	if change != nil {
		if change.what == lua.Drain && change.callers == 0 {
			back += reply.Done
		}
		change.given = reply.Released
		change.end(reply.Done, nil, false)
	}
	if back > 0 {
		b.giveBack(back)
	}
}

// granted hands out the granted permits, and returns how many nobody waits for any more. combiners.mu is held.
func (b *combiner) granted(reply lua.PermitsReply, sent time.Time, waiters []*counterWaiter) (back int64) {
	slots := reply.Slots
	for _, i := range reply.Granted {
		w := waiters[i]
		if len(w.ids) > 0 {
			w.slots, slots, w.sent = slots[:len(w.ids)], slots[len(w.ids):], sent
		}
		switch {
		case !w.gone:
			b.let(w, nil)
		case len(w.ids) > 0:
			b.giveBack(0, w.ids...)
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
			b.remove(w)
			b.asked = false // the place in line is for it, too
		}
	}
	if len(reply.Granted) < len(waiters) && !reply.More {
		_, behind := b.front()
		for _, w := range behind {
			w.wait(reply.Free)
		}
	}
	b.asked = b.asked && !reply.More && (len(reply.Granted) == 0 || b.live <= len(waiters)-len(reply.Granted))
	return back
}

// looked lets those go on whose latch is open, or was since their first look: then another call has set it. combiners.mu is held.
func (b *combiner) looked(look lua.Latch, waiters []*counterWaiter) {
	b.asked = b.asked && (look.Count > 0 || !b.came) // those who came meanwhile need not wait long
	for _, w := range waiters {
		switch {
		case w.gone:
		case look.Count <= 0, w.seen && look.Set != "" && look.Set != w.set:
			b.let(w, nil)
		default:
			if !w.seen {
				w.set = look.Set
			}
			if w.wait(look.Count); w.once {
				b.remove(w)
			}
		}
	}
}

// refused fails the callers of a refused call, or of a look without an answer. It does nothing and returns false if the change must be made
// nevertheless: a caller that relies on it has left, or was told that it goes on.
func (b *combiner) refused(err error, change *counterChange, waiters []*counterWaiter) bool {
	all := &b.m.of.combiners
	all.mu.Lock()
	defer all.mu.Unlock()
	if change != nil && adds(change.what) && change.goesOn {
		return false
	}
	if !calls.IsTransient(err) {
		b.answered()
	}
	for _, w := range waiters {
		if !w.gone {
			b.let(w, err)
		}
	}
	b.asked = false // for those who were not in the call
	if change != nil {
		change.end(0, err, false)
	}
	return true
}

// fail fails the callers after no answer from Redis, all of them but a latch's waiters. Of the unsent changes, only adding ones stay.
func (b *combiner) fail(err error, change *counterChange, mayHaveRun bool) {
	all := &b.m.of.combiners
	all.mu.Lock()
	defer all.mu.Unlock()
	if b.m.Kind != kinds.Latch { // whose waiters are not in its changes
		b.refuse(err)
	}
	b.sent, b.failing = nil, err
	if !calls.IsTransient(err) {
		b.failing = calls.ErrNoAnswer // an adding change is still made, so err must not be a refusal
	}
	for _, call := range append([]*counterChange{change}, b.changes...) {
		switch {
		case call == nil:
		case adds(call.what) && call == change && call.goesOn && !calls.IsTransient(err):
			call.end(0, err, true) // a refusal, of which its caller should know
		case adds(call.what):
			call.end(0, b.failing, true)
			call.goesOn = true
		default:
			call.end(0, err, call == change && mayHaveRun && stays(call.what))
		}
	}
	b.changes = slices.DeleteFunc(b.changes, func(call *counterChange) bool { return !adds(call.what) })
}

func (b *combiner) recovered() {
	all := &b.m.of.combiners
	all.mu.Lock()
	defer all.mu.Unlock()
	b.failing = nil
}

// end tries to end the unanswered call: permits it took are given back, and a change that it made, or that adds, is made. It is tried again
// after a pause, even after refusals; once if the engine is closed. When the time for that is over, which is one for all changes, those that
// are left are dropped.
func (b *combiner) end() {
	m, c := b.m, b.m.Client
	args := *b.failed
	args.Cancel = true
	closing := c.Calls.IsClosed()
	ctx, cancel := c.Calls.Last()
	reply, err := m.use(ctx, args)
	cancel()
	c.Calls.Answered(m.Slot(), err)
	if err != nil && !closing && time.Since(b.since) <= sweep.Most {
		b.pause = min(max(2*b.pause, calls.MinPause), 4*calls.MaxPause)
		b.retry = time.After(b.pause)
		return
	}
	if b.failed, b.pause = nil, 0; err != nil {
		what := "the number of permits of a semaphore"
		if m.Kind == kinds.Latch {
			what = "the count of a latch"
		}
		c.Options.Tell.Warn("rlock: "+what+" may be wrong after a call without an answer", "name", m.Name, "err", err)
	}
	all := &m.of.combiners
	all.mu.Lock()
	defer all.mu.Unlock()
	b.answered()
	if b.failing = nil; err == nil {
		if args.Change == lua.Drain && reply.Done > 0 {
			b.giveBack(reply.Done)
		}
		return
	}
	for _, call := range b.changes {
		call.end(0, calls.ErrNoAnswer, true)
	}
	b.changes = nil
}

// queueKey returns the key of the process queue; "" if scripts cannot see whether a process listens.
func (m Counter) queueKey() string {
	if m.Kind == kinds.Latch || !m.SeesProcesses() {
		return ""
	}
	return m.Queue
}

func (m Counter) args(request int64) lua.PermitsArgs {
	c := m.Client
	args := lua.PermitsArgs{SemaphoreArgs: lua.SemaphoreArgs{
		Semaphore: lua.Semaphore{
			Name: m.Key, Requests: kinds.SemaphoreRequests(m.Key), Queue: m.queueKey(), Publish: lua.Publish(c.KnownChannel(m.Lock)),
			Client: c.ID, Keep: c.GrantLease,
		},
		Request: request,
	}}
	if m.Kind == kinds.PermitSemaphore {
		args.Client += ofPermits
		args.Timeouts, args.Slots = kinds.PermitTimeouts(m.Key), kinds.PermitSlots(m.Key)
	}
	return args
}

// counterReply is Redis's answer to a call: a PermitsReply, of which a plain semaphore has only the SemaphoreReply, and a changed latch Done;
// or what a look at a latch saw.
type counterReply struct {
	lua.PermitsReply
	latch lua.Latch
}

// use makes one call.
func (m Counter) use(ctx context.Context, args lua.PermitsArgs) (reply counterReply, err error) {
	switch m.Kind {
	case kinds.Latch:
		return m.useLatch(ctx, args)
	case kinds.PermitSemaphore:
		reply.PermitsReply, err = lua.UsePermits(ctx, m.Client.RDB, args)
	default:
		reply.SemaphoreReply, err = lua.UseSemaphore(ctx, m.Client.RDB, args.SemaphoreArgs)
	}
	return reply, err
}
