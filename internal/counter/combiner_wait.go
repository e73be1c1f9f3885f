package counter

import (
	"context"
	"slices"
	"time"

	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/lua"
)

// counterWaiter is a caller that wants permits, or waits for a latch.
type counterWaiter struct {
	n       int64           // permits
	ctx     context.Context // for its values
	once    bool            // it does not wait
	listed  bool            // in line, see combiner.waiters
	gone    bool            // it has left, or its wait has ended
	refused chan struct{}   // closed when it was refused for the first time, and
	seen    bool            // is set then
	count   int64           // free permits, or the latch's count, at its last refusal
	known   bool            // it was in a call
	set     string          // the call that had set the latch at its first refusal
	ended   chan struct{}   // closed when its wait has ended
	err     error           // why; nil: it has its permits

	// For permits that expire.
	lease  time.Duration
	grants bool           // a message may give it its only permit
	ids    []lua.PermitID // as many as it wants
	slots  []int64        // of these, once granted, and
	sent   time.Time      // when they were first requested: their lease began no earlier
	first  time.Duration  // that of a grant by a message; 0: lease
}

// come adds a waiter. A try for permits is refused at once if others wait; a request under way does not. The error is that of a failing
// combiner, in which nobody waits but for a latch. If made is not nil, the caller must start it.
func (all *combiners) come(m Counter, w *counterWaiter, counted bool) (made *combiner, err error) {
	all.mu.Lock()
	defer all.mu.Unlock()
	b, made := all.get(m, counted)
	if b.failing != nil && m.Kind != kinds.Latch {
		return nil, b.failing
	}
	if w.once && m.Kind != kinds.Latch {
		if waits := slices.IndexFunc(b.waiters, func(w *counterWaiter) bool { return w.listed && w.seen }); waits >= 0 {
			w.wait(b.waiters[waits].count)
			return nil, nil
		}
	}
	w.listed = true
	b.waiters = append(b.waiters, w)
	b.live++
	if m.Kind == kinds.Latch {
		b.came = true
	} else if front, behind := b.front(); b.asked && len(behind) == 0 {
		b.asked = false
	} else if b.asked && front[0].seen {
		w.wait(front[0].count)
	}
	if made == nil {
		b.poke()
	}
	return made, nil
}

// front returns the waiters that one call can serve, and the others. combiners.mu is held.
func (b *combiner) front() (front, behind []*counterWaiter) {
	b.tidy()
	if b.m.Kind == kinds.Latch {
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

// wait records a waiter's refusal, of its own request or because it is behind others. combiners.mu is held.
func (w *counterWaiter) wait(count int64) {
	w.count = count
	if !w.seen {
		w.seen = true
		close(w.refused)
	}
}

// leave takes a waiter out. It reports whether its wait has ended.
func (all *combiners) leave(m Counter, w *counterWaiter) (ended bool) {
	all.mu.Lock()
	defer all.mu.Unlock()
	if w.gone {
		return true
	}
	w.gone = true
	if !w.listed {
		return false
	}
	b := all.of[m.combinerKey()]
	b.asked = b.asked && (!w.known || m.Kind == kinds.Latch) // otherwise the next one behind them is to ask
	b.remove(w)
	b.left()
	b.poke()
	return false
}

// refuse ends the wait of all with err. combiners.mu is held.
func (b *combiner) refuse(err error) {
	for _, w := range b.waiters {
		if w.listed {
			b.let(w, err)
		}
	}
}

// let ends one waiter's wait. combiners.mu is held.
func (b *combiner) let(w *counterWaiter, err error) {
	w.err, w.gone = err, true
	if err == nil && w == b.offered {
		b.offered = nil
	}
	close(w.ended)
	b.remove(w)
}

// remove takes a waiter out of the line. A permit that it may have by now is given back. combiners.mu is held.
func (b *combiner) remove(w *counterWaiter) {
	if w.listed {
		w.listed = false
		b.live--
	}
	if w == b.offered {
		b.offered = nil
		b.giveBack(0, w.ids...)
	}
}

// tidy forgets those that remove took out: one by one that would take long in a crowd. combiners.mu is held.
func (b *combiner) tidy() {
	if len(b.waiters) != b.live {
		b.waiters = slices.DeleteFunc(b.waiters, func(w *counterWaiter) bool { return !w.listed })
	}
}
