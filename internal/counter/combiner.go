package counter

import (
	"errors"
	"slices"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/pubsub"
)

// combiner makes a process's calls for one counter. It makes one call at a time, for all callers: a change, and what the waiters want, in
// order. A latch has two of them: one makes changes, the other looks for its waiters. The first call is made outside the hub, which a free
// counter does not need; if others have just waited, and the process still listens, inside, with a place in line:
//
//	state     event                                     next
//	idle      a change, or a waiter, comes or leaves    calling
//	          the hub gives the turn: a message, the time that the last reply said, a new connection
//	                                                    calling, if somebody waits
//	          a message gives the only waiter's permit  idle: it has that, or, if the message may be too old, asks
//	          the hub is closed, or refused             the waiters fail
//	calling   reply                                     idle: whoever was granted permits has them, or goes on if the latch is open. What
//	                                                    nobody waits for any more, the next call gives back
//	          error that may pass                       calling again, for 3 s after the first error
//	          other error                               idle: those whose call it was fail
//	          3 s over, Close                           failing: all fail, with ErrUnreachable, and so do those that come. Changes that give
//	                                                    permits back, or count down, stay. After a look: idle, those who waited fail
//	failing   the call is ended                         idle: what it took is given back, what it changed stays, and the next change is made
//	          a minute is over, or Close                idle: the changes that are left are dropped, and the log says so
//	any       nobody waits, and no change is left       out: the process leaves Redis's queue
type combiner struct {
	m Counter
	combinerKey

	// Used only by the goroutine running it.
	hub    pubsub.Waiter // the process's only waiter for the counter
	turn   bool          // in the hub
	placed bool          // in Redis's queue, maybe
	last   request
	again  time.Duration // ask again after this, unless there is a message
	seen   time.Time     // when the last answered request with its place was first sent

	// Guarded by Counters.mu.
	joined  bool             // in the hub
	waiters []*counterWaiter // in the order of their calls, and some that have gone
	live    int              // those that have not
	changes []*counterChange // not sent yet
	asked   bool             // Redis was asked for the first waiters since it last said that there may be news
	gathers time.Time        // some came who need a look, which begins then; zero: nobody did
	offered *counterWaiter   // another process may give it the permit with its id, which stands in the line; nil: none
	calling bool             // a call is under way
	more    chan struct{}    // capacity 1: a waiter or change has come or left
	behind  bool             // counted as a call whose caller has left
	failing error            // why the last request failed, until that is ended; nil: it did not
}

// lingers is how long a subscription stays in the hub: during that time a process that asks can have its place in line at once.
const lingers = 500 * time.Millisecond

// combinerKey identifies a combiner: there may be counters of several kinds with one key.
type combinerKey struct {
	kind  *kinds.Kind
	key   string
	looks bool // for those who wait for a latch
}

// combiner returns a counter's combiner, for a caller that has started a call. counted: see calls.Admit. Counters.mu is held.
func (m Counter) combiner(looks, counted bool) *combiner {
	key := combinerKey{m.Kind, m.Key, looks}
	b := m.of.combiners[key]
	switch {
	case b == nil:
		b = &combiner{m: m, combinerKey: key, more: make(chan struct{}, 1), behind: counted}
		m.of.combiners[key] = b
		m.Client.Calls.Go(b.run)
	case counted:
		m.Client.Calls.LeftEnds(m.Slot())
	}
	return b
}

// left is called when a caller leaves a call, which from then on counts as left behind. Counters.mu is held.
func (b *combiner) left() {
	if !b.behind {
		b.behind = true
		b.m.Client.Calls.Leave(b.m.Slot())
	}
}

// answered is called when Redis has answered, or the combiner ends. Counters.mu is held.
func (b *combiner) answered() {
	if b.behind {
		b.behind = false
		b.m.Client.Calls.LeftEnds(b.m.Slot())
	}
}

func (b *combiner) poke() {
	select {
	case b.more <- struct{}{}:
	default:
	}
}

// run ends when nobody waits, and no change is left. It holds Counters.mu, except while it asks Redis, or sleeps.
func (b *combiner) run() {
	b.m.of.mu.Lock()
	defer b.m.of.mu.Unlock()
	for b.step() {
	}
}

// step does what is next, or waits for that. It returns false at the end.
func (b *combiner) step() bool {
	if b.m.Client.Calls.IsClosed() {
		b.let(b.m.Client.Errors.Closed, b.waiters...)
	}
	if !b.gathers.IsZero() && !time.Now().Before(b.gathers) {
		b.asked, b.gathers = false, time.Time{}
	}
	b.tidy()
	hub, idle := b.m.Client.Hub, b.live == 0 && len(b.changes) == 0
	switch {
	case b.failing != nil:
		b.end()
	case idle && b.placed:
		b.call()
	case idle:
		b.leaveHub()
		b.answered()
		delete(b.m.of.combiners, b.combinerKey)
		return false
	case !b.joined && b.waits():
		b.hub = pubsub.Waiter{Shared: !b.looks, Joint: !b.looks} // so that it does not count as a waiter for its own permits
		b.joined, b.turn = true, hub.Join(&b.hub, b.m.Waiters())
		b.asked = b.asked && !b.hub.Hears() // there may have been news
	case b.asks() && (b.turn || !b.joined):
		b.call()
	case b.asks():
		hub.Wake(b.m.Waiters())
		b.await(nil)
	case b.turn:
		b.turn = false
		b.hub.Held(b.again, b.placed)
	case !b.joined: // those here do not wait, and came during the last look: nobody else will ask for them
		b.asked = false
	default:
		b.await(b.more)
	}
	return true
}

// asks reports whether there is a call to make.
func (b *combiner) asks() bool { return len(b.changes) > 0 || b.live > 0 && !b.asked }

// waits reports whether callers wait, or will probably have to.
func (b *combiner) waits() bool {
	return slices.ContainsFunc(b.waiters, func(w *counterWaiter) bool {
		return !w.once && (w.seen || b.asked || time.Since(b.m.of.slept) < lingers)
	})
}

// await waits for the turn, or until there is something else to do.
func (b *combiner) await(more <-chan struct{}) {
	var turn <-chan struct{}
	if b.joined {
		turn = b.hub.Turn()
	}
	gathered, stop := calls.At(b.gathers)
	defer stop()
	b.m.of.mu.Unlock()
	news := false
	select {
	case <-turn:
		news = true
	case <-more:
	case <-gathered:
	}
	b.m.of.mu.Lock()
	if !news {
		return
	}
	granted, err := b.hub.News()
	switch {
	case granted:
		b.given(b.hub.Given())
	case err == nil:
		b.turn, b.asked = true, false // an answer that it had is too old
	default:
		b.hub.Leave()
		if b.joined = false; errors.Is(err, pubsub.ErrClosed) {
			err = b.m.Client.Errors.Closed
		}
		b.let(err, b.waiters...)
	}
}

// given hands out the permit that another process has given with its message. If too little of the grant's lease is left, counted from the
// last call that saw the place, or an answer may be newer, Redis is asked first: it knows the id.
func (b *combiner) given(g *pubsub.Grant) {
	b.joined, b.asked, b.m.of.slept = false, false, time.Now()
	if g.Crossed {
		return
	}
	b.placed = false
	if w := b.offered; w != nil {
		if lasts := min(g.Lease, w.lease); time.Until(b.seen.Add(lasts)) > lasts/2 {
			w.slots, w.sent, w.first = []int64{g.Token}, b.seen, lasts
			b.let(nil, w)
		}
	}
}

// leaveHub takes the process out of the hub.
func (b *combiner) leaveHub() {
	switch {
	case !b.joined:
		return
	case b.hub.Waited():
		b.m.of.slept = time.Now()
	}
	if b.joined = false; b.turn {
		b.hub.Done(0)
	} else {
		b.hub.Leave()
	}
	b.turn = false
}
