package faults

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-rlock/rlock/rlock"
)

// histLate is how late a holder may be told of the end of its trusted time on a loaded machine,
// before the checker calls it a fault (G2).
const histLate = time.Second

// histHold is one level of a hold that a worker has.
type histHold struct {
	name, owner string
	level       int // 1 for the outermost
	outer       *histHold
	ctx         context.Context
	release     rlock.UnlockFunc
	base        *histBase // what all levels have in common
}

// histBase remembers how a hold was lost, if it was: the earliest moment at which its worker heard.
type histBase struct {
	mu         sync.Mutex // guards the following
	low, heard int64      // the hold was over at some moment from low to heard, or when its trust ended
	trust      int64      // when it was heard
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

// of returns the innermost level that is around and of that name, or nil.
func (h *histHold) of(name string) *histHold {
	for h != nil && h.name != name {
		h = h.outer
	}
	return h
}

// watch notes when the hold's ctx is cancelled because this lock was lost, not one around it.
func (h *histHold) watch(w *histWorker) {
	context.AfterFunc(h.ctx, func() {
		now, cause := histNow(), context.Cause(h.ctx)
		if errors.Is(cause, rlock.ErrLost) && strings.Contains(cause.Error(), strconv.Quote(h.name)) {
			h.base.hear(now, now, w.log.trusted(histKey{h.name, h.owner}))
		}
	})
}

func (h *histHold) unlock(w *histWorker) {
	k := histKey{h.name, h.owner}
	e := histEntry{Name: h.name, Owner: h.owner, Worker: w.id, Call: histNow()}
	err := h.release()
	e.Return = histNow()
	switch {
	case err == nil:
		e.Kind = histUnlock
	case errors.Is(err, rlock.ErrNotHeld):
		e.Kind = histRefused
		if errors.Is(err, rlock.ErrLost) {
			low := e.Return
			if h.level == 1 { // its own release may have ended it
				low = e.Call
			}
			if h.base.hear(low, e.Return, w.log.trusted(k)) >= e.Call {
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
	if h.level == 1 {
		h.finish(w, e)
	}
}

// finish writes down how the hold ended, if not by its unlock, and that it lived too long, if it did.
func (h *histHold) finish(w *histWorker, last histEntry) {
	h.base.mu.Lock()
	low, end, trust := h.base.low, h.base.heard, h.base.trust
	h.base.mu.Unlock()
	e := histEntry{Kind: histLost, Name: h.name, Owner: h.owner, Worker: w.id, Call: low, Return: end}
	if end != 0 {
		w.count(func(t *histTally) { t.Lost++ })
		if w.plan.Sabotage != histDeaf { // who does not listen is inside until the unlock
			e.Call = min(low, trust)
		}
		w.log.add(e)
	} else {
		end, trust = last.Call, w.log.trusted(histKey{h.name, h.owner})
	}
	if trust == 0 { // histRedis does not understand the library's commands any more
		w.wrong(fmt.Errorf("no lease of %s seen", h.owner))
	}
	if over := trust + int64(histLate); end > over {
		e.Kind, e.Call, e.Return = histOver, over, over
		w.log.add(e)
	}
}
