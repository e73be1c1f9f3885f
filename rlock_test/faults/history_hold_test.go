package faults

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-rlock/rlock/rlock"
)

// histLate is how late a holder may be told of the end of its trusted time on a loaded machine,
// before the checker calls it a fault (G2).
const histLate = time.Second

// histHold is one level of a hold that a worker has.
type histHold struct {
	name, owner string
	hold        string // as the history has it
	outer       *histHold
	ctx         context.Context
	cancel      context.CancelFunc // of the ctx that it was locked with
	release     rlock.UnlockFunc
	keeps       bool        // the unlock may leave the lock to its Client
	ticket      string      // that it was exported to, as whose it is in Redis then
	base        *histBase   // what all levels have in common
	left        atomic.Bool // unlocked
	crowded     atomic.Bool // others are inside as well
}

// histBase is a hold. It remembers how it was lost, if it was: the earliest moment at which one of those inside heard.
type histBase struct {
	mu         sync.Mutex // guards the following
	open       int        // levels
	last       int64      // call of the last unlock so far
	low, heard int64      // the hold was over at some moment from low to heard, or when its trust ended
	trust      int64      // when it was heard

	keeps   atomic.Bool // one of the levels may
	writing sync.Mutex  // of the witness: those inside do not exclude each other
}

func (b *histBase) enter() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open++
}

// leave is called before a level is unlocked.
func (b *histBase) leave(call int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open--
	b.last = max(b.last, call)
}

// over is since when an unlock that has returned may have ended the hold: of several at once any may be the last in Redis.
func (b *histBase) over(returned int64) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open > 0 {
		return returned
	}
	return b.last
}

// hear returns when it was heard first.
func (b *histBase) hear(low, heard, trust int64) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.heard == 0 {
		b.low, b.heard, b.trust = low, heard, trust
	}
	return b.heard
}

func (b *histBase) isLost() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.heard != 0
}

// of returns the innermost level that is around and of that name, or nil.
func (h *histHold) of(name string) *histHold {
	for h != nil && h.name != name {
		h = h.outer
	}
	return h
}

// says reports whether err is the loss of that hold.
func (h *histHold) says(err error) bool {
	var loss *rlock.LostError
	return errors.As(err, &loss) && loss.Name == h.name && loss.Owner == h.owner
}

// watch notes when the level's ctx is cancelled because this hold was lost, not one around it. What is found out by
// the unlock is told by the unlock.
func (h *histHold) watch(w *histWorker) {
	context.AfterFunc(h.ctx, func() {
		now := histNow()
		if !h.left.Load() && h.says(context.Cause(h.ctx)) {
			h.base.hear(now, now, w.log.trusted(histKey{h.name, h.owner}))
		}
	})
}

// unlock ends the level, unless that was done.
func (h *histHold) unlock(w *histWorker) {
	if !h.left.CompareAndSwap(false, true) {
		return
	}
	defer h.cancel()
	k := histKey{h.name, h.owner}
	e := histEntry{Name: h.name, Owner: h.hold, Worker: w.id, Keeps: h.keeps || h.base.keeps.Load(), Call: histNow()}
	h.base.leave(e.Call)
	err := h.release()
	e.Return = histNow()
	switch {
	case err == nil && h.ticket != "":
		e.Kind, e.Ticket = histExport, h.ticket
	case err == nil:
		e.Kind = histUnlock
	case errors.Is(err, rlock.ErrNotHeld):
		e.Kind = histRefused
		if h.says(err) {
			if h.base.hear(h.base.over(e.Return), e.Return, w.log.trusted(k)) >= e.Call {
				w.log.doubt(k) // lost while the release was under way, which may have lowered the count
			}
		}
	default:
		e.Kind = histUnknown
		w.log.doubt(k)
		w.count(func(t *histTally) { t.Failed++ })
		if errors.Is(err, context.Canceled) { // nobody has cancelled an unlock
			w.wrong(err)
		}
	}
	w.log.add(e)
	if again := h.release(); !errors.Is(again, rlock.ErrNotHeld) {
		w.wrong(errors.New("a second unlock did not say ErrNotHeld"))
	}
}

// finish is called when all levels of a hold are unlocked. It writes down how it ended, if not by that, and that it lived
// too long, if it did.
func (h *histHold) finish(w *histWorker) {
	h.base.mu.Lock()
	low, end, trust, last := h.base.low, h.base.heard, h.base.trust, h.base.last
	h.base.mu.Unlock()
	e := histEntry{Kind: histLost, Name: h.name, Owner: h.hold, Worker: w.id, Call: low, Return: end}
	if end != 0 {
		w.count(func(t *histTally) { t.Lost++ })
		if w.plan.Sabotage != histDeaf { // who does not listen is inside until the unlock
			e.Call = min(low, trust)
		}
		w.log.add(e)
	} else {
		end, trust = last, w.log.trusted(histKey{h.name, h.owner})
	}
	if trust == 0 { // histRedis does not understand the library's commands any more
		w.wrong(fmt.Errorf("no lease of %s seen", h.owner))
	}
	if over := trust + int64(histLate); end > over {
		e.Kind, e.Call, e.Return = histOver, over, over
		w.log.add(e)
	}
}
