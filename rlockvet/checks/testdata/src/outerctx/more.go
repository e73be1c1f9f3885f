package outerctx

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/go-rlock/rlock/rlock"
)

// The ctx from before under another name.

func alias(ctx context.Context, m *rlock.Mutex) error {
	parent := ctx
	return m.Do(ctx, func(ctx context.Context) error {
		return work(parent) // want `^parent is from outside of this Do, and does not end when the lock is lost: pass ctx$`
	})
}

func madeBefore(ctx context.Context, m *rlock.Mutex) error {
	quick, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return m.Do(ctx, func(ctx context.Context) error {
		return work(quick) // want `quick is from outside of this Do`
	})
}

func boundedWait(ctx context.Context, m *rlock.Mutex) error {
	wait, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	held, unlock, err := m.Lock(wait)
	if err != nil {
		return err
	}
	defer unlock()
	_ = work(wait)                            // want `^wait is from before the Lock in line \d+, .*: pass held$`
	return errors.Join(work(held), work(ctx)) // want `^ctx is from before the Lock in line \d+, .*: pass held$`
}

func aliasFine(ctx context.Context, m *rlock.Mutex) error {
	parent, later := ctx, ctx
	cleanUp := context.WithoutCancel(ctx)
	wait, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	ctx, unlock, err := m.Lock(wait)
	if err != nil {
		return work(parent)
	}
	defer unlock()
	later = ctx
	return errors.Join(work(ctx), work(later), work(cleanUp))
}

// Functions that use it.

func closure(ctx context.Context, m *rlock.Mutex) error {
	save := func() error { return work(ctx) }
	if err := save(); err != nil {
		return err
	}
	return m.Do(ctx, func(ctx context.Context) error {
		return save() // want `^save uses a ctx from outside of this Do, which does not end when the lock is lost: give it the ctx as a parameter$`
	})
}

func closureOfLock(ctx context.Context, m *rlock.Mutex) error {
	save := func() error { return work(ctx) }
	held, unlock, err := m.Lock(ctx)
	if err != nil {
		return save()
	}
	defer unlock()
	_ = work(held)
	return save() // want `^save uses a ctx from before the Lock in line \d+, which`
}

func closureFine(ctx context.Context, m *rlock.Mutex) (err error) {
	var unlock rlock.UnlockFunc
	save := func(ctx context.Context) error { return work(ctx) }
	current := func() error { return work(ctx) }
	ctx, unlock, err = m.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	return errors.Join(save(ctx), current())
}

// Sections that make no use of their ctx.

func (s *server) run(context.Context) error {
	return work(s.ctx) // want `^s\.ctx is from outside of the section of the Do in line \d+, and does not end when the lock is lost: name the ctx that it gives its function, and pass that$`
}

func (s *server) method(m *rlock.Mutex) error { return m.Do(s.ctx, s.run) }

func (s *server) unused(ctx context.Context, m *rlock.Mutex) error {
	return m.Do(ctx, func(ctx context.Context) error { return work(s.ctx) }) // want `^s\.ctx is from outside of this Do, .*: pass ctx$`
}

func (s *server) both(ctx context.Context, m *rlock.Mutex) error {
	return m.Do(ctx, func(ctx context.Context) error { return errors.Join(work(ctx), work(s.ctx)) }) // s.ctx may be another on purpose
}

func lead(ctx context.Context, l rlock.Locker, jobs <-chan int) error {
	return rlock.Lead(ctx, l, func(_ context.Context) error {
		for ctx.Err() == nil { // want `^ctx is from outside of this Lead, .*: name the ctx that it gives its function, and pass that$`
			select {
			case <-ctx.Done(): // want `ctx is from outside of this Lead`
			case <-jobs:
			case <-rlock.Asked(ctx): // want `^ctx is from outside of this Lead, and does not carry the hold: name`
			}
		}
		return nil
	})
}

func export(ctx context.Context, m *rlock.Mutex) (string, error) {
	_, unlock, err := m.Lock(ctx)
	if err != nil {
		return "", err
	}
	defer unlock()
	return rlock.Export(ctx) // want `^ctx is from before the Lock in line \d+, and does not carry the hold`
}

func leadFine(ctx context.Context, l rlock.Locker, jobs <-chan int) error {
	return rlock.Lead(ctx, l, func(held context.Context) error {
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-held.Done():
				return context.Cause(held)
			case <-rlock.Asked(ctx): // of the section around
			}
		}
	})
}

// Goroutines that are waited for.

type waitGroup struct{ errgroup }

func (*waitGroup) Wait() error { return nil }

func groups(ctx context.Context, m *rlock.Mutex) error {
	return m.Do(ctx, func(held context.Context) error {
		var wg, own sync.WaitGroup
		var group waitGroup
		wg.Add(1)
		go func() {
			defer wg.Done()
			_ = work(ctx) // want `pass held$`
		}()
		wg.Go(func() { _ = work(ctx) })             // want `pass held$`
		group.Go(func() error { return work(ctx) }) // want `pass held$`
		own.Go(func() { _ = work(ctx) })            // nobody waits
		go func() { _ = work(ctx) }()
		wg.Wait()
		return errors.Join(work(held), group.Wait())
	})
}

func groupOfLock(ctx context.Context, m *rlock.Mutex, wg *sync.WaitGroup) error {
	held, unlock, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	wg.Go(func() { _ = work(ctx) }) // want `pass held$`
	err = work(held)
	wg.Wait()
	return err
}

func groupAfterwards(ctx context.Context, m *rlock.Mutex, wg *sync.WaitGroup) error {
	held, unlock, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	wg.Go(func() { _ = work(ctx) })
	err = errors.Join(work(held), unlock())
	wg.Wait()
	return err
}

// Functions of the package that are like Do.

func locked(ctx context.Context, l rlock.Locker, fn func(context.Context) error) (err error) {
	ctx, unlock, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	return fn(ctx)
}

func (s *store) locked(ctx context.Context, name string, fn func(context.Context) error) error {
	return locked(ctx, s.mutex, fn)
}

func (s *store) probed(ctx context.Context, fn func(context.Context) error) error {
	return errors.Join(s.mutex.Do(ctx, work), fn(ctx))
}

func likeDo(ctx context.Context, s *store) error {
	_ = locked(ctx, s.mutex, func(context.Context) error { return work(ctx) }) // want `^ctx is from outside of this locked`
	_ = s.probed(ctx, func(context.Context) error { return work(ctx) })        // in no section
	return s.locked(ctx, "a", func(held context.Context) error {
		_ = s.locked(ctx, "b", work)              // want `^ctx is from outside of this locked, and does not end when the lock is lost: pass held$`
		return errors.Join(work(held), work(ctx)) // want `pass held$`
	})
}

// A layer that locks again.

func (s *store) inner(ctx context.Context) error { return s.mutex.Do(ctx, work) }

func nestedLayers(ctx context.Context, s *store) error {
	return s.mutex.Do(ctx, func(held context.Context) error {
		_ = s.mutex.Do(rlock.Detach(held), work) // want `^rlock\.Detach\(held\) in the section of this Do does not carry the hold, so that this Do waits for itself: pass held$`
		go s.mutex.Do(rlock.Detach(held), work)
		return s.inner(ctx) // want `pass held$`
	})
}
