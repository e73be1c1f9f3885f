package engine

import (
	"context"
	"errors"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/lua"
	"github.com/go-rlock/rlock/pubsub"
)

// The goroutines of a process wait for a latch at its latchGate. The gate has one goroutine, and one waiter in the hub for all of them:
//
//	state     event                             next
//	looking   no count, or a new count          waiters that came before this look go on; later ones need another look
//	          a count                           sleeping
//	          refused, or unanswered too long   waiters that came before this look fail
//	sleeping  the hub gives the turn: a message, the latch's expiry, a minute, a new subscription
//	                                            looking
//	          a waiter came 10 ms ago           looking
//	          the hub is closed or draining     all fail
//	either    the last waiter has left          out
//
// A message is only a hint: it may be older than a waiter. Only a look that began after the waiter came is certain. The first such look
// finds the call that set the latch. If a later look finds another call, the latch was open in between.
//
// So a waiter goes on even if its latch was set anew at once, and no waiter goes on that came after that. This is why the gate looks once
// more for waiters that came while it slept, one look for many.
type latchGate struct {
	m       Latch
	hub     pubsub.Waiter
	ctx     context.Context // done when no waiters are left
	end     context.CancelFunc
	came    chan struct{} // capacity 1: a waiter came that no look covers
	waiters map[*latchWaiter]struct{}
}

// latchWaiter is a waiting goroutine.
type latchWaiter struct {
	covered bool          // a look that began after it came has ended, or is under way
	seen    bool          // such a look has ended
	closed  chan struct{} // closed when seen is set: the latch is not open
	set     string        // the call that had set the latch at that look
	count   int64         // at the last look
	ended   chan struct{} // closed when the wait has ended
	err     error         // why; nil: the latch is open
}

const (
	// latchGrain is how long the gate gathers new waiters before it looks again.
	latchGrain = 10 * time.Millisecond
	// latchLook is the longest sleep of a gate: deleting a count by hand publishes no message.
	latchLook = time.Minute
)

// Await waits until there is no count.
func (m Latch) Await(who Caller) error {
	c := m.Engine
	if err := m.begin(who.Ctx, who.Limit); err != nil {
		return err
	}
	defer c.Calls.Ended()
	switch {
	case c.IsShut():
		return m.closed()
	case who.Ctx.Err() != nil:
		return m.waitedInVain(who, new(latchWaiter))
	}
	w := m.come(who.Ctx)
	m.stay(who, w.closed, w.ended)
	if ended := m.leave(w); ended {
		return w.err
	}
	return m.waitedInVain(who, w)
}

// waitedInVain returns the error of a waiter that left.
func (m Latch) waitedInVain(who Caller, w *latchWaiter) error {
	c := m.Engine
	if c.Calls.IsClosed() {
		return m.closed()
	}
	u := NotAcquired{Ctx: who.Ctx, Name: m.Name, Began: who.Began, Counter: LatchCounter, Seen: w.seen, Count: w.count}
	if err := silence(who.Began); err != nil && !w.seen {
		u.Causes = []error{c.errs.Unreachable(err)}
	}
	return c.errs.NotAcquired(u)
}

// come adds a waiter to the gate, and makes the gate for the first.
func (m Latch) come(ctx context.Context) *latchWaiter {
	c := m.Engine
	all := m.of
	w := &latchWaiter{closed: make(chan struct{}), ended: make(chan struct{})}
	all.mu.Lock()
	defer all.mu.Unlock()
	g := all.gates[m.Key]
	if g == nil {
		if all.gates == nil {
			all.gates = make(map[string]*latchGate)
		}
		g = &latchGate{m: m, came: make(chan struct{}, 1), waiters: make(map[*latchWaiter]struct{})}
		g.ctx, g.end = context.WithCancel(context.WithoutCancel(ctx))
		all.gates[m.Key] = g
		c.Calls.Go(g.run)
	}
	g.waiters[w] = struct{}{}
	select {
	case g.came <- struct{}{}:
	default:
	}
	return w
}

// leave takes a waiter out. It reports whether that has ended.
func (m Latch) leave(w *latchWaiter) (ended bool) {
	all := m.of
	all.mu.Lock()
	defer all.mu.Unlock()
	if calls.IsClosed(w.ended) {
		return true
	}
	g := all.gates[m.Key]
	delete(g.waiters, w)
	g.endIfEmpty()
	return false
}

// endIfEmpty ends the gate if no goroutine waits: later waiters get a new gate.
func (g *latchGate) endIfEmpty() {
	if len(g.waiters) == 0 && g.ctx.Err() == nil {
		delete(g.m.of.gates, g.m.Key)
		g.end()
	}
}

// run ends when no goroutine waits.
func (g *latchGate) run() {
	hub, q := g.m.Engine.Hub, g.m.waiters()
	defer g.hub.Leave()
	turn := hub.Join(&g.hub, q)
	for {
		if !turn {
			if err := g.sleep(q); err != nil {
				g.fail(err, true)
				return
			}
		}
		g.cover()
		look, err := g.look()
		switch {
		case g.ctx.Err() != nil:
			return
		case err != nil:
			g.fail(err, false)
			turn = true
		default:
			turn = !g.saw(look)
		}
		if g.ctx.Err() != nil {
			return
		}
		if !turn {
			ttl := look.TTL
			if ttl < 0 || ttl > latchLook {
				ttl = latchLook
			}
			g.hub.Held(ttl, false)
		}
	}
}

// sleep waits for the turn to look.
func (g *latchGate) sleep(q pubsub.Queue) error {
	var late <-chan time.Time // for waiters that have come
	for {
		select {
		case <-g.hub.Turn():
			_, err := g.hub.News()
			return err
		case <-g.came:
			if late == nil {
				late = time.After(latchGrain)
			}
		case <-late:
			g.m.Engine.Hub.Wake(q)
		case <-g.ctx.Done():
			return g.ctx.Err()
		}
	}
}

// cover begins a look for all present waiters.
func (g *latchGate) cover() {
	all := g.m.of
	all.mu.Lock()
	defer all.mu.Unlock()
	for w := range g.waiters {
		w.covered = true
	}
	select {
	case <-g.came:
	default:
	}
}

// look asks Redis, and retries after transient errors.
func (g *latchGate) look() (lua.Latch, error) {
	m, c := g.m, g.m.Engine
	look, _, err := Leavable(g.ctx, m.Spec, time.Time{}, func(left <-chan struct{}) (lua.Latch, error) {
		again := calls.Retry{Least: calls.MinTries}
		for {
			look, err := lua.LookAtLatch(c.Calls.Context(g.ctx, time.Now(), 0), c.rdb, m.Key, m.queue)
			if err == nil || !again.Wait(err, left, c.Calls.Done()) {
				return look, err
			}
		}
	}, nil)
	return look, err
}

// saw gives the result to the waiters. It reports false if another look is needed, for waiters that came too late for this look.
func (g *latchGate) saw(look lua.Latch) bool {
	all := g.m.of
	all.mu.Lock()
	defer all.mu.Unlock()
	again := false
	for w := range g.waiters {
		switch {
		case !w.covered:
			again = true
		case look.Count <= 0, w.seen && look.Set != "" && look.Set != w.set:
			g.let(w, nil)
		case !w.seen:
			w.seen, w.set = true, look.Set
			close(w.closed)
		}
		w.count = max(look.Count, 0)
	}
	g.endIfEmpty()
	return look.Count > 0 || !again
}

// let ends one waiter's wait.
func (g *latchGate) let(w *latchWaiter, err error) {
	w.err = err
	close(w.ended)
	delete(g.waiters, w)
}

// fail ends the wait of the waiters covered by the failed look, or of all.
func (g *latchGate) fail(err error, everybody bool) {
	m, c := g.m, g.m.Engine
	if c.Calls.IsClosed() || errors.Is(err, pubsub.ErrClosed) {
		err, everybody = m.closed(), true
	} else {
		err = m.unreachable(err)
	}
	all := m.of
	all.mu.Lock()
	defer all.mu.Unlock()
	for w := range g.waiters {
		if w.covered || everybody {
			g.let(w, err)
		}
	}
	g.endIfEmpty()
}
