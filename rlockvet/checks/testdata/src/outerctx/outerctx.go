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

// Correct code, without findings.

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
