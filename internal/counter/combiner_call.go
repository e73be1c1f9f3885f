package counter

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/internal/sweep"
	"github.com/go-rlock/rlock/lua"
)

// request is what a combiner asks for in one call: a change, and what its first waiters want. One without both leaves the line.
type request struct {
	change  *counterChange
	waiters []*counterWaiter
	args    lua.PermitsArgs
	sent    time.Time // for the first time, or just before
	ran     bool      // it may have run, though it was not answered
}

func (r *request) leaves() bool { return r.change == nil && len(r.waiters) == 0 }

// forgotten reports whether Redis may have forgotten that the call ran, by the time that a repeat arrives: if the process was stopped.
func (r *request) forgotten() bool { return r.ran && time.Since(r.sent) > sweep.Most }

// call makes the next call.
func (b *combiner) call() {
	values := b.next()
	b.calling = true
	b.m.of.mu.Unlock()
	reply, err := b.send(values)
	b.m.of.mu.Lock()
	b.calling = false
	if err != nil {
		b.fail(err)
		return
	}
	b.answer(reply)
	if r := &b.last; r.args.Waits {
		b.placed, b.seen = len(reply.Granted) < len(r.waiters), r.sent
	}
	b.again = reply.Again
}

// next puts together the next request. The values are for its commands.
func (b *combiner) next() (values context.Context) {
	b.last = request{sent: time.Now(), args: b.m.args()} // in this order: it is repeated for a minute, and its record lives two from its number on
	r, args := &b.last, &b.last.args
	front, _ := b.front() // first come, first served
	r.waiters = slices.Clone(front)
	for _, w := range r.waiters {
		w.known, args.Wants, args.Leases, args.IDs = true, append(args.Wants, w.n), append(args.Leases, w.lease), append(args.IDs, w.ids...)
	}
	switch {
	case len(b.changes) > 0:
		r.change, b.changes = b.changes[0], b.changes[1:]
		args.Change, args.N, args.Release, values = r.change.what, r.change.n, r.change.back, r.change.ctx
	case len(front) > 0:
		values = front[0].ctx
	default:
		args.Waits, values = b.placed, context.Background()
	}
	b.asked, b.gathers = true, time.Time{}
	if b.turn && !r.leaves() && args.Queue != "" && b.hub.Listens() {
		owner, offered := b.m.Client.ID, (*counterWaiter)(nil)
		if len(front) == 1 && front[0].grants {
			offered, owner = front[0], front[0].ids[0].String()
		}
		if args.Waits = b.hub.TakePlace(owner); args.Waits { // any former offer is in this call, or its permit is to be given back
			b.offered, args.Offers = offered, offered != nil
		}
	}
	return values
}

// send asks Redis, and retries after transient errors.
func (b *combiner) send(values context.Context) (reply counterReply, err error) {
	r, m, c := &b.last, b.m, b.m.Client
	if len(r.args.IDs) > 0 { // permit ids name this Client
		_ = m.Mark()
	}
	again := calls.Retry{Least: calls.MinTries}
	for {
		reply, err = m.use(c.Calls.Context(values), r.args)
		c.Calls.Answered(m.Slot(), err)
		r.ran = r.ran || err != nil && calls.MayHaveRun(err)
		if err == nil || !again.Wait(err, nil, c.Calls.Done()) || r.forgotten() && !b.looks {
			return reply, err
		}
	}
}

// answer hands out what the waiters want. The next call gives back granted permits without a waiter.
func (b *combiner) answer(reply counterReply) {
	b.answered()
	waiters, granted, slots := b.last.waiters, reply.Granted, reply.Slots
	if b.looks {
		granted = passed(reply.latch, waiters)
	}
	for _, i := range granted {
		w, n := waiters[i], len(waiters[i].ids)
		w.slots, slots, w.sent = slots[:n], slots[n:], b.last.sent
		if w.gone {
			b.giveBack(w.n-int64(n), w.ids...)
		} else {
			b.let(nil, w)
		}
	}
	if !reply.More && len(granted) < len(waiters) { // those in the call wait, and those behind them
		_, behind := b.front()
		for _, w := range slices.Concat(waiters, behind) {
			b.refuse(w, reply.Free)
		}
	}
	// If more permits have expired, they may suffice: it asks again at once.
	b.asked = b.asked && !reply.More && (len(granted) == 0 || b.live <= len(waiters)-len(granted))
	if change := b.last.change; change != nil {
		if change.what == lua.Drain && change.goesOn {
			b.giveBack(reply.Done)
		}
		change.end(Outcome{Done: reply.Done, given: reply.Released})
	}
}

// fail ends a call that Redis refused, or did not answer:
//
//   - A look, and leaving the line, have nothing to undo: a place ends by itself. After a refusal there is nothing to undo either. Then those
//     whose call it was fail, unless a caller relies on the change that has left, or was told that it goes on.
//   - Otherwise all fail. What may have run is ended, and changes that add are made all the same.
func (b *combiner) fail(err error) {
	r, change, transient := &b.last, b.last.change, calls.IsTransient(err)
	goesOn := change != nil && adds(change.what) && change.goesOn
	if r.leaves() || b.looks || !transient && !r.ran && !goesOn {
		if !transient {
			b.answered()
		}
		b.let(err, r.waiters...)
		b.asked = false // for those who were not in the call
		b.placed = b.placed && !r.leaves()
		if change != nil {
			change.end(Outcome{err: err})
		}
		return
	}
	b.let(err, b.waiters...)
	b.placed = !b.m.Client.Calls.IsClosed() && (b.placed || r.args.Waits && len(r.waiters) > 0)
	later := err // of what is made later: no refusal
	if !transient {
		later = calls.ErrNoAnswer
	}
	if r.ran || change != nil && adds(change.what) {
		b.failing = later
	}
	if change != nil {
		change.end(Outcome{err: err, pending: adds(change.what) || r.ran && change.what != lua.Drain})
	}
	unsent := b.changes
	b.changes = nil
	for _, call := range unsent {
		if adds(call.what) {
			call.end(Outcome{err: later, pending: true})
			b.add(call.ctx, call.what, call.n, call.back...).goesOn = true
		} else {
			call.end(Outcome{err: err})
		}
	}
}

// end ends the unanswered call: permits it took are given back, and a change that it made, or that adds, is made. It is tried again
// after a pause, even after refusals; once if the engine is closed. When the time for that is over, which is one for all changes, those that
// are left are dropped.
func (b *combiner) end() {
	r, m, c := &b.last, b.m, b.m.Client
	r.args.Cancel = true
	var reply counterReply
	var err error
	var lost bool
	m.of.mu.Unlock()
	for pause := calls.MinPause; ; pause = min(2*pause, 4*calls.MaxPause) {
		last := c.Calls.IsClosed() || time.Since(r.sent) > sweep.Most
		if lost = r.forgotten(); lost { // what has an id can be given back twice
			r.args.Change, r.args.N = lua.Add, 0
		}
		ctx, cancel := c.Calls.Last()
		reply, err = m.use(ctx, r.args)
		cancel()
		c.Calls.Answered(m.Slot(), err)
		if err == nil || last {
			break
		}
		r.ran = r.ran || calls.MayHaveRun(err)
		select {
		case <-time.After(pause):
		case <-c.Calls.Done():
		}
	}
	if err != nil || lost {
		c.Options.Tell.Warn("rlock: the number of a semaphore or latch may be wrong after a call without an answer", "kind", m.Kind.Name, "name", m.Name,
			"err", cmp.Or(err, calls.ErrNoAnswer))
	}
	m.of.mu.Lock()
	b.answered()
	if b.failing = nil; err != nil {
		b.changes = nil
	} else if r.args.Change == lua.Drain {
		b.giveBack(reply.Done)
	}
}

// args returns the arguments of a new request.
func (m Counter) args() lua.PermitsArgs {
	c := m.Client
	args := lua.PermitsArgs{SemaphoreArgs: lua.SemaphoreArgs{
		Semaphore: lua.Semaphore{
			Name: m.Key, Requests: kinds.SemaphoreRequests(m.Key), Publish: lua.Publish(c.KnownChannel(m.Lock)),
			Client: c.ID + m.Kind.Beside, Keep: c.GrantLease,
		},
		Request: m.of.number(),
	}}
	if m.Kind.Permits && m.SeesProcesses() {
		args.Queue = m.Queue
	}
	if m.Kind == kinds.PermitSemaphore {
		args.Timeouts, args.Slots = kinds.PermitTimeouts(m.Key), kinds.PermitSlots(m.Key)
	}
	return args
}

// counterReply is Redis's answer to a call: a PermitsReply, of which a plain semaphore has only the SemaphoreReply, and a changed latch Done;
// or what a look at a latch saw, whose count is Free.
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
