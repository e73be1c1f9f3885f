package sim

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-rlock/rlock/rlock"
)

// owner returns the process whose permit has that id, or nil. Another process's script may have given it.
func (w *world) owner(id string) *process {
	at := slices.IndexFunc(w.all, func(p *process) bool {
		return len(id) == 16 && strings.HasPrefix(p.locks[0].ID(), fmt.Sprintf("%x-%x-%x", id[:4], id[4:6], id[6:8]))
	})
	if at < 0 {
		return nil
	}
	return w.all[at]
}

// useExpiring takes some permits, works, and gives them back. It returns false if the process is over.
func (k *worker) useExpiring(outer context.Context, e *expiring) bool {
	p := part{oracle: e.o}
	persists, options := k.persists(k.options(&p))
	sem := k.process.locks[0].PermitSemaphore(e.o.name.Text, options...)
	if !e.isSet() {
		e.called()
		ctx, cancel := k.bounded()
		_, err := sem.TrySetPermits(ctx, e.n)
		e.called()
		if err != nil {
			k.check(e.o, "TrySetPermits", err, ctx.Err() != nil)
		}
		cancel()
	}
	if e.isSet() && k.meddles() {
		k.meddle(e, sem)
	}
	n := int64(1)
	if k.chance(0.4) {
		n += k.r.Int64N(e.n)
	}
	ctx, end, wait, latest := k.patience(outer)
	defer end()
	v := e.begins(k.process, n)
	var section context.Context
	var held *rlock.Permit
	var err error
	if wait >= 0 {
		section, held, err = sem.TryAcquireN(ctx, int(n), wait)
	} else {
		section, held, err = sem.AcquireN(ctx, int(n))
	}
	if err != nil {
		e.enter(v, nil)
		k.returned(e.o, "Acquire", latest, sem.Name())
		k.check(e.o, "Acquire", err, !latest.IsZero() || ctx.Err() != nil || p.fixed)
		if persists && wait != 0 {
			if wait > 0 {
				latest = v.began.Add(wait)
			}
			k.isPatient(ctx, e.o, "Acquire", latest, p.fixed, err)
		}
		return outer.Err() == nil && !errors.Is(err, rlock.ErrClosed)
	}
	s := &permit{process: k.process, ctx: section, slots: held.Slots(), began: time.Now(), fixed: p.fixed}
	for _, text := range held.IDs() {
		id, _ := hex.DecodeString(text) // Redis has bytes
		s.ids = append(s.ids, string(id))
	}
	e.enter(v, s)
	k.returned(e.o, "Acquire", latest, sem.Name())
	e.o.counts(v.began)
	k.hold(section)
	k.release(e, s, held)
	return k.process.ctx.Err() == nil
}

func (k *worker) release(e *expiring, s *permit, held *rlock.Permit) {
	excused := e.leave(s)
	began := time.Now()
	err := held.Release()
	k.returned(e.o, "Release", began.Add(k.world().unlock()), e.o.name.Text)
	e.left(s, err)
	if err != nil {
		if !excused {
			k.check(e.o, "Release", err, s.ctx.Err() != nil)
		}
		return
	}
	w := k.world()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range s.ids {
		w.unlocked[id] = time.Now()
	}
}

// meddle changes the number of permits, or somebody's permits.
func (k *worker) meddle(e *expiring, sem *rlock.PermitSemaphore) {
	x := k.r.IntN(3)
	if x == 0 {
		k.addPermits(&e.inLine, sem.AddPermits)
		return
	}
	s, id := e.pick(k.r)
	if s == nil {
		return
	}
	ctx, cancel := k.bounded()
	defer cancel()
	e.ended(k.process, s, id, x == 2)
	what := "Release"
	var err error
	if x == 1 {
		err = sem.Release(ctx, hex.EncodeToString([]byte(id)))
	} else {
		what = "UpdateLease"
		err = sem.UpdateLease(ctx, hex.EncodeToString([]byte(id)), between(k.r, tick, 2*k.world().plan.Watchdog))
	}
	e.endedBy(k.process, id, what, err)
	if err != nil && !errors.Is(err, rlock.ErrNotHeld) {
		k.check(e.o, what, err, ctx.Err() != nil)
	}
}
