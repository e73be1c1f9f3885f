package engine

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/lua"
	"github.com/go-rlock/rlock/pubsub"
)

// pool makes a process's calls for one semaphore, of either kind. It makes one call at a time, for all callers: it gives permits back,
// or changes their number, and requests permits for the waiters in order. The first caller runs it, if that caller cannot leave, while
// there is no work for others and no need to sleep; then a goroutine does:
//
//	state     event                                     next
//	idle      a change, or a waiter, comes or leaves    calling
//	          the hub gives the turn: a message, the time that the last reply said, a new connection
//	                                                    calling, if somebody waits
//	          the hub is closed, or refused             the waiters fail
//	calling   reply                                     idle: whoever was granted permits has them. What nobody waits for any more, the
//	                                                    next call gives back
//	          error that may pass                       calling again, for 3 s after the first error
//	          other error                               idle: those whose call it was fail
//	          3 s over, Close                           failing from now on
//	failing   at once                                   all fail, with ErrUnreachable, and so do those that come
//	          the call is cancelled                     idle: what it took is given back. That is tried for a minute, or once if the engine is closed
//	any       nobody waits, and no change is left       out: the process leaves Redis's queue
type pool struct {
	m Semaphore

	// Used only by the goroutine running it.
	hub    pubsub.Waiter    // the process's only waiter for the semaphore
	joined bool             // in the hub
	turn   bool             // in the hub
	placed bool             // in Redis's queue, maybe
	again  time.Duration    // ask again after this, unless there is a message
	failed *lua.PermitsArgs // an unanswered call to be cancelled

	// Guarded by pools.mu.
	waiters []*permitWaiter // in the order of their calls
	changes []*permitChange // not sent yet
	asked   bool            // Redis knows the wants of the first waiters, and
	least   int64           // the smallest want of all waiters known to Redis
	more    chan struct{}   // capacity 1: a waiter or change has come or left
	failing error
}

// pools are the pools of an engine.
type pools struct {
	requests atomic.Int64

	mu sync.Mutex // guards the following and all that is reachable from it; no other lock is taken under it
	of map[poolKey]*pool
}

// poolKey identifies a pool.
type poolKey struct {
	kind *kinds.Kind
	key  string
}

func (m Semaphore) poolKey() poolKey { return poolKey{m.Kind, m.Key} }

// permitWaiter is a caller that wants permits.
type permitWaiter struct {
	n       int64
	ctx     context.Context // for its values
	once    bool            // it does not wait
	gone    bool            // it has left, or its wait has ended
	refused chan struct{}   // closed when it was refused for the first time, and
	seen    bool            // is set then
	free    int64           // free permits at its last refusal
	ended   chan struct{}   // closed when its wait has ended
	err     error           // why; nil: it has its permits

	// For permits that expire.
	lease time.Duration
	ids   []lua.PermitID // as many as it wants
	slots []int64        // of these, once granted, and
	sent  time.Time      // when they were first requested: their lease began no earlier
}

// permitChange is a change of the number of permits.
type permitChange struct {
	what    lua.Change
	n       int64
	back    []lua.PermitID  // to be given back
	ctx     context.Context // for its values
	callers int             // that wait for it
	goesOn  bool            // needed by a caller that has left, or by the pool itself
	over    bool
	ended   chan struct{} // closed when the following is set
	done    int64
	given   []lua.Given // one for each permit given back
	err     error
}

// adds reports whether a change must be made even if its caller leaves, because it gives permits away.
func adds(what lua.Change) bool { return what == lua.Add || what == lua.AddIfExists }

// get returns a semaphore's pool, and as made the same pool if it is new and must be started. mu is held.
func (all *pools) get(m Semaphore) (p, made *pool) {
	p = all.of[m.poolKey()]
	if p != nil {
		return p, nil
	}
	if all.of == nil {
		all.of = make(map[poolKey]*pool)
	}
	p = &pool{m: m, more: make(chan struct{}, 1)}
	all.of[m.poolKey()] = p
	return p, p
}

func (p *pool) poke() {
	select {
	case p.more <- struct{}{}:
	default:
	}
}

// come adds a waiter. A try is refused at once if others wait. The error is that of a failing pool. If made is not nil, the caller must
// start it.
func (all *pools) come(m Semaphore, w *permitWaiter) (made *pool, err error) {
	all.mu.Lock()
	defer all.mu.Unlock()
	p, made := all.get(m)
	switch {
	case p.failing != nil:
		return nil, p.failing
	case w.once && len(p.waiters) > 0:
		close(w.refused)
		return nil, nil
	}
	p.waiters = append(p.waiters, w)
	if p.asked = p.asked && p.front() < len(p.waiters) && w.n >= p.least; p.asked && p.waiters[0].seen {
		w.wait(p.waiters[0].free)
	}
	p.poke()
	return made, nil
}

// front returns how many waiters one call can serve. pools.mu is held.
func (p *pool) front() int {
	n, ids := 0, 0
	for _, w := range p.waiters[:min(len(p.waiters), lua.MaxWants)] {
		if ids += len(w.ids); ids > lua.MaxPermitIDs {
			break
		}
		n++
	}
	return n
}

// wait records a waiter's refusal, of its own request or because it is behind others. pools.mu is held.
func (w *permitWaiter) wait(free int64) {
	w.free = free
	if !w.seen {
		w.seen = true
		close(w.refused)
	}
}

// leave takes a waiter out. It reports whether its wait has ended.
func (all *pools) leave(m Semaphore, w *permitWaiter) (ended bool) {
	all.mu.Lock()
	defer all.mu.Unlock()
	if w.gone {
		return true
	}
	w.gone = true
	p := all.of[m.poolKey()]
	if p == nil {
		return false
	}
	if at := slices.Index(p.waiters, w); at >= 0 {
		p.asked = p.asked && at >= p.front() && w.n > p.least
		p.waiters = slices.Delete(p.waiters, at, at+1)
		p.poke()
	}
	return false
}

// change adds a change for a caller, and gives back those permits; at is their index in the change. Adding changes are merged until
// sent. The error is that of a failing pool, which makes only adding changes, later. If the caller cannot leave and nothing else is
// under way, it returns when the change has ended.
func (all *pools) change(
	ctx context.Context, m Semaphore, leaves bool, what lua.Change, n int64, back ...lua.PermitID,
) (call *permitChange, at int, err error) {
	var made *pool
	if call, at, made, err = all.enter(ctx, m, what, n, back...); made != nil {
		made.start(leaves, call.ended)
	}
	return call, at, err
}

// enter is change without starting a new pool, which is returned.
func (all *pools) enter(
	ctx context.Context, m Semaphore, what lua.Change, n int64, back ...lua.PermitID,
) (call *permitChange, at int, made *pool, err error) {
	all.mu.Lock()
	defer all.mu.Unlock()
	p, made := all.get(m)
	if p.failing != nil && !adds(what) {
		return nil, 0, nil, p.failing
	}
	call = p.add(ctx, what, n, back...)
	if p.failing != nil {
		return nil, 0, nil, p.failing
	}
	call.callers++
	return call, len(call.back) - len(back), made, nil
}

// add adds a change. pools.mu is held.
func (p *pool) add(ctx context.Context, what lua.Change, n int64, back ...lua.PermitID) *permitChange {
	if last := len(p.changes) - 1; what == lua.Add && last >= 0 && p.changes[last].what == lua.Add {
		call := p.changes[last]
		sum, ids := call.n+n, len(call.back)+len(back)
		told := call.over && p.failing == nil // its callers know of the failure; a new caller must not get it
		if !told && -lua.MaxPermits <= sum && sum <= lua.MaxPermits && ids <= lua.MaxPermitIDs {
			call.n, call.back = sum, append(call.back, back...)
			return call
		}
	}
	call := &permitChange{what: what, n: n, back: slices.Clone(back), ctx: ctx, ended: make(chan struct{})}
	p.changes = append(p.changes, call)
	p.poke()
	return call
}

// isOver reports whether a change has ended. If it has not, one of its callers leaves.
func (all *pools) isOver(call *permitChange) bool {
	all.mu.Lock()
	defer all.mu.Unlock()
	if !call.over {
		call.callers--
		call.goesOn = true
	}
	return call.over
}

// queueInHub returns the hub queue in which the pool waits.
func (m Semaphore) queueInHub() pubsub.Queue {
	return pubsub.Queue{Lock: m.Key, Channel: m.Engine.KnownChannel(m.Spec), Places: m.seesProcesses(), Counts: true}
}

// start runs a new pool: on a goroutine if the caller may leave. Otherwise the caller runs it until over is closed, while there is no
// work for others and no need to sleep.
func (p *pool) start(leaves bool, over <-chan struct{}) {
	if leaves || !p.runFor(over) {
		p.m.Engine.Calls.Go(p.run)
	}
}

// runFor reports whether the pool has ended.
func (p *pool) runFor(over <-chan struct{}) bool {
	for {
		if calls.IsClosed(over) {
			if wait, ask := p.wants(); wait || ask || p.failed != nil {
				return false
			}
		}
		switch p.step() {
		case poolEnded:
			return true
		case poolSleeps, poolIsDue:
			return false
		case poolWorks:
		}
	}
}

// run ends when no request or change is left.
func (p *pool) run() {
	for {
		switch p.step() {
		case poolEnded:
			return
		case poolSleeps:
			p.awaitTurn(p.more)
		case poolIsDue:
			p.awaitTurn(nil)
		case poolWorks:
		}
	}
}

// poolState is a pool's next action.
type poolState int8

const (
	poolWorks  poolState = iota // there may be more to do
	poolSleeps                  // it waits for its turn, or for a caller to come or leave
	poolIsDue                   // it waits for its turn, and then asks
	poolEnded
)

// step does the work possible without waiting for the turn.
func (p *pool) step() poolState {
	hub, q := p.m.Engine.Hub, p.m.queueInHub()
	switch wait, ask := p.wants(); {
	case p.failed != nil:
		p.cancel()
	case !wait && !ask:
		if p.leaveLine(); p.end() {
			return poolEnded
		}
	case wait && !p.joined:
		p.hub = pubsub.Waiter{Shared: true, Joint: true} // so that it does not count as a waiter for its own permits
		p.joined, p.turn = true, hub.Join(&p.hub, q)
	case ask && (p.turn || !p.joined):
		p.call()
	case ask:
		hub.Wake(q)
		return poolIsDue
	case p.turn:
		p.turn = false
		p.hub.Held(p.again, p.placed)
	default:
		return poolSleeps
	}
	return poolWorks
}

// wants reports whether callers wait, and whether there is a request to make.
func (p *pool) wants() (wait, ask bool) {
	all := &p.m.of.pools
	all.mu.Lock()
	defer all.mu.Unlock()
	select { // everything queued so far is seen here
	case <-p.more:
	default:
	}
	if p.m.Engine.Calls.IsClosed() {
		p.refuse(p.m.Engine.errs.Closed, p.waiters)
	}
	wait = slices.ContainsFunc(p.waiters, func(w *permitWaiter) bool { return !w.once })
	return wait, len(p.changes) > 0 || len(p.waiters) > 0 && !p.asked
}

// awaitTurn waits for the turn, or until more is ready.
func (p *pool) awaitTurn(more <-chan struct{}) {
	all := &p.m.of.pools
	select {
	case <-p.hub.Turn():
	case <-more:
		return
	}
	_, err := p.hub.News()
	if p.turn = err == nil; p.turn {
		all.mu.Lock()
		p.asked = false
		all.mu.Unlock()
		return
	}
	p.hub.Leave()
	p.joined = false
	if errors.Is(err, pubsub.ErrClosed) {
		err = p.m.Engine.errs.Closed
	}
	all.mu.Lock()
	defer all.mu.Unlock()
	p.refuse(err, p.waiters)
}

// refuse ends the wait of some waiters with err. pools.mu is held.
func (p *pool) refuse(err error, some []*permitWaiter) {
	for _, w := range slices.Clone(some) {
		p.let(w, err)
	}
}

// let ends one waiter's wait. pools.mu is held.
func (p *pool) let(w *permitWaiter, err error) {
	w.err, w.gone = err, true
	close(w.ended)
	p.remove(w)
}

func (p *pool) remove(w *permitWaiter) {
	p.waiters = slices.DeleteFunc(p.waiters, func(x *permitWaiter) bool { return x == w })
}

// leaveLine takes the process out of the hub and of Redis's queue when no caller waits.
func (p *pool) leaveLine() {
	if p.placed {
		p.ask(nil, nil, true)
	}
	switch {
	case p.turn:
		p.hub.Done(0)
	case p.joined:
		p.hub.Leave()
	}
	p.joined, p.turn = false, false
}

// end ends the pool, unless more work has come meanwhile, and reports whether it did.
func (p *pool) end() bool {
	all := &p.m.of.pools
	all.mu.Lock()
	defer all.mu.Unlock()
	if len(p.waiters) > 0 || len(p.changes) > 0 || p.placed || p.failed != nil {
		return false
	}
	delete(all.of, p.m.poolKey())
	return true
}

// call sends the first change and the first waiters' requests.
func (p *pool) call() {
	all := &p.m.of.pools
	waits := p.turn && p.m.queueKey() != "" && p.hub.Listens() && p.hub.TakePlace(p.m.Engine.ID)
	all.mu.Lock()
	var change *permitChange
	if len(p.changes) > 0 {
		change, p.changes = p.changes[0], p.changes[1:]
	}
	waiters := p.firstWaiters()
	p.asked = p.turn // out of the hub, it may miss the message that follows
	all.mu.Unlock()
	p.ask(change, waiters, waits)
}

// firstWaiters returns the waiters for one call. The last is the smallest want behind them, if smaller than all before it, so that
// large requests do not block a small one. pools.mu is held.
func (p *pool) firstWaiters() []*permitWaiter {
	first := slices.Clone(p.waiters[:p.front()])
	if len(first) == 0 {
		return nil
	}
	byWant := func(a, b *permitWaiter) int { return cmp.Compare(a.n, b.n) }
	p.least = slices.MinFunc(first, byWant).n
	if least := slices.MinFunc(p.waiters, byWant); least.n < p.least {
		first[len(first)-1], p.least = least, least.n
	}
	return first
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
		p.fail(err, change)
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

// goesOn reports whether a refused change must still be made, because a caller that relies on it has left.
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
		change.end(reply.Done, nil)
	}
	if back > 0 {
		p.giveBack(back)
	}
}

// giveBack adds a change that returns unclaimed permits. pools.mu is held.
func (p *pool) giveBack(n int64, ids ...lua.PermitID) {
	p.add(context.Background(), lua.Add, n, ids...).goesOn = true
}

func (call *permitChange) end(done int64, err error) {
	if !call.over {
		call.over, call.done, call.err = true, done, err
		close(call.ended)
	}
}

// refused fails the callers of a refused call.
func (p *pool) refused(err error, change *permitChange, waiters []*permitWaiter) {
	all := &p.m.of.pools
	all.mu.Lock()
	defer all.mu.Unlock()
	for _, w := range waiters {
		if !w.gone {
			p.let(w, err)
		}
	}
	p.asked = false // for those who were not in the call
	if change != nil {
		change.end(0, err)
	}
}

// fail fails all callers after no answer from Redis. Of the unsent changes, only adding ones stay.
func (p *pool) fail(err error, change *permitChange) {
	all := &p.m.of.pools
	all.mu.Lock()
	defer all.mu.Unlock()
	p.refuse(err, p.waiters)
	p.failing = err
	if !calls.MayPass(err) {
		p.failing = calls.ErrNoAnswer // an adding change is still made, so err must not be a refusal
	}
	for _, call := range append([]*permitChange{change}, p.changes...) {
		switch {
		case call == nil:
		case adds(call.what):
			call.end(0, p.failing)
		default:
			call.end(0, err)
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

// cancel ends the unanswered call: permits it took are given back, and permits it should give back are.
func (p *pool) cancel() {
	args := *p.failed
	args.Cancel = true
	var reply lua.PermitsReply
	answered := p.m.insist(time.Now(), "the number of permits of a semaphore", func(ctx context.Context) (err error) {
		reply, err = p.m.use(ctx, args)
		return err
	})
	all := &p.m.of.pools
	all.mu.Lock()
	defer all.mu.Unlock()
	if answered && args.Change == lua.Drain && reply.Done > 0 {
		p.giveBack(reply.Done)
	}
	p.failed, p.failing = nil, nil
}
