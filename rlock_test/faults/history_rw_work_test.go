package faults

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/go-rlock/rlock/rlock"
)

// rwSeen formats the hash of a read/write lock for an entry.
func rwSeen(hash map[string]string) string {
	fields := make([]string, 0, len(hash))
	for field, value := range hash {
		fields = append(fields, field+"="+value)
	}
	slices.Sort(fields)
	return strings.Join(fields, " ")
}

// rwTurn takes a read/write lock in a random way.
func (w *histWorker) rwTurn(name string) {
	var o []rlock.Option
	if w.chance(40) {
		o = append(o, rlock.WithLease(w.plan.Watchdog/4+w.duration(w.plan.Watchdog)))
	}
	rw := w.client.RWMutex(name, o...)
	switch dice := w.rng.IntN(100); {
	case dice < 50:
		w.rwSection(context.Background(), rw.Read(), name, nil, func(h *histHold) {
			w.rwStay(h)
			if w.chance(30) {
				w.rwSection(h.ctx, rw.Read(), name, h, w.rwStay)
			}
		})
	case dice < 70:
		w.rwSection(context.Background(), rw.Write(), name, nil, func(h *histHold) {
			w.rwStay(h)
			if w.chance(30) {
				w.rwSection(h.ctx, rw.Write(), name, h, w.rwStay)
			}
			if w.chance(30) {
				w.rwSection(h.ctx, rw.Read(), name, h, w.rwStay)
			}
		})
	case dice < 85:
		w.rwSection(context.Background(), rw.Write(), name, nil, func(h *histHold) {
			w.rwStay(h)
			w.downgrade(rw, h)
		})
	default:
		u := rw.Upgradeable()
		w.rwSection(context.Background(), u, name, nil, func(h *histHold) {
			w.rwStay(h)
			w.rwSection(h.ctx, upgrade{u}, name, h, w.rwStay)
			w.rwStay(h)
		})
	}
}

// upgrade is a Locker for a reader that becomes the writer.
type upgrade struct{ *rlock.Upgradeable }

func (u upgrade) Lock(ctx context.Context) (context.Context, rlock.UnlockFunc, error) {
	return u.Upgrade(ctx)
}

// rwSection tries to take a side of a read/write lock for a section. In another section, outer is its level.
func (w *histWorker) rwSection(parent context.Context, l rlock.Locker, name string, outer *histHold, section func(*histHold)) {
	ctx, cancel := context.WithCancel(parent)
	h := &histHold{name: name, outer: outer, cancel: cancel}
	wait := histLongWait
	if w.chance(30) {
		wait = w.duration(w.plan.Watchdog / 4)
	}
	e := histEntry{Kind: histLock, Name: name, Worker: w.id, Call: histNow()}
	var err error
	if _, waits := l.(upgrade); !waits && w.chance(20) {
		h.ctx, h.release, err = l.TryLock(ctx, 0)
	} else {
		timer := time.AfterFunc(wait, cancel)
		h.ctx, h.release, err = l.Lock(ctx)
		timer.Stop()
	}
	if err != nil {
		cancel()
		w.rwFailed(outer, err)
		return
	}
	w.rwHeld(h, e)
	if _, two := l.(*rlock.Upgradeable); two {
		h.release = h.alone(h.release)
	}
	w.did(sections)
	section(h)
	if outer == nil && rwWrites(h.owner) && w.chance(w.plan.Along) && !h.left.Load() {
		w.export(h)
	}
	h.unlock(w)
	if outer == nil || outer.base != h.base {
		h.finish(w)
	}
}

// rwHeld records a successful Lock.
func (w *histWorker) rwHeld(h *histHold, e histEntry) {
	h.whose()
	e.Return = histNow()
	k := histKey{h.name, h.owner}
	switch {
	case h.outer != nil && h.outer.owner == h.owner:
		e.Kind, h.base, h.hold = histReenter, h.outer.base, h.outer.hold
		w.did(nested)
	default:
		if h.outer != nil {
			e.Within = h.outer.hold
			w.did(inside)
		}
		h.begin(w)
		e.Call = max(e.Call, w.log.sinceWhen(k))
		e.Shares = !rwWrites(h.owner)
	}
	e.Owner = h.hold
	h.base.enter()
	h.watch(w)
	w.log.add(e)
}

// sinceWhen is the earliest time at which an owner may have the lock.
func (l *histLog) sinceWhen(k histKey) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.since[k].sent
}

// rwFailed checks the error of a Lock, which must have no visible effect.
func (w *histWorker) rwFailed(outer *histHold, err error) {
	if outer != nil { // a cancelled re-entry may be visible for a moment
		w.log.doubt(histKey{outer.name, outer.owner})
	}
	w.didFail(err)
	if errors.Is(err, rlock.ErrUpgrade) || errors.Is(err, rlock.ErrClosed) {
		w.wrong(err)
	}
}

// alone is an Upgradeable's unlock without the error of the lock beside it, which may be lost as well.
func (h *histHold) alone(unlock rlock.UnlockFunc) rlock.UnlockFunc {
	return func() error {
		err := unlock()
		if loss := (*rlock.LostError)(nil); errors.As(err, &loss) && !h.says(err) {
			return nil
		}
		return err
	}
}

// downgrade turns a writer into a reader; the writer's level ends.
func (w *histWorker) downgrade(rw *rlock.RWMutex, h *histHold) {
	r := &histHold{name: h.name, outer: h, cancel: h.cancel}
	h.cancel = func() {} // the reader continues under the same ctx
	defer r.cancel()
	unlock, first := h.release, true
	var e histEntry
	var failed error
	h.release = func() error {
		if !first {
			return unlock()
		}
		first = false
		e = histEntry{Kind: histLock, Name: h.name, Worker: w.id, Call: histNow()}
		r.ctx, r.release, failed = rw.Downgrade(h.ctx)
		if failed == nil {
			return unlock() // a no-op after the downgrade
		}
		switch err := unlock(); { // if the writer goes on
		case err == nil, h.says(err):
			return err
		case h.says(failed):
			return failed
		}
		return errors.New("unknown whether the writer was unlocked")
	}
	h.unlock(w)
	if failed != nil {
		w.rwFailed(nil, failed)
		return
	}
	w.rwHeld(r, e)
	w.did(beside)
	w.rwStay(r)
	r.unlock(w)
	r.finish(w)
}

func (w *histWorker) rwStay(h *histHold) { w.stay(h.ctx, h) }
