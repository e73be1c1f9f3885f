package engine

import (
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
//	failing   at once                                   all fail, with ErrUnreachable, and so do those that come. Changes that give permits back stay
//	          the call is cancelled                     idle: what it took is given back, and the next change is made
//	          a minute is over, or Close                idle: the changes that are left are dropped, and the log says so
//	any       nobody waits, and no change is left       out: the process leaves Redis's queue
//
// Its waiters are in pool_wait.go, its changes in pool_change.go, its calls in pool_call.go.
type pool struct {
	m Semaphore

	// Used only by the goroutine running it.
	hub    pubsub.Waiter    // the process's only waiter for the semaphore
	joined bool             // in the hub
	turn   bool             // in the hub
	placed bool             // in Redis's queue, maybe
	again  time.Duration    // ask again after this, unless there is a message
	failed *lua.PermitsArgs // an unanswered call to be cancelled
	since  time.Time        // when that was first sent

	// Guarded by pools.mu.
	waiters []*permitWaiter // in the order of their calls
	changes []*permitChange // not sent yet
	asked   bool            // Redis knows the wants of the first waiters
	sent    *permitChange   // under way; nil: none
	more    chan struct{}   // capacity 1: a waiter or change has come or left
	behind  bool            // counted as a call whose caller has left
	failing error
}

// pools are the pools of an engine.
type pools struct {
	requests atomic.Int64

	mu sync.Mutex // guards the following and all that is reachable from it; the left calls' is taken under it
	of map[poolKey]*pool
}

// poolKey identifies a pool.
type poolKey struct {
	kind *kinds.Kind
	key  string
}

func (m Semaphore) poolKey() poolKey { return poolKey{m.Kind, m.Key} }

// get returns a semaphore's pool, and as made the same pool if it is new and must be started. counted: see calls.Admit. mu is held.
func (all *pools) get(m Semaphore, counted bool) (p, made *pool) {
	p = all.of[m.poolKey()]
	if p != nil {
		if counted {
			m.Engine.Calls.LeftEnds(m.Slot)
		}
		return p, nil
	}
	if all.of == nil {
		all.of = make(map[poolKey]*pool)
	}
	p = &pool{m: m, more: make(chan struct{}, 1), behind: counted}
	all.of[m.poolKey()] = p
	return p, p
}

// left is called when a caller has left. A pool without callers counts as a call left behind. mu is held.
func (p *pool) left() {
	waits := len(p.waiters) > 0 || p.sent != nil && p.sent.callers > 0
	if p.behind || waits || slices.ContainsFunc(p.changes, func(call *permitChange) bool { return call.callers > 0 }) {
		return
	}
	p.behind = true
	p.m.Engine.Calls.Leave(p.m.Slot)
}

// answered is called when Redis has answered, or the pool ends. mu is held.
func (p *pool) answered() {
	if p.sent = nil; p.behind {
		p.behind = false
		p.m.Engine.Calls.LeftEnds(p.m.Slot)
	}
}

func (p *pool) poke() {
	select {
	case p.more <- struct{}{}:
	default:
	}
}

// ofPermits is behind the Client's id, and the name, where both kinds of semaphores with one name would have the same.
const ofPermits = ":permits"

// queueInHub returns the hub queue in which the pool waits.
func (m Semaphore) queueInHub() pubsub.Queue {
	lock := m.Key
	if m.Kind == kinds.PermitSemaphore {
		lock += ofPermits // two kinds of one name wait beside each other
	}
	return pubsub.Queue{Lock: lock, Channel: m.Engine.KnownChannel(m.Spec), Places: m.seesProcesses(), Counts: true}
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
	p.answered()
	delete(all.of, p.m.poolKey())
	return true
}
