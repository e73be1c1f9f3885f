package counter

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/internal/tenure"
	"github.com/go-rlock/rlock/lua"
)

// counterWaiter is a caller that wants permits, or waits for a latch.
type counterWaiter struct {
	of      *combiner
	n       int64           // permits
	ctx     context.Context // for its values
	once    bool            // it does not wait
	refused chan struct{}   // closed when it was refused for the first time, and waits
	seen    bool            // it was refused
	count   int64           // free permits, or the latch's count, at its last refusal
	known   bool            // it was in a call
	set     string          // the call that had set the latch at its first refusal
	gone    bool            // its wait has ended, or it has left
	ended   chan struct{}   // closed then
	err     error           // why; nil: it has its permits

	// For permits that expire.
	lease  time.Duration
	grants bool           // a message may give it its only permit
	ids    []lua.PermitID // as many as it wants
	slots  []int64        // of these, once granted, and
	sent   time.Time      // when they were first requested: their lease began no earlier
	first  time.Duration  // that of a grant by a message; 0: lease
}

// errInVain ends the wait of a caller that leaves, or was refused and does not wait.
var errInVain = errors.New("in vain")

// Await waits for n permits, or until the latch is open.
func (m Counter) Await(who tenure.Caller, n int64) error { return m.await(who, &counterWaiter{n: n}) }

// await waits for what w wants.
func (m Counter) await(who tenure.Caller, w *counterWaiter) error {
	if err := m.begin(who.Ctx, who.Limit); err != nil {
		return err
	}
	c := m.Client
	defer c.Calls.Ended()
	if c.IsShut() {
		return m.FailClosed()
	}
	w.ctx, w.once, w.refused, w.ended = who.Ctx, who.Once, make(chan struct{}), make(chan struct{})
	counted, err := false, who.Ctx.Err()
	if err == nil {
		counted, err = c.Calls.Admit(who.Ctx, m.Slot(), who.Limit)
	}
	if err != nil {
		return m.waitedInVain(who, w)
	}
	if err = m.come(w, counted); err == nil {
		m.stay(who, w)
		err = w.err
	}
	switch {
	case errors.Is(err, errInVain):
		return m.waitedInVain(who, w)
	case err != nil:
		return m.failed(err)
	}
	return nil
}

// waitedInVain returns the error of a waiter that left, or was refused.
func (m Counter) waitedInVain(who tenure.Caller, w *counterWaiter) error {
	c := m.Client
	if c.Calls.IsClosed() {
		return m.FailClosed()
	}
	u := tenure.NotAcquired{Ctx: who.Ctx, Name: m.Name, Began: who.Began, Counter: m.Kind, Count: w.count, Wanted: w.n, Seen: w.seen}
	if err := calls.Silence(who.Ctx, who.Began, who.Limit); err != nil && !w.seen {
		u.Causes = []error{c.Errors.Unreachable(err)}
	}
	return c.Errors.NotAcquired(u)
}

// stay returns when a caller's wait has ended, or it has left.
func (m Counter) stay(who tenure.Caller, w *counterWaiter) {
	over, stop := calls.At(who.Limit)
	defer func() { stop() }()
	for refused := w.refused; ; {
		select {
		case <-w.ended:
			return
		case <-refused:
			refused = nil
			stop()
			over, stop = calls.At(who.Wait) // Limit was for the first answer
			who.Waits("")
			continue
		case <-over:
		case <-who.Ctx.Done():
		case <-who.Stopped():
		case <-m.Client.Calls.Done():
		}
		w.leave()
		return
	}
}

// come adds a waiter. A try for permits is refused at once if others wait; a request under way does not. The error is that of a failing combiner.
func (m Counter) come(w *counterWaiter, counted bool) error {
	m.of.mu.Lock()
	defer m.of.mu.Unlock()
	b := m.combiner(m.Kind == kinds.Latch, counted)
	if b.failing != nil {
		return b.failing
	}
	w.of = b
	b.waiters = append(b.waiters, w)
	b.live++
	switch front, behind := b.front(); {
	case b.looks:
		if b.asked && b.joined && b.gathers.IsZero() { // otherwise there is a look to come
			b.gathers = time.Now().Add(latchGrain)
		}
	case front[0].seen && (w.once || b.asked && len(behind) > 0):
		b.refuse(w, front[0].count)
	case b.asked && len(behind) == 0:
		b.asked = false
	}
	b.poke()
	return nil
}

// front returns the waiters that one call can serve, and the others. Counters.mu is held.
func (b *combiner) front() (front, behind []*counterWaiter) {
	b.tidy()
	if b.looks {
		return b.waiters, nil
	}
	n, ids := 0, 0
	for _, w := range b.waiters[:min(len(b.waiters), lua.MaxWants)] {
		if ids += len(w.ids); ids > lua.MaxPermitIDs {
			break
		}
		n++
	}
	return b.waiters[:n], b.waiters[n:]
}

// refuse records that a waiter's request was refused, or that it is behind others. Counters.mu is held.
func (b *combiner) refuse(w *counterWaiter, count int64) {
	if w.gone {
		return
	}
	first := !w.seen
	if w.seen, w.count = true, count; w.once {
		b.let(errInVain, w)
	} else if first {
		close(w.refused)
	}
}

// leave takes a waiter out, unless its wait has ended.
func (w *counterWaiter) leave() {
	b := w.of
	b.m.of.mu.Lock()
	defer b.m.of.mu.Unlock()
	if !w.gone {
		b.let(errInVain, w)
		b.poke()
		if b.calling {
			b.left()
		}
	}
}

// let ends waits. If one of these waiters has no permit, but may have it by now, that is given back. Counters.mu is held.
func (b *combiner) let(err error, waiters ...*counterWaiter) {
	for _, w := range waiters {
		if w.gone {
			continue
		}
		w.err, w.gone = err, true
		close(w.ended)
		b.live--
		if err != nil && w.known && !b.looks {
			b.asked = false // the next one behind them is to ask
		}
		if w == b.offered {
			if b.offered = nil; err != nil {
				b.giveBack(0, w.ids...)
			}
		}
	}
}

// tidy forgets those that have gone: one by one that would take long in a crowd. Counters.mu is held.
func (b *combiner) tidy() {
	if len(b.waiters) != b.live {
		b.waiters = slices.DeleteFunc(b.waiters, func(w *counterWaiter) bool { return w.gone })
	}
}
