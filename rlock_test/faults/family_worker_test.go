package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/go-rlock/rlock/rlock"
)

const (
	familyMaxHold = 300 * time.Millisecond
	familyMinHold = 10 * time.Millisecond
	familyGrace   = 200 * time.Millisecond
)

// familyTurns has a worker's turn for each kind of lock.
var familyTurns = map[string]func(*familyWorker){
	"plain":  func(w *familyWorker) { w.visit(w.clients[0].Mutex(w.kind)) },
	"fenced": func(w *familyWorker) { w.visit(w.clients[0].FencedMutex(w.kind)) },
	"fair":   func(w *familyWorker) { w.visit(w.clients[0].FairMutex(w.kind)) },
	"without re-entry": func(w *familyWorker) {
		w.visit(w.clients[0].Mutex(w.kind, rlock.WithoutReentry()))
	},
	"min hold": func(w *familyWorker) { w.visit(w.clients[0].Mutex(w.kind, rlock.WithMinHold(familyMinHold))) },
	// With a grace: a process whose ctx is cancelled a little late must still be alone inside.
	"max hold": func(w *familyWorker) {
		w.visit(w.clients[0].Mutex(w.kind, rlock.WithMaxHold(familyMaxHold), rlock.WithGrace(familyGrace)))
	},
	"grace":       func(w *familyWorker) { w.visit(w.clients[0].Mutex(w.kind, rlock.WithGrace(familyGrace))) },
	"read/write":  (*familyWorker).readOrWrite,
	"all":         func(w *familyWorker) { w.visitSome(w.all(2)) },
	"all of four": func(w *familyWorker) { w.visitSome(w.all(4)) },
	"quorum":      func(w *familyWorker) { w.visit(w.quorum()) },
	"semaphore":   (*familyWorker).useSemaphore,
	"latch":       (*familyWorker).useLatch,
	"high latch":  (*familyWorker).useHighLatch,
	"permits":     (*familyWorker).usePermits,
}

// all returns n locks on two Clients, to be taken together.
func (w *familyWorker) all(n int) (all []rlock.Locker) {
	for i := range n {
		all = append(all, w.clients[i*2/n].Mutex(fmt.Sprintf("%s:%d", w.kind, i)))
	}
	return all
}

func (w *familyWorker) quorum() rlock.Locker {
	var all []rlock.Locker
	for _, c := range w.clients {
		all = append(all, c.Mutex(w.kind))
	}
	return rlock.Quorum(all...)
}

// visitSome takes two or more of the locks together in random order, or one of them alone.
func (w *familyWorker) visitSome(all []rlock.Locker) {
	w.rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	if w.chance(30) {
		w.visit(all[0])
		return
	}
	some := all[:2+w.rng.IntN(len(all)-1)]
	names := make([]string, len(some))
	for i, l := range some {
		names[i] = l.Name()
	}
	w.visit(rlock.All(some...), names...)
}

// familyWorker takes locks of one kind.
type familyWorker struct {
	*workProcess

	kind   string
	number int
	rng    *rand.Rand
	stays  int
	atOnce bool // the lock is free: Lock must get it at once
	set    bool // the semaphore is set, see useSemaphore
}

// familyLast is the number of the worker that takes each lock at the end.
const familyLast = 1 << 32

func (w *familyWorker) chance(percent int) bool { return w.rng.IntN(100) < percent }

func (w *familyWorker) duration(average time.Duration) time.Duration {
	return time.Duration(w.rng.Int64N(2*int64(average) + 1))
}

func (w *familyWorker) turn() { familyTurns[w.kind](w) }

// wrong reports an error that no caller should get.
func (w *familyWorker) wrong(what string, err error) {
	w.say("wrong", fmt.Sprintf("%s: %s: %v", w.kind, what, err))
}

// visit is a Lock, a section, often with a re-entry, and an unlock.
func (w *familyWorker) visit(l rlock.Locker, names ...string) {
	h := w.lock(context.Background(), l, familyWrites, names...)
	if h == nil {
		return
	}
	defer h.leave()
	if !h.stay() || !w.chance(30) || w.plan.Sabotage == histNoLock {
		return
	}
	_, unlock, err := l.Lock(h.ctx)
	switch {
	case w.kind == "without re-entry":
		if !errors.Is(err, rlock.ErrReentry) {
			w.wrong("a Lock in its own section", err)
		}
	case err == nil:
		h.see()
		if err := unlock(); err != nil && !w.mayFail(err) {
			w.wrong("unlock of a re-entry", err)
		}
		h.stay()
	case !w.mayFail(err):
		w.wrong("re-entry", err)
	}
}

// readOrWrite takes a read/write lock in a random way.
func (w *familyWorker) readOrWrite() {
	rw := w.clients[0].FencedRWMutex(w.kind)
	switch dice := w.rng.IntN(10); {
	case dice < 5:
		h := w.lock(context.Background(), rw.Read(), familyReads)
		if h == nil {
			return
		}
		if h.stay() && w.plan.Sabotage == "" {
			if _, _, err := rw.Write().Lock(h.ctx); !errors.Is(err, rlock.ErrUpgrade) {
				w.wrong("a writer under a reader", err)
			}
		}
		h.leave()
	case dice < 7:
		w.visit(rw.Write())
	case dice < 8:
		w.downgrade(rw)
	default:
		w.upgrade(rw.Upgradeable())
	}
}

func (w *familyWorker) downgrade(rw *rlock.RWMutex) {
	h := w.lock(context.Background(), rw.Write(), familyWrites)
	if h == nil {
		return
	}
	h.stay()
	ctx, unlock, err := rw.Downgrade(h.ctx)
	if err != nil {
		if h.ctx.Err() == nil { // otherwise the ctx passed to Lock ended as Lock returned
			w.wrong("downgrade", err)
		}
		h.leave()
		return
	}
	if err := h.unlock(); err != nil { // a no-op after the downgrade
		w.wrong("unlock after a downgrade", err)
	}
	h.unlock = unlock
	h.become(ctx, familyReads)
	h.stay()
	h.leave()
}

func (w *familyWorker) upgrade(u *rlock.Upgradeable) {
	h := w.lock(context.Background(), u, familyMayWrite)
	if h == nil {
		return
	}
	defer h.leave()
	if !h.stay() {
		return
	}
	writer := w.lock(h.ctx, upgrade{u}, familyWrites)
	if writer == nil {
		h.stay()
		return
	}
	h.last = max(h.last, writer.last)
	h.sayIn() // the reader was inside until then, since the writer's ctx derives from its section
	writer.stay()
	h.last = max(h.last, writer.last)
	writer.leave()
	h.become(h.ctx, familyMayWrite)
	h.stay()
}
