package deadlock

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-rlock/rlock/internal/ear"
	"github.com/go-rlock/rlock/internal/engine"
	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/internal/tenure"
	"github.com/go-rlock/rlock/pubsub"
)

// A Lock that waits for longer than Terms.After with holds in its ctx may be part of a deadlock. From then on it is in the graph of the
// process, and looks for a cycle in which it is the last wait:
//
//	state     event                        next
//	waiting   After is over                long: it is in the graph
//	long      a cycle is found             failed, or told of once
//	          none is found                speaks to those in its way, asks Redis who else is; again after a pause that doubles
//	any       the lock, ctx, time, Close   over: it is out of the graph
//
// Each look runs on a goroutine of its own, started by the timer. A Lock without the option, or without holds in its ctx, has none of this;
// a shorter wait costs only a timer.

// Terms configure a Client's search for deadlocks.
type Terms struct {
	After time.Duration // 0: it does not search
	Fail  bool          // the victim fails; otherwise it is told of
	Label string        // of the Client, for people; "": none
	Graph *Graph

	// Cycle makes the error of a victim: the first step is its wait, for the lock called name.
	Cycle func(name string, cycle []Step) error
	// Tell is told of the victim that waits on: the Lock called with ctx, of that kind of lock.
	Tell func(ctx context.Context, kind string, err error)
}

// Client is what a Client has for deadlocks: it watches the waits of its Locks, and observes their holds.
type Client struct {
	Terms

	ear        *ear.Ear
	held       heldLocks
	probing    atomic.Int32
	describing atomic.Int32

	mu      sync.Mutex // guards blocked; no other lock is taken under it
	blocked map[*engine.Attempt]*blocked
}

// Watch makes the Client with that ear search for deadlocks, and answer questions about them.
func Watch(e *ear.Ear, terms Terms) {
	c := &Client{Terms: terms, ear: e, blocked: make(map[*engine.Attempt]*blocked)}
	e.Hear(ear.Listener{Kind: SeenKind, Heard: c.describe})
	if c.After == 0 {
		return
	}
	e.Hear(ear.Listener{Kind: Kind, Heard: func(text string) { c.handle(&c.probing, func() { c.Graph.Hear(text) }) }}) // the searches are repeated
	e.Use(c)
}

// of returns what the Client of a lock has; nil: it does not search.
func of(m *tenure.Lock) *Client {
	c, _ := tenure.Feature[*Client](m.Client)
	return c
}

// Observes reports that all locks can be part of a deadlock.
func (*Client) Observes(*tenure.Terms) bool { return true }

// Mark returns none.
func (*Client) Mark(*tenure.Lock) kinds.Capability { return 0 }

// Began notes a hold.
func (c *Client) Began(h *tenure.Hold, _ tenure.Beginning) { c.held.add(h) }

// Ended ends that.
func (c *Client) Ended(h *tenure.Hold) { c.held.remove(h) }

// Refused does nothing: that Lock does not wait.
func (*Client) Refused(*engine.Attempt) {}

// longestLook bounds the pause between two looks, unless After is longer.
const longestLook = 30 * time.Second

// blocked is a waiting Lock with holds in its ctx, from its first wait to its end.
type blocked struct {
	wait   Wait
	client *Client
	lock   *tenure.Lock
	who    tenure.Caller
	within *tenure.Tenure  // that becomes the writer; nil: none
	ended  context.Context // done when the Lock is over
	end    context.CancelFunc
	fails  chan error // capacity 1: why the Lock is to fail

	// mu guards the following. The mutexes of tenures, of the hub and of the graph may be taken under it.
	mu      sync.Mutex
	timer   *time.Timer
	found   bool           // and the Lock fails, or was told of
	err     error          // with which it fails
	waiter  *pubsub.Waiter // in the line of the process; nil: it is not
	holder  string         // that the last refusal named
	asked   []string       // the owners in its way, as Redis said last
	askedAt time.Time
	// Of a reader that is behind a writer that waits for readers, for which it waits, too:
	ahead *pubsub.Waiter // that writer, if it was one of the process when somebody looked last
	marks []string       // those of such writers, if some of asked are readers
}

// Waits notes that a Lock is about to sleep. fails delivers the error with which it gives up if it is the victim.
func (c *Client) Waits(l *engine.Attempt) (fails <-chan error) {
	c.mu.Lock()
	b := c.blocked[l]
	c.mu.Unlock()
	if b == nil {
		if l.Climbs {
			return nil
		}
		holds := holdsOf(l.Ctx)
		if len(holds) == 0 {
			return nil
		}
		b = c.newBlocked(l, holds)
		c.mu.Lock()
		c.blocked[l] = b
		c.mu.Unlock()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiter, b.holder = l.Waiter(), l.Refusal().Holder
	if b.err != nil && len(b.fails) == 0 { // it was delivered when it was too late to leave
		b.fails <- b.err
	}
	return b.fails
}

func (c *Client) newBlocked(l *engine.Attempt, holds []Hold) *blocked {
	b := &blocked{client: c, lock: l.Lock, who: l.Caller, fails: make(chan error, 1)}
	if h := l.Within(); h != nil {
		b.within = h.Tenure
	}
	b.ended, b.end = context.WithCancel(context.Background())
	b.wait = NewWait(b, c.ear.ID, l.Lock.Name, holds)
	b.wait.Label = c.Label
	b.mu.Lock()
	defer b.mu.Unlock()
	b.timer = time.AfterFunc(c.After, func() { b.searchCycle(1, c.After/4) })
	return b
}

// WaitOver ends the watch when the Lock ends.
func (c *Client) WaitOver(l *engine.Attempt) {
	c.mu.Lock()
	b := c.blocked[l]
	delete(c.blocked, l)
	c.mu.Unlock()
	if b == nil {
		return
	}
	b.end()
	b.mu.Lock()
	b.waiter = nil
	b.timer.Stop()
	b.mu.Unlock()
	c.Graph.Remove(&b.wait)
}

// isOver reports whether the Lock has ended, or is about to.
func (b *blocked) isOver() bool {
	return b.ended.Err() != nil || b.who.Ctx.Err() != nil || !b.who.Wait.IsZero() && !time.Now().Before(b.who.Wait)
}

// searchCycle looks for a cycle, and schedules the next look. Its goroutine ends with it; Close waits for it.
func (b *blocked) searchCycle(round int, pause time.Duration) {
	c := b.client
	if !c.ear.Calls.Start() {
		return
	}
	defer c.ear.Calls.Ended()
	if round == 1 {
		b.listen()
		b.mu.Lock()
		if b.ended.Err() == nil { // under mu, or it could be in the graph after its end
			c.Graph.Add(&b.wait)
		}
		b.mu.Unlock()
	}
	c.Graph.SearchCycle(&b.wait, round)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended.Err() == nil && !b.found {
		next := min(2*pause, max(longestLook, c.After))
		b.timer = time.AfterFunc(pause, func() { b.searchCycle(round+1, next) })
	}
}

// Found makes the Lock fail, or reports the cycle, once.
func (b *blocked) Found(cycle []Step) {
	over := b.isOver() // not under mu: that calls the user's ctx
	b.mu.Lock()
	found := b.found || over
	b.found = true
	b.mu.Unlock()
	if found {
		return
	}
	c := b.client
	err := c.Cycle(b.lock.Name, cycle)
	if !c.Fail {
		c.Tell(b.who.Outer, b.lock.Kind.Name, err)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.err = err
	b.fails <- err // once
}

// IsWaiting reports whether the Lock still waits.
func (b *blocked) IsWaiting() bool { return !b.isOver() }
