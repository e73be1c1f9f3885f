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
	all := b.m.of
	all.mu.Lock()
	var change *counterChange
	if len(b.changes) > 0 {
		change, b.changes = b.changes[0], b.changes[1:]
		b.sent = change
	}
	front, _ := b.front() // first come, first served
	waiters := slices.Clone(front)
	b.asked = true
	b.stopGathering()
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

// ask makes a call. Without a change and waiters, the call leaves the line.
func (b *combiner) ask(change *counterChange, waiters []*counterWaiter, waits bool) {
	b.args = b.m.args()
	args, values := &b.args, context.Background()
	if change != nil {
		args.Change, args.N, args.Release, values = change.what, change.n, change.back, change.ctx
	} else if len(waiters) > 0 {
		values = waiters[0].ctx
	}
	args.Waits, args.Offers = waits, waits && len(waiters) == 1 && waiters[0].grants
	for _, w := range waiters {
		args.Wants, args.Leases, args.IDs = append(args.Wants, w.n), append(args.Leases, w.lease), append(args.IDs, w.ids...)
	}
	reply, mayHaveRun, err := b.send(values)
	if err != nil {
		b.fail(err, mayHaveRun, change, waiters)
		return
	}
	b.answer(reply, change, waiters)
	if b.again = reply.Again; waits {
		b.placed, b.seen = len(reply.Granted) < len(waiters), b.began
	}
}

// send asks Redis, and retries after transient errors. mayHaveRun: one of the tries may have run without an answer.
func (b *combiner) send(values context.Context) (reply counterReply, mayHaveRun bool, err error) {
	m, c := b.m, b.m.Client
	if len(b.args.IDs) > 0 { // permit ids name this Client
		_ = m.Mark()
	}
	again := calls.Retry{Least: calls.MinTries}
	b.began = time.Now()
	for {
		reply, err = m.use(c.Calls.Context(values), b.args)
		c.Calls.Answered(m.Slot(), err)
		mayHaveRun = mayHaveRun || err != nil && calls.MayHaveRun(err)
		if err == nil || !again.Wait(err, nil, c.Calls.Done()) {
			return reply, mayHaveRun, err
		}
	}
}

// answer hands out what the waiters want. The next call gives back granted permits without a waiter.
func (b *combiner) answer(reply counterReply, change *counterChange, waiters []*counterWaiter) {
	b.m.of.mu.Lock()
	defer b.m.of.mu.Unlock()
	b.answered()
	if b.looks {
		b.looked(reply.latch, waiters)
	} else {
		b.granted(reply.PermitsReply, waiters)
	}
	if change == nil {
		return
	}
	if change.what == lua.Drain && change.callers == 0 {
		b.giveBack(reply.Done)
	}
	change.end(outcome{done: reply.Done, given: reply.Released})
}

// granted hands out the granted permits. Counters.mu is held.
func (b *combiner) granted(reply lua.PermitsReply, waiters []*counterWaiter) {
	slots := reply.Slots
	for _, i := range reply.Granted {
		w := waiters[i]
		n := len(w.ids)
		w.slots, slots, w.sent = slots[:n], slots[n:], b.began
		if w.gone {
			b.giveBack(w.n-int64(n), w.ids...)
		} else {
			b.let(w, nil)
		}
	}
	if !reply.More && len(reply.Granted) < len(waiters) { // those in the call wait, and those behind them
		_, behind := b.front()
		for _, w := range slices.Concat(waiters, behind) {
			b.refuse(w, reply.Free)
		}
	}
	// If more permits have expired, they may suffice: it asks again at once.
	b.asked = b.asked && !reply.More && (len(reply.Granted) == 0 || b.live <= len(waiters)-len(reply.Granted))
}

// looked lets those go on whose latch is open, or was since their first look: then another call has set it. Counters.mu is held.
func (b *combiner) looked(look lua.Latch, waiters []*counterWaiter) {
	b.asked = b.asked && (look.Count > 0 || b.gathers == nil) // those who came meanwhile need not wait long
	for _, w := range waiters {
		if !w.gone && (look.Count <= 0 || w.seen && look.Set != "" && look.Set != w.set) {
			b.let(w, nil)
			continue
		}
		if !w.seen {
			w.set = look.Set
		}
		b.refuse(w, look.Count)
	}
}

// fail ends a call that Redis refused, or did not answer:
//
//   - A look, and leaving the line, have nothing to undo: a place ends by itself. After a refusal there is nothing to undo either. Then those
//     whose call it was fail, unless a caller relies on the change that has left, or was told that it goes on.
//   - Otherwise all fail. What may have run is ended, and changes that add are made all the same.
func (b *combiner) fail(err error, mayHaveRun bool, change *counterChange, waiters []*counterWaiter) {
	b.m.of.mu.Lock()
	defer b.m.of.mu.Unlock()
	transient, leaves := calls.IsTransient(err), change == nil && len(waiters) == 0
	goesOn := change != nil && adds(change.what) && change.goesOn
	if leaves || b.looks || !transient && !mayHaveRun && !goesOn {
		if !transient {
			b.answered()
		}
		for _, w := range waiters {
			b.let(w, err)
		}
		b.asked = false // for those who were not in the call
		b.placed = b.placed && !leaves
		if change != nil {
			change.end(outcome{err: err})
		}
		return
	}
	b.letAll(err)
	b.placed = !b.m.Client.Calls.IsClosed() && (b.placed || b.args.Waits && len(waiters) > 0)
	later := err // of what is made later: no refusal
	if !transient {
		later = calls.ErrNoAnswer
	}
	b.failed = mayHaveRun
	if b.sent = nil; change != nil {
		o := outcome{err: err, pending: mayHaveRun && stays(change.what)}
		if adds(change.what) {
			b.failed, o.pending = true, true
			if transient || !goesOn { // otherwise it is a refusal of which its caller should know
				o.err = later
			}
		}
		change.end(o)
	}
	if b.failed {
		b.failing = later
	}
	unsent := b.changes
	b.changes = nil
	for _, call := range unsent {
		if adds(call.what) {
			call.end(outcome{err: later, pending: true})
			b.add(call.ctx, call.what, call.n, call.back...).goesOn = true
		} else {
			call.end(outcome{err: err})
		}
	}
}

// end ends the unanswered call: permits it took are given back, and a change that it made, or that adds, is made. It is tried again
// after a pause, even after refusals; once if the engine is closed. When the time for that is over, which is one for all changes, those that
// are left are dropped.
func (b *combiner) end() {
	m, c := b.m, b.m.Client
	b.args.Cancel = true
	var reply counterReply
	var err error
	for pause := calls.MinPause; ; pause = min(2*pause, 4*calls.MaxPause) {
		last := c.Calls.IsClosed() || time.Since(b.began) > sweep.Most
		ctx, cancel := c.Calls.Last()
		reply, err = m.use(ctx, b.args)
		cancel()
		c.Calls.Answered(m.Slot(), err)
		if err == nil || last {
			break
		}
		select {
		case <-time.After(pause):
		case <-c.Calls.Done():
		}
	}
	if err != nil {
		what := "the number of permits of a semaphore"
		if m.Kind == kinds.Latch {
			what = "the count of a latch"
		}
		c.Options.Tell.Warn("rlock: "+what+" may be wrong after a call without an answer", "name", m.Name, "err", err)
	}
	m.of.mu.Lock()
	defer m.of.mu.Unlock()
	b.answered()
	b.failed, b.failing = false, nil
	if err != nil {
		b.changes = nil
	} else if b.args.Change == lua.Drain {
		b.giveBack(reply.Done)
	}
}

// queueKey returns the key of the process queue; "" if scripts cannot see whether a process listens.
func (m Counter) queueKey() string {
	if m.Kind == kinds.Latch || !m.SeesProcesses() {
		return ""
	}
	return m.Queue
}

// args returns the arguments of a new request.
func (m Counter) args() lua.PermitsArgs {
	c := m.Client
	args := lua.PermitsArgs{SemaphoreArgs: lua.SemaphoreArgs{
		Semaphore: lua.Semaphore{
			Name: m.Key, Requests: kinds.SemaphoreRequests(m.Key), Queue: m.queueKey(), Publish: lua.Publish(c.KnownChannel(m.Lock)),
			Client: c.ID, Keep: c.GrantLease,
		},
		Request: m.of.requests.Add(1),
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
