package engine

import (
	"context"
	"sync"
	"time"

	"github.com/go-rlock/rlock/internal/deadlock"
	"github.com/go-rlock/rlock/pubsub"
)

// A Lock that waits for longer than Options.Deadlock.After with holds in its ctx may be part of a deadlock. From then on it is in the graph
// of the process (package deadlock), and looks for a cycle in which it is the last wait:
//
//	state     event                        next
//	waiting   After is over                long: it is in the graph
//	long      a cycle is found             failed, or told of once
//	          none is found                speaks to those in its way, asks Redis who else is; again after a pause that doubles
//	any       the lock, ctx, time, Close   over: it is out of the graph
//
// Each look runs on a goroutine of its own, started by the timer. A Lock without the option, or without holds in its ctx, has none of this;
// a shorter wait costs only a timer.

// DeadlockTerms configure the search of an engine for deadlocks.
type DeadlockTerms struct {
	After time.Duration // 0: it does not
	Fail  bool          // the victim fails; otherwise it is told of
	Graph *deadlock.Graph
}

// longestLook bounds the pause between two looks, unless After is longer.
const longestLook = 30 * time.Second

// blocked is a waiting Lock with holds in its ctx, from its first wait to its end.
type blocked struct {
	wait   deadlock.Wait
	spec   *Spec
	who    Caller
	within *Tenure         // that becomes the writer; nil: none
	ended  context.Context // done when the Lock is over
	end    context.CancelFunc
	failed chan struct{} // closed when the Lock is to fail
	err    error         // why; set before that

	// mu guards the following. The mutexes of tenures, of the hub and of the graph may be taken under it.
	mu      sync.Mutex
	timer   *time.Timer
	found   bool           // and the Lock fails, or was told of
	waiter  *pubsub.Waiter // in the line of the process; nil: it is not
	holder  string         // that the last refusal named
	asked   []string       // the owners in its way, as Redis said last
	askedAt time.Time
	// Of a reader that is behind a writer that waits for readers, for which it waits, too:
	ahead *pubsub.Waiter // that writer, if it was one of the process when somebody looked last
	marks []string       // those of such writers, if some of asked are readers
}

// watch notes that the Lock is about to sleep. failed is closed when the Lock must give up as the victim of a deadlock; nil if it never
// must.
func (l *Attempt) watch() (failed <-chan struct{}) {
	if l.blocked == nil {
		terms := &l.Spec.Engine.Options.Deadlock
		if terms.After == 0 || l.Climbs {
			return nil
		}
		holds := holdsOf(l.Ctx)
		if len(holds) == 0 {
			return nil
		}
		l.blocked = l.newBlocked(holds, terms.After)
	}
	b := l.blocked
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiter, b.holder = &l.waiter, l.Refusal().Holder
	return b.failed
}

func (l *Attempt) newBlocked(holds []deadlock.Hold, after time.Duration) *blocked {
	b := &blocked{spec: l.Spec, who: l.Caller, failed: make(chan struct{})}
	if l.within != nil {
		b.within = l.within.tenure
	}
	b.ended, b.end = context.WithCancel(context.Background())
	b.wait = deadlock.NewWait(b, l.Spec.Engine.ID, l.Spec.Name, holds)
	b.wait.Label = l.Spec.Engine.Options.Label
	b.mu.Lock()
	defer b.mu.Unlock()
	b.timer = time.AfterFunc(after, func() { b.look(1, after/4) })
	return b
}

// unwatch ends the watch when the Lock ends.
func (l *Attempt) unwatch() {
	b := l.blocked
	if b == nil {
		return
	}
	b.end()
	b.unqueued()
	b.mu.Lock()
	b.timer.Stop()
	b.mu.Unlock()
	l.Spec.Engine.Options.Deadlock.Graph.Remove(&b.wait)
}

// unqueued notes that the waiter is about to be reused for another place in line.
func (b *blocked) unqueued() {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiter = nil
}

// isOver reports whether the Lock has ended, or is about to.
func (b *blocked) isOver() bool {
	return b.ended.Err() != nil || b.who.Ctx.Err() != nil || !b.who.Wait.IsZero() && !time.Now().Before(b.who.Wait)
}

// look looks for a cycle, and schedules the next look. Its goroutine ends with it; Close waits for it.
func (b *blocked) look(round int, pause time.Duration) {
	c := b.spec.Engine
	if !c.Calls.Start() {
		return
	}
	defer c.Calls.Ended()
	terms := &c.Options.Deadlock
	if round == 1 {
		b.listen()
		b.mu.Lock()
		if b.ended.Err() == nil { // under mu, or it could be in the graph after its end
			terms.Graph.Add(&b.wait)
		}
		b.mu.Unlock()
	}
	terms.Graph.Look(&b.wait, round)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended.Err() == nil && !b.found {
		next := min(2*pause, max(longestLook, terms.After))
		b.timer = time.AfterFunc(pause, func() { b.look(round+1, next) })
	}
}

// Found makes the Lock fail, or reports the cycle, once.
func (b *blocked) Found(cycle []deadlock.Step) {
	over := b.isOver() // not under mu: that calls the user's ctx
	b.mu.Lock()
	found := b.found || over
	b.found = true
	b.mu.Unlock()
	if found {
		return
	}
	c := b.spec.Engine
	err := c.Errors.Cycle(b.spec.Name, cycle)
	if !c.Options.Deadlock.Fail {
		c.Options.Tell.Deadlock(b.who.Outer, b.spec.Kind.Name, err)
		return
	}
	b.err = err
	close(b.failed)
}

// IsWaiting reports whether the Lock still waits.
func (b *blocked) IsWaiting() bool { return !b.isOver() }
