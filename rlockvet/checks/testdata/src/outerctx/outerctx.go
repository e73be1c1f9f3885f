package outerctx

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/go-rlock/rlock/rlock"
)

func work(ctx context.Context) error { return ctx.Err() }

func inTx(ctx context.Context, fn func() error) error { return fn() }

// Sections that are functions.

func do(ctx context.Context, m *rlock.Mutex) error {
	return m.Do(ctx, func(context.Context) error {
		return work(ctx) // want `^ctx is from outside of this Do, and does not end when the lock is lost: name the ctx that it gives its function, and pass that$`
	})
}

func doBlank(ctx context.Context, m *rlock.Mutex) error {
	return m.TryDo(ctx, time.Second, func(_ context.Context) error {
		return work(ctx) // want `ctx is from outside of this TryDo`
	})
}

func doNamed(ctx context.Context, m *rlock.Mutex) error {
	return m.Do(ctx, func(held context.Context) error {
		if err := work(held); err != nil {
			return err
		}
		return work(ctx) // want `ctx is from outside of this Do, .*: pass held$`
	})
}

func doValue(ctx context.Context, l rlock.Locker) (int, error) {
	return rlock.DoValue(ctx, l, func(context.Context) (int, error) {
		return 1, work(ctx) // want `ctx is from outside of this DoValue`
	})
}

func doInstantiated(ctx context.Context, l rlock.Locker) (int, error) {
	return rlock.DoValue[int](ctx, l, func(context.Context) (int, error) {
		return 1, work(ctx) // want `ctx is from outside of this DoValue`
	})
}

func doEmbedded(ctx context.Context, a, b rlock.Locker) error {
	return rlock.All(a, b).Do(ctx, func(context.Context) error {
		return work(ctx) // want `ctx is from outside`
	})
}

func upgradeDo(ctx context.Context, u *rlock.Upgradeable) error {
	return u.UpgradeDo(ctx, func(context.Context) error {
		return work(ctx) // want `ctx is from outside of this UpgradeDo`
	})
}

// request is like that of net/http, which takes long to load.
type request struct{ ctx context.Context }

func (r *request) Context() context.Context { return r.ctx }

func (r *request) WithContext(ctx context.Context) *request { return &request{ctx} }

func handler(m *rlock.Mutex) func(*request) {
	return func(r *request) {
		_ = m.Do(r.Context(), func(context.Context) error {
			return work(r.Context()) // want `^r\.Context\(\) is from outside of this Do`
		})
	}
}

func newRequest(m *rlock.Mutex) func(*request) {
	return func(r *request) {
		_ = m.Do(r.Context(), func(ctx context.Context) error {
			r = r.WithContext(ctx)
			return work(r.Context())
		})
	}
}

type server struct{ ctx context.Context }

func (s *server) field(m *rlock.Mutex) error {
	return m.Do(s.ctx, func(ctx context.Context) error {
		return work(s.ctx) // want `^s\.ctx is from outside of this Do, .*: pass ctx$`
	})
}

func (s *server) other(o *server, m *rlock.Mutex) error {
	return m.Do(s.ctx, func(ctx context.Context) error {
		return work(o.ctx) // want `^o\.ctx is from outside of this Do`
	})
}

func doInCallback(ctx context.Context, m *rlock.Mutex) error {
	return m.Do(ctx, func(held context.Context) error {
		return inTx(held, func() error {
			return work(ctx) // want `pass held$`
		})
	})
}

func doAtOnce(ctx context.Context, m *rlock.Mutex) error {
	return m.Do(ctx, func(held context.Context) error {
		func() { _ = work(ctx) }() // want `pass held$`
		return work(held)
	})
}

func doInner(ctx context.Context, a, b *rlock.Mutex) error {
	return a.Do(ctx, func(outer context.Context) error {
		return b.Do(ctx, func(inner context.Context) error { // want `pass outer$`
			return work(outer) // want `^outer is from outside of this Do, .*: pass inner$`
		})
	})
}

func doTwice(ctx context.Context, m *rlock.Mutex) error {
	return m.Do(ctx, func(held context.Context) error {
		_, unlock, err := m.Lock(ctx) // want `^ctx is from outside of this Do, and does not carry the hold, so that this Lock waits for itself: pass held$`
		if err != nil {
			return err
		}
		return unlock()
	})
}

func derived(ctx context.Context, m *rlock.Mutex) error {
	return m.Do(ctx, func(held context.Context) error {
		quick, cancel := context.WithTimeout(ctx, time.Second) // want `pass held$`
		defer cancel()
		return work(quick)
	})
}

func doBackground(m *rlock.Mutex) error {
	return m.Do(context.Background(), func(ctx context.Context) error {
		_ = work(context.TODO())          // want `^context\.TODO\(\) in the section of this Do does not end when the lock is lost: pass ctx$`
		return work(context.Background()) // want `^context\.Background\(\) in the section of this Do does not end when the lock is lost: pass ctx$`
	})
}

func doBackgroundAgain(ctx context.Context, m, other *rlock.Mutex) error {
	return m.Do(ctx, func(held context.Context) error {
		err := m.TryDo(context.Background(), time.Second, work)       // want `^context\.Background\(\) in the section of this Do does not carry the hold, so that this TryDo waits for itself: pass held$`
		return errors.Join(err, other.Do(context.Background(), work)) // want `does not end when the lock is lost: pass held$`
	})
}

// As they should be.

func doFine(ctx context.Context, m *rlock.Mutex) error {
	return m.Do(ctx, func(ctx context.Context) error { return work(ctx) })
}

func doCleanUp(ctx context.Context, m *rlock.Mutex) error {
	return m.Do(ctx, func(ctx context.Context) error {
		if err := work(ctx); err != nil {
			return errors.Join(err, work(context.Background()))
		}
		last, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		go work(context.Background())
		defer work(context.Background())
		slog.InfoContext(context.Background(), "in the section")
		return work(last)
	})
}

func doAfterLoss(ctx context.Context, m *rlock.Mutex, jobs <-chan int) error {
	return m.Do(ctx, func(held context.Context) error {
		err := work(held)
		if held.Err() != nil && err != nil {
			return errors.Join(err, work(ctx))
		}
		if errors.Is(err, rlock.ErrLost) || context.Cause(held) != nil {
			return work(ctx)
		}
		switch {
		case held.Err() != nil:
			return work(ctx)
		case err != nil:
			return work(ctx) // want `pass held$`
		}
		if held.Err() != nil || err != nil {
			return work(ctx) // want `pass held$`
		}
		select {
		case <-held.Done():
			return work(ctx)
		case <-jobs:
			_ = work(ctx) // want `pass held$`
		}
		<-held.Done()
		return work(ctx)
	})
}

func doHarmless(ctx context.Context, m *rlock.Mutex) error {
	return m.Do(ctx, func(held context.Context) error {
		slog.InfoContext(ctx, "in the section", "owner", rlock.Owner(held))
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return errors.Join(work(rlock.Detach(ctx)), work(context.WithoutCancel(ctx)))
	})
}

func onEvent(func()) {}

// errgroup is like that of golang.org/x/sync.
type errgroup struct{}

func (*errgroup) Go(func() error) {}

func doGoroutines(ctx context.Context, m *rlock.Mutex, group *errgroup) error {
	var wg sync.WaitGroup
	return m.Do(ctx, func(held context.Context) error {
		go work(ctx)
		go func() { _ = work(ctx) }()
		wg.Go(func() { _ = work(ctx) })
		context.AfterFunc(held, func() { _ = work(ctx) })
		defer work(ctx)
		group.Go(func() error { return work(ctx) })
		onEvent(func() { _ = work(ctx) })
		later := func() error { return work(ctx) }
		_ = later
		return work(held)
	})
}

func doReassigned(ctx context.Context, m *rlock.Mutex) error {
	return m.Do(ctx, func(held context.Context) error {
		ctx = held
		return work(ctx)
	})
}

func set(to *context.Context, ctx context.Context) { *to = ctx }

func doSet(ctx context.Context, m *rlock.Mutex) error {
	return m.Do(ctx, func(held context.Context) error {
		set(&ctx, held)
		return work(ctx)
	})
}

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
	return work(ctx) // want `^ctx is from before the Lock in line 258, and does not end when the lock is lost: pass held$`
}

func lockBlank(ctx context.Context, m *rlock.Mutex) error {
	_, unlock, err := m.TryLock(ctx, time.Second)
	if err != nil {
		return err
	}
	err = work(ctx) // want `^ctx is from before the TryLock in line 270, .*: name the ctx that it returned, and pass that$`
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
	_, again, err := client.Mutex("a").Lock(ctx) // want `^ctx is from before the Lock in line 305, and does not carry the hold, so that this Lock waits for itself: name`
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

// As they should be.

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
