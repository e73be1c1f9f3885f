package engine

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-rlock/rlock/internal/deadlock"
	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/lua"
	"github.com/go-rlock/rlock/pubsub"
)

// A Lock whose ctx carries holds, and that waits for longer than Options.Deadlock.After, may be part of a deadlock. From then on it is in the graph of the
// process (package deadlock), and looks for a cycle of which it is the last wait:
//
//	state     event                        next
//	waiting   After is over                long: it is in the graph
//	long      a cycle is found             failed, or told of once
//	          none is found                asks Redis who is in its way, and looks again; then after a pause that doubles
//	any       the lock, ctx, time, Close   over: it is out of the graph
//
// All that is done on a goroutine of its own, which begins with the timer. A Lock without the option, or whose ctx carries no hold, has none of this; one
// that waits for less has a timer.

// DeadlockTerms are those on which an engine looks for deadlocks.
type DeadlockTerms struct {
	After time.Duration // 0: it does not
	Fail  bool          // the victim fails; otherwise it is told of
	Graph *deadlock.Graph
}

// longestLook is how long the pause between two looks gets.
const longestLook = 30 * time.Second

// blocked is a Lock that waits and whose ctx carries holds, from its first wait to its end.
type blocked struct {
	wait   deadlock.Wait
	spec   *Spec
	who    Caller
	within *Tenure         // that becomes the writer; nil: none
	ended  context.Context // done when the Lock is over
	end    context.CancelFunc
	failed chan struct{} // closed when the Lock is to fail
	err    error         // why; set before that

	// mu guards the following. Those of tenures, of the hub and of the graph are taken under it.
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

// watch notes that the Lock is about to sleep. failed is closed when it is to give up, since it is the victim of a deadlock; nil: it never is.
func (l *attempt) watch() (failed <-chan struct{}) {
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
	b.waiter, b.holder = &l.waiter, l.refusal().Holder
	return b.failed
}

func (l *attempt) newBlocked(holds []deadlock.Hold, after time.Duration) *blocked {
	b := &blocked{spec: l.Spec, who: l.Caller, failed: make(chan struct{})}
	if l.within != nil {
		b.within = l.within.tenure
	}
	b.ended, b.end = context.WithCancel(context.Background())
	b.wait = deadlock.NewWait(b, l.Spec.Engine.ID, l.Spec.Name, holds)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.timer = time.AfterFunc(after, func() { b.look(1, after/4) })
	return b
}

// unwatch ends that, as the Lock does.
func (l *attempt) unwatch() {
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

// unqueued notes that the waiter is about to be used for another place in line.
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

// look looks for a cycle, and again after a pause. It has a goroutine of its own, which ends with the look; Close waits for it.
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
	if !terms.Graph.Look(&b.wait, 0) {
		terms.Graph.Look(&b.wait, round)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended.Err() == nil && !b.found {
		next := min(2*pause, max(longestLook, terms.After))
		b.timer = time.AfterFunc(pause, func() { b.look(round+1, next) })
	}
}

// listen has the Clients be spoken to that have the Lock's holds.
func (b *blocked) listen() {
	for l := levelOf(b.who.Ctx); l != nil; l = l.enclosing() {
		if c := l.spec.Engine; c.Options.Deadlock.After > 0 && c.Calls.Start() {
			c.listen() // the cluster is known: it has a hold there
			c.Calls.Ended()
		}
	}
}

// Say speaks to the Client of an owner in the way. The user may lack the right to: then nobody hears of it.
func (b *blocked) Say(owner, text string) {
	c := b.spec.Engine
	if id, _, _ := strings.Cut(owner, ":"); id != c.ID {
		_, _ = c.publish(c.earOf(id), pubsub.Spoken{Kind: deadlock.Kind, Payload: text})
	}
}

// mostProbing bounds the probes that are worked on; more are dropped, and sent again.
const mostProbing = 32

// probed takes up a probe. It returns at once.
func (c *Engine) probed(text string) {
	if c.probing.Add(1) > mostProbing {
		c.probing.Add(-1)
		return
	}
	if !c.Calls.Start() {
		return
	}
	go func() { // ends when it has sent others, and asked Redis; Close waits for it
		defer c.Calls.Ended()
		defer c.probing.Add(-1)
		c.Options.Deadlock.Graph.Hear(text)
	}()
}

// describe tells whoever asks of the long waits of the Client. It returns at once.
func (c *Engine) describe(text string) {
	id, ok := deadlock.ReadQuestion(text)
	if !ok || c.describing.Swap(true) { // a question while one is answered is dropped
		return
	}
	if !c.Calls.Start() {
		return
	}
	go func() { // ends with its answers; Close waits for it
		defer c.Calls.Ended()
		defer c.describing.Store(false)
		for _, answer := range c.Options.Deadlock.Graph.Answers(c.ID) {
			if _, err := c.publish(c.earOf(id), pubsub.Spoken{Kind: deadlock.SeenKind, Payload: answer}); err != nil {
				return
			}
		}
	}()
}

// Found has the Lock fail, or tells of the cycle, once.
func (b *blocked) Found(cycle []deadlock.Step) {
	b.mu.Lock()
	found := b.found || b.isOver()
	b.found = true
	b.mu.Unlock()
	if found {
		return
	}
	c := b.spec.Engine
	err := c.errs.Cycle(b.spec.Name, cycle)
	if !c.Options.Deadlock.Fail {
		c.Options.Tell.Deadlock(b.who.Outer, b.spec.Kind.Name, err)
		return
	}
	b.err = err
	close(b.failed)
}

// IsWaiting reports whether the Lock goes on.
func (b *blocked) IsWaiting() bool { return !b.isOver() }

// Keeps reports whether its ctx still carries the hold of that owner.
func (b *blocked) Keeps(owner string) bool {
	for l := levelOf(b.who.Ctx); l != nil; l = l.enclosing() {
		if l.hold.tenure.majority == nil && l.hold.tenure.Field() == owner && l.IsOpen() && l.hold.lossSoFar() == nil {
			return true
		}
	}
	return false
}

// holdsOf are the open holds of one server that ctx carries.
func holdsOf(ctx context.Context) (all []deadlock.Hold) {
	for l := levelOf(ctx); l != nil; l = l.enclosing() {
		t := l.hold.tenure
		if t.majority != nil || t.Spec.Engine.Options.Deadlock.After == 0 || !l.IsOpen() {
			continue
		}
		field := t.Field()
		if !slices.ContainsFunc(all, func(h deadlock.Hold) bool { return h.Owner == field }) {
			all = append(all, deadlock.Hold{Owner: field, Name: t.Spec.Name, Since: l.hold.since()})
		}
	}
	return all
}

// since is when the Lock returned that took it, for an engine that looks for deadlocks.
func (h *hold) since() time.Time {
	h.tenure.mu.Lock()
	defer h.tenure.mu.Unlock()
	return time.UnixMicro(h.began)
}

// Blockers are the owners that are in its way, as far as is known: those of its own process, the one that the last refusal named, and those that Redis
// named when it was asked.
func (b *blocked) Blockers() (all []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.waiter == nil {
		return nil
	}
	m := b.spec
	reads := m.Kind.Side == lua.Reader
	if reads {
		b.ahead = b.waiter.Exclusive()
	}
	shared := reads && b.ahead == nil // then other readers are not in its way
	for _, t := range m.Engine.held.of(m.Key) {
		if t != b.within && (!shared || t.Spec.Kind.Side != lua.Reader) {
			all = append(all, t.Field())
		}
	}
	if b.holder != "" && (!reads || !m.isReader(b.holder)) {
		all = append(all, b.holder)
	}
	return append(all, b.asked...)
}

// IsBlocked reports whether that owner has been in its way since somebody looked. That is so as long as both are there, but for readers beside which
// it waits for a writer: that may have left.
func (b *blocked) IsBlocked(owner string) bool {
	if b.spec.Kind.Side != lua.Reader || !b.spec.isReader(owner) {
		return slices.Contains(b.Blockers(), owner)
	}
	b.mu.Lock()
	ahead, marks := b.ahead, b.marks
	b.mu.Unlock()
	blockers := b.Blockers()
	if ahead == nil || ahead != b.nextWriter() {
		if !b.ask() || !b.hasOneOf(marks) {
			return false
		}
		blockers = b.Blockers()
	}
	return slices.Contains(blockers, owner)
}

func (b *blocked) nextWriter() *pubsub.Waiter {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ahead
}

func (b *blocked) hasOneOf(marks []string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.ContainsFunc(b.marks, func(m string) bool { return slices.Contains(marks, m) })
}

// isReader reports whether an owner of a read/write lock is one of its readers.
func (m *Spec) isReader(owner string) bool { return !strings.HasSuffix(owner, writerSuffix) }

// writerSuffix is what tells a writer's owner from a reader's.
const writerSuffix = ":write"

// askAgainAfter is for how long what Redis said counts as new.
const askAgainAfter = 10 * time.Millisecond

// Refresh asks Redis who is in its way, unless one of its own Client is, alone, or it has asked just now. If Redis does not answer, what is known has to do.
func (b *blocked) Refresh() {
	for _, t := range b.spec.Engine.held.of(b.spec.Key) {
		if t.Spec.Kind.Side != lua.Reader {
			return
		}
	}
	b.mu.Lock()
	recent := time.Since(b.askedAt) < askAgainAfter
	b.mu.Unlock()
	if !recent {
		b.ask()
	}
}

// ask asks Redis who is in its way. It reports false if that is not known.
func (b *blocked) ask() bool {
	info, err := b.spec.Look(b.ended)
	if err != nil || b.isOver() {
		return false
	}
	asked, marks := b.spec.inTheWay(info, b.within)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked, b.marks, b.askedAt = asked, marks, time.Now()
	return true
}

// inTheWay are the owners whose holds have to end before a Lock of m gets the lock, and for a reader the marks of the writers because of which some of
// them are readers.
func (m *Spec) inTheWay(info lua.Info, within *Tenure) (all, marks []string) {
	own, reads := "", m.Kind.Side == lua.Reader
	if within != nil {
		own = within.Field()
	}
	for field := range info.Fields {
		switch {
		case field == "" || field == "mode" || field == own || kinds.IsPlaceholder(field):
		case !reads || !m.isReader(field) || info.Fields["mode"] == "":
			all = append(all, field)
		case len(info.Queue) > 0: // the marks of writers
			all, marks = append(all, field), info.Queue
		}
	}
	return all, marks
}

// heldLocks are the tenures of an engine with open levels, by the keys of their locks, if it looks for deadlocks.
type heldLocks struct {
	mu  sync.Mutex // guards the following; no other lock is taken under it
	all map[string][]*Tenure
}

func (h *heldLocks) add(t *Tenure) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.all == nil {
		h.all = make(map[string][]*Tenure)
	}
	if key := t.Spec.Key; !slices.Contains(h.all[key], t) {
		h.all[key] = append(h.all[key], t)
	}
}

func (h *heldLocks) remove(t *Tenure) {
	h.mu.Lock()
	defer h.mu.Unlock()
	key := t.Spec.Key
	if rest := slices.DeleteFunc(h.all[key], func(o *Tenure) bool { return o == t }); len(rest) > 0 {
		h.all[key] = rest
	} else {
		delete(h.all, key)
	}
}

// of are those of a lock.
func (h *heldLocks) of(key string) []*Tenure {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.all[key])
}
