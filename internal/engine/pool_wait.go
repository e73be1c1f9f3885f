package engine

import (
	"context"
	"slices"
	"time"

	"github.com/go-rlock/rlock/lua"
)

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

// come adds a waiter. A try is refused at once if others wait; a request under way does not. The error is that of a failing pool. If made
// is not nil, the caller must start it.
func (all *pools) come(m Semaphore, w *permitWaiter, counted bool) (made *pool, err error) {
	all.mu.Lock()
	defer all.mu.Unlock()
	p, made := all.get(m, counted)
	if p.failing != nil {
		return nil, p.failing
	}
	if waits := slices.IndexFunc(p.waiters, func(w *permitWaiter) bool { return w.seen }); w.once && waits >= 0 {
		w.wait(p.waiters[waits].free)
		return nil, nil
	}
	p.waiters = append(p.waiters, w)
	if p.asked = p.asked && p.front() < len(p.waiters); p.asked && p.waiters[0].seen {
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
		p.asked = p.asked && at >= p.front()
		p.waiters = slices.Delete(p.waiters, at, at+1)
		p.left()
		p.poke()
	}
	return false
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
