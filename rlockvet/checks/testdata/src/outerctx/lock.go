package outerctx

import (
	"context"
	"errors"
	"time"

	"github.com/go-rlock/rlock/rlock"
)

// Sections between Lock and unlock.

func lock(ctx context.Context, m *rlock.Mutex) error {
	held, unlock, err := m.Lock(ctx)
	if err != nil {
		return work(ctx)
	}
	defer unlock()
	if err := work(held); err != nil {
		return err
	}
	return work(ctx) // want `^ctx is from before the Lock in line 14, and does not end when the lock is lost: pass held$`
}

func lockBlank(ctx context.Context, m *rlock.Mutex) error {
	_, unlock, err := m.TryLock(ctx, time.Second)
	if err != nil {
		return err
	}
	err = work(ctx) // want `^ctx is from before the TryLock in line 26, .*: name the ctx that it returned, and pass that$`
	err = errors.Join(err, unlock())
	return errors.Join(err, work(ctx))
}

func lockRequest(r *request, m *rlock.Mutex) {
	_, unlock, err := m.Lock(r.Context())
	switch {
	case errors.Is(err, rlock.ErrNotAcquired):
		_ = work(r.Context())
		return
	case err != nil:
		return
	}
	defer func() { _ = unlock() }()
	_ = work(r.Context()) // want `^r\.Context\(\) is from before the Lock`
}

func lockSwitch(ctx context.Context, m *rlock.Mutex) error {
	held, unlock, err := m.Lock(ctx)
	switch err {
	case nil:
		defer unlock()
		_ = held
		return work(ctx) // want `pass held$`
	default:
		return work(ctx)
	}
}

func lockTwice(ctx context.Context, client *rlock.Client) error {
	_, unlock, err := client.Mutex("a").Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	_, again, err := client.Mutex("a").Lock(ctx) // want `^ctx is from before the Lock in line 61, and does not carry the hold, so that this Lock waits for itself: name`
	if err != nil {
		return err
	}
	return again()
}

func lockThenDo(ctx context.Context, a, b *rlock.Mutex) error {
	held, unlock, err := a.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	_ = held
	return b.Do(ctx, work) // want `pass held$`
}

func upgrade(ctx context.Context, u *rlock.Upgradeable) error {
	reader, unlock, err := u.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	_ = reader
	_, unlockWriter, err := u.Upgrade(ctx) // want `pass reader$`
	if err != nil {
		return err
	}
	return unlockWriter()
}

func downgrade(ctx context.Context, rw *rlock.RWMutex) error {
	return rw.Write().Do(ctx, func(writer context.Context) error {
		reader, unlock, err := rw.Downgrade(writer)
		if err != nil {
			return err
		}
		defer unlock()
		_ = reader
		return work(writer) // want `^writer is from before the Downgrade in line \d+, .*: pass reader$`
	})
}

func lockIf(ctx context.Context, m *rlock.Mutex, needed bool) error {
	if needed {
		ctx, unlock, err := m.Lock(ctx)
		if err != nil {
			return err
		}
		defer unlock()
		_ = ctx
	}
	return work(ctx) // want `^ctx is from before the Lock in line \d+, .*: assign to it with =, or go on in the scope of the one that it returned$`
}

func lockInit(ctx context.Context, m *rlock.Mutex) error {
	if ctx, unlock, err := m.Lock(ctx); err != nil {
		return work(ctx)
	} else {
		defer unlock()
	}
	return work(ctx) // want `assign to it with =`
}

func lockVar(ctx context.Context, m *rlock.Mutex) error {
	var held, unlock, err = m.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	_ = held
	return work(ctx) // want `pass held$`
}

type store struct{ mutex *rlock.Mutex }

func (s *store) hold(ctx context.Context) (context.Context, rlock.UnlockFunc, error) {
	return s.mutex.Lock(ctx)
}

func wrapper(ctx context.Context, s *store) error {
	held, unlock, err := s.hold(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	_ = held
	return work(ctx) // want `^ctx is from before the hold in line \d+`
}

func lockBackground(ctx context.Context, m *rlock.Mutex) error {
	ctx, unlock, err := m.Lock(ctx)
	if err != nil {
		return work(context.Background())
	}
	defer unlock()
	_ = ctx
	return work(context.Background()) // want `^context\.Background\(\) in the section of the Lock in line \d+ does not end when the lock is lost: pass ctx$`
}

func lockBackgroundAgain(m *rlock.Mutex) error {
	_, unlock, err := m.Lock(context.Background())
	if err != nil {
		return err
	}
	defer unlock()
	_, again, err := m.Lock(context.Background()) // want `so that this Lock waits for itself: name the ctx that it returned, and pass that$`
	if err != nil {
		return err
	}
	return again()
}

func lockAfterLoss(ctx context.Context, m *rlock.Mutex) error {
	held, unlock, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	err = work(held)
	if held.Err() != nil {
		return errors.Join(err, work(ctx))
	}
	return work(ctx) // want `pass held$`
}

// Correct code, without findings.

func lockCleanUp(ctx context.Context, m *rlock.Mutex) error {
	ctx, unlock, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if err := work(ctx); err != nil {
		return errors.Join(err, work(context.Background()))
	}
	go work(context.Background())
	return nil
}

func lockFine(ctx context.Context, m *rlock.Mutex) (err error) {
	ctx, unlock, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	return work(ctx)
}

func lockField(s *server, m *rlock.Mutex) (err error) {
	var unlock rlock.UnlockFunc
	s.ctx, unlock, err = m.Lock(s.ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	return work(s.ctx)
}

func handOverHand(ctx context.Context, a, b *rlock.Mutex) error {
	first, unlockFirst, err := a.Lock(ctx)
	if err != nil {
		return err
	}
	_ = work(first)
	second, unlockSecond, err := b.Lock(ctx)
	if err != nil {
		return errors.Join(err, unlockFirst())
	}
	err = unlockFirst()
	return errors.Join(err, work(second), unlockSecond())
}

func handOverHandDo(ctx context.Context, a, b *rlock.Mutex) error {
	first, unlockFirst, err := a.Lock(ctx)
	if err != nil {
		return err
	}
	_ = work(first)
	return b.Do(ctx, func(second context.Context) error {
		return errors.Join(unlockFirst(), work(second))
	})
}

func probe(ctx context.Context, m *rlock.Mutex) error {
	held, unlock, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	_, _, err = m.TryLock(ctx, 0) // a competitor, as it seems
	return errors.Join(err, work(held))
}

func otherwise(ctx context.Context, m *rlock.Mutex, quick bool) error {
	if held, unlock, err := m.TryLock(ctx, 0); err == nil {
		defer unlock()
		_ = work(held)
	}
	return work(ctx) // held on one way only, and held is out of sight
}

func busy(err error) bool { return errors.Is(err, rlock.ErrNotAcquired) }

func fallback(ctx context.Context, m *rlock.Mutex) error {
	held, unlock, err := m.TryLock(ctx, 0)
	if busy(err) {
		return work(ctx)
	}
	if err != nil {
		return err
	}
	defer unlock()
	return work(held)
}

func report(ctx context.Context, err error) {}

func beforeTheCheck(ctx context.Context, m *rlock.Mutex) error {
	held, unlock, err := m.Lock(ctx)
	report(ctx, err)
	if err != nil {
		return err
	}
	defer unlock()
	return work(held)
}

func given(ctx context.Context, m *rlock.Mutex, keep func(rlock.UnlockFunc)) error {
	_, unlock, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	keep(unlock)
	return work(ctx) // for how long, nobody knows
}

func handOverHandWrapper(ctx context.Context, s *store, m *rlock.Mutex) error {
	first, unlockFirst, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlockFirst()
	_ = work(first)
	second, unlockSecond, err := s.hold(ctx)
	if err != nil {
		return err
	}
	defer unlockSecond()
	return errors.Join(unlockFirst(), work(second))
}

func both(ctx context.Context, a, b *rlock.Mutex) error {
	first, unlockFirst, err := a.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlockFirst()
	second, unlockSecond, err := b.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlockSecond()
	_, _ = first, second
	return work(ctx) // want `ctx is from before the Lock in line \d+`
}
