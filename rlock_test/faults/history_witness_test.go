package faults

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync"
)

// crowd is a section of several goroutines. Some lock the section's own lock, and are inside together. The others
// all lock another name, and exclude each other there. Sometimes the section's own level is unlocked before
// theirs.
func (w *histWorker) crowd(h *histHold, depth int) {
	h.crowded.Store(true)
	other := w.plan.Names[(w.index(h.name)+w.rng.IntN(max(1, len(w.plan.Names)-1))+1)%len(w.plan.Names)]
	ctx := h.ctx
	if w.plan.Sabotage == histShared && h.of(other) == nil {
		shared, unlock, err := w.mutex(other).TryLock(ctx, w.duration(w.plan.Watchdog))
		if err != nil {
			return
		}
		defer func() { _ = unlock() }()
		ctx = shared // the history does not know this hold
	}
	var wg sync.WaitGroup
	for range 2 + w.rng.IntN(2) {
		name := other
		if w.chance(40) {
			name = h.name
		}
		one := &histWorker{histCrew: w.histCrew, id: w.id, rng: rand.New(rand.NewPCG(w.rng.Uint64(), w.rng.Uint64()))}
		wg.Go(func() {
			in := one.visit(ctx, name, h, depth)
			switch {
			case in == nil:
			case in.base == h.base:
				one.did(inside)
			default:
				one.did(beside)
			}
		})
	}
	if w.chance(20) {
		h.unlock(w)
	}
	wg.Wait()
}

// write is the witness: it adds 1 to the counter of the name, by read, pause and write; goroutines of one hold take
// turns. No lock can close the gap between the last check of ctx and the write (docs/guarantees.md, "Pauses"). A loss
// in this gap is counted, so that it neither looks like a fault of the lock nor hides one.
func (w *histWorker) write(ctx context.Context, h *histHold) {
	h.base.writing.Lock()
	defer h.base.writing.Unlock()
	w.add(ctx, h.name)
}

func (w *histWorker) add(ctx context.Context, name string) {
	path := filepath.Join(w.plan.Dir, strconv.Itoa(w.index(name)))
	n, err := readHistCounter(path)
	if err != nil {
		w.wrong(err)
	}
	w.pause(ctx)
	if ctx.Err() != nil {
		return
	}
	if err := os.WriteFile(path, []byte(strconv.FormatInt(n+1, 10)), 0o600); err != nil {
		w.wrong(err)
	}
	w.count(func(t *histTally) {
		t.Written[name]++
		if ctx.Err() != nil {
			t.Straddled[name]++
		}
	})
}

func (w *histWorker) index(name string) int {
	for i, n := range w.plan.Names {
		if n == name {
			return i
		}
	}
	return -1
}

func readHistCounter(path string) (int64, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) || err == nil && len(text) == 0 {
		return 0, nil // WriteFile truncates first: seen only by a worker that is not alone in the section
	}
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(string(text), 10, 64)
}
