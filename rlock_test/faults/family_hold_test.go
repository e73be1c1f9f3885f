package faults

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/go-rlock/rlock/rlock"
)

// familyHold is a worker's hold of one or several locks.
type familyHold struct {
	*familyWorker

	names  []string
	ctx    context.Context
	cancel context.CancelFunc // of the ctx passed to Lock
	unlock rlock.UnlockFunc
	told   atomic.Int64 // when ctx was cancelled
	id     string       // of the stay, see familyStay
	mode   string
	taken  int64 // earliest time at which the lock can be free
	last   int64 // last time seen inside
}

// lock takes l in a random way. It returns nil if that failed for a documented reason.
func (w *familyWorker) lock(parent context.Context, l rlock.Locker, mode string, names ...string) *familyHold {
	if len(names) == 0 {
		names = []string{l.Name()}
	}
	if w.plan.Sabotage == histNoLock && w.chance(5) {
		l = noLock{l}
	}
	ctx, cancel := context.WithCancel(parent)
	h := &familyHold{familyWorker: w, names: names}
	var err error
	began, bounded := histNow(), true
	_, waits := l.(upgrade) // TryLock of an upgrade behaves differently
	switch dice := w.rng.IntN(10); {
	case !waits && (w.atOnce || dice < 2):
		h.ctx, h.unlock, err = l.TryLock(ctx, 0)
	case !waits && dice < 4:
		h.ctx, h.unlock, err = l.TryLock(ctx, w.duration(25*time.Millisecond))
	case dice < 6:
		timer := time.AfterFunc(w.duration(25*time.Millisecond), cancel)
		h.ctx, h.unlock, err = l.Lock(ctx)
		timer.Stop()
	default:
		bounded = false
		h.ctx, h.unlock, err = l.Lock(ctx)
	}
	if err != nil {
		cancel()
		switch {
		case errors.Is(err, rlock.ErrNotAcquired) && bounded && !w.atOnce:
		case w.mayFail(err):
			if errors.Is(err, rlock.ErrUnreachable) {
				w.say("unreachable")
			}
		default:
			w.wrong("Lock", err)
		}
		return nil
	}
	h.cancel = cancel
	context.AfterFunc(h.ctx, func() { h.told.Store(histNow()) })
	if w.kind == "min hold" {
		h.taken = began + int64(familyMinHold-time.Millisecond) // whole milliseconds
	}
	h.enter(mode)
	return h
}

// mayFail reports whether err is allowed: Redis was unreachable, or, on a slow machine, the longest hold was over
// before Redis answered.
func (w *familyWorker) mayFail(err error) bool {
	var loss *rlock.LostError
	return w.plan.Outages && (errors.Is(err, rlock.ErrUnreachable) || errors.Is(err, rlock.ErrLost)) ||
		w.kind == "max hold" && errors.As(err, &loss) && loss.Reason != rlock.LostGone
}

// noLock enters the section without the lock.
type noLock struct{ rlock.Locker }

func (noLock) Lock(ctx context.Context) (context.Context, rlock.UnlockFunc, error) {
	return ctx, func() error { return nil }, nil
}

func (l noLock) TryLock(ctx context.Context, _ time.Duration) (context.Context, rlock.UnlockFunc, error) {
	return l.Lock(ctx)
}

// enter begins a stay, now.
func (h *familyHold) enter(mode string) {
	h.stays++
	h.id, h.mode = fmt.Sprintf("%s.%d.%d", h.plan.Peer, h.number, h.stays), mode
	h.see()
}

// become continues the hold in another mode, from the last time seen inside: nobody may get in between.
func (h *familyHold) become(ctx context.Context, mode string) {
	h.stays++
	h.ctx = ctx
	h.id, h.mode = fmt.Sprintf("%s.%d.%d", h.plan.Peer, h.number, h.stays), mode
	h.sayIn()
}

// see records that the hold is inside, unless its ctx is done.
func (h *familyHold) see() bool {
	now := histNow()
	if h.ctx.Err() != nil {
		return false
	}
	h.last = now
	h.sayIn()
	return true
}

func (h *familyHold) sayIn() {
	token, _ := rlock.FencingToken(h.ctx, h.names[0])
	h.workProcess.sayIn(h.id, h.mode, h.last, h.taken, token, h.names...)
}

// stay is the code of a section. Some last long enough for renewals, and for the longest hold to end.
func (h *familyHold) stay() bool {
	steps := 1 + h.rng.IntN(3)
	for h.kind == "max hold" && h.chance(5) || h.chance(1) {
		steps += int(h.duration(h.plan.Watchdog/4) / h.plan.Step)
	}
	for i := range steps {
		if i > 3 && h.holding.Load() {
			break
		}
		timer := time.NewTimer(h.duration(h.plan.Step))
		select {
		case <-timer.C:
		case <-h.ctx.Done():
			timer.Stop()
		}
		if !h.see() {
			return false
		}
	}
	return true
}

// leave unlocks, and reports a loss and its time.
func (h *familyHold) leave() {
	cause, told := context.Cause(h.ctx), h.told.Load()
	if told == 0 {
		told = histNow()
	}
	err := h.unlock()
	h.cancel()
	if err != nil && !h.mayFail(err) {
		h.wrong("unlock", err)
	}
	if again := h.unlock(); !errors.Is(again, rlock.ErrNotHeld) {
		h.wrong("second unlock", again)
	}
	for _, why := range []error{cause, err} {
		var loss *rlock.LostError
		if !errors.As(why, &loss) {
			continue
		}
		if !h.mayFail(why) {
			h.wrong("lost", why)
		}
		since := histNow() - int64(time.Since(loss.Since))
		if isLate(since, told) {
			h.wrong("ctx cancelled too late", why)
		}
		h.say("lost", h.id, strconv.FormatInt(since, 10))
	}
}
