package lostunlock

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"sync"
	"time"

	"github.com/go-rlock/rlock/rlock"
)

// Correct code, without findings.

func deferredCheck(ctx context.Context, m *rlock.Mutex) error {
	ctx, unlock, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	defer checkFunc(unlock)
	defer func() { check(unlock()) }()
	return work(ctx)
}

func checkFunc(f func() error) { check(f()) }

func together(a, b rlock.UnlockFunc) rlock.UnlockFunc {
	return func() error { return errors.Join(b(), a()) }
}

func chained(ctx context.Context, a, b *rlock.Mutex) error {
	ctx, unlock, err := a.Lock(ctx)
	if err != nil {
		return err
	}
	ctx, second, err := b.Lock(ctx)
	if err != nil {
		return errors.Join(err, unlock())
	}
	unlock = together(unlock, second)
	defer unlock()
	return work(ctx)
}

func chainedBehindDefer(ctx context.Context, a, b *rlock.Mutex) error {
	ctx, unlock, err := a.Lock(ctx)
	if err != nil {
		return err
	}
	defer func() { check(unlock()) }()
	ctx, second, err := b.Lock(ctx)
	if err != nil {
		return err
	}
	unlock = together(unlock, second)
	return work(ctx)
}

func valueDeferred(ctx context.Context, a, b *rlock.Mutex) error {
	ctx, unlock, err := a.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	ctx, unlock, err = b.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	return work(ctx)
}

func againBehindDefer(ctx context.Context, m *rlock.Mutex) error {
	held, unlock, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	defer func() { check(unlock()) }()
	if err := errors.Join(work(held), unlock()); err != nil {
		return err
	}
	held, unlock, err = m.Lock(ctx)
	if err != nil {
		return err
	}
	return work(held)
}

func firstOfLoop(ctx context.Context, client *rlock.Client, names []string) error {
	for _, name := range names {
		held, unlock, err := client.Mutex(name).TryLock(ctx, 0)
		if err != nil {
			continue
		}
		defer unlock()
		return work(held)
	}
	return nil
}

func collected(ctx context.Context, client *rlock.Client, names []string, load func(context.Context, string) error, store func() error) error {
	for _, name := range names {
		held, unlock, err := client.Mutex(name).Lock(ctx)
		if err != nil {
			return err
		}
		defer unlock()
		if err := load(held, name); err != nil {
			return err
		}
	}
	return store() // needs all locks
}

func nested(ctx context.Context, client *rlock.Client, names []string) (err error) {
	var unlock rlock.UnlockFunc
	for _, name := range names {
		ctx, unlock, err = client.Mutex(name).Lock(ctx)
		if err != nil {
			return err
		}
		defer unlock()
		if err := work(ctx); err != nil {
			return err
		}
	}
	return nil
}

func deferred(ctx context.Context, m *rlock.Mutex) (err error) {
	ctx, unlock, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	return work(ctx)
}

func deferredFirst(ctx context.Context, m *rlock.Mutex) error {
	ctx, unlock, err := m.Lock(ctx)
	defer unlock()
	if err != nil {
		return err
	}
	return work(ctx)
}

func deferredAsWell(ctx context.Context, m *rlock.Mutex) error {
	held, unlock, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if err := work(held); err != nil {
		return err
	}
	return unlock()
}

func deferredBefore(ctx context.Context, a, b *rlock.Mutex) (err error) {
	unlock := rlock.UnlockFunc(func() error { return nil })
	defer func() { err = errors.Join(err, unlock()) }()
	ctx, unlock, err = a.Lock(ctx)
	if err != nil {
		return err
	}
	return work(ctx)
}

func pointedTo(ctx context.Context, a, b *rlock.Mutex, keep func(*rlock.UnlockFunc)) (err error) {
	var unlock rlock.UnlockFunc
	keep(&unlock)
	ctx, unlock, err = a.Lock(ctx)
	if err != nil {
		return err
	}
	return work(ctx)
}

func onlyIfHeld(ctx context.Context, m *rlock.Mutex) error {
	if ctx, unlock, err := m.TryLock(ctx, 0); err == nil {
		defer unlock()
		return work(ctx)
	}
	return nil
}

func inSwitch(ctx context.Context, m *rlock.Mutex) error {
	ctx, unlock, err := m.TryLock(ctx, 0)
	switch {
	case errors.Is(err, rlock.ErrNotAcquired):
		return nil
	case err != nil:
		return err
	}
	defer unlock()
	return work(ctx)
}

func negated(ctx context.Context, m *rlock.Mutex) error {
	ctx, unlock, err := m.TryLock(ctx, 0)
	if !(err == nil) {
		return err
	}
	defer unlock()
	return work(ctx)
}

func inTypeSwitch(ctx context.Context, m *rlock.Mutex) error {
	ctx, unlock, err := m.TryLock(ctx, 0)
	switch err.(type) {
	case interface{ Timeout() bool }:
		return nil
	}
	if err != nil {
		return err
	}
	defer unlock()
	return work(ctx)
}

func isBusy(err error) bool { return errors.Is(err, rlock.ErrNotAcquired) }

func inFunction(ctx context.Context, m *rlock.Mutex) error {
	ctx, unlock, err := m.TryLock(ctx, 0)
	if isBusy(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unlock()
	return work(ctx)
}

func inVariable(ctx context.Context, m *rlock.Mutex) error {
	ctx, unlock, err := m.TryLock(ctx, 0)
	failed := err != nil
	if failed {
		return err
	}
	defer unlock()
	return work(ctx)
}

func unchecked(ctx context.Context, m *rlock.Mutex, closed bool) error {
	ctx, unlock, err := m.Lock(ctx)
	if errors.Is(err, rlock.ErrNotAcquired) {
		return nil
	}
	if err != nil && !errors.Is(err, rlock.ErrLost) {
		return err
	}
	if closed {
		return nil // a mistake, but err may be ErrLost here
	}
	defer unlock()
	return work(ctx)
}

func orClosed(ctx context.Context, m *rlock.Mutex, closed bool) error {
	ctx, unlock, err := m.TryLock(ctx, 0)
	if err != nil || closed {
		return err // a mistake, but not one that can be told from others
	}
	defer unlock()
	return work(ctx)
}

func fatal(ctx context.Context, m *rlock.Mutex) {
	ctx, unlock, err := m.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	if ctx.Err() != nil {
		log.Fatal(ctx.Err())
	}
	unlock()
}

func retry(ctx context.Context, m *rlock.Mutex) (err error) {
	var unlock rlock.UnlockFunc
	for {
		_, unlock, err = m.TryLock(ctx, time.Second)
		if err == nil {
			break
		}
	}
	return unlock()
}

func short(ctx context.Context, m *rlock.Mutex, n *int) error {
	_, unlock, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	*n++
	fmt.Println(*n, len("n"), time.Duration(*n), rlock.Owner(ctx))
	return unlock()
}

func logged(ctx context.Context, m *rlock.Mutex, wg *sync.WaitGroup, logger *slog.Logger) error {
	_, unlock, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	wg.Add(1)
	logger.Info("in the section")
	return unlock()
}

func leased(ctx context.Context, client *rlock.Client) error {
	_, _, err := client.Mutex("mail", rlock.WithLease(time.Minute)).TryLock(ctx, 0)
	return err
}

type holder struct{ unlock rlock.UnlockFunc }

func passedOn(ctx context.Context, m *rlock.Mutex, h *holder, to chan<- rlock.UnlockFunc, way int) (context.Context, rlock.UnlockFunc, error) {
	ctx, unlock, err := m.Lock(ctx)
	if err != nil {
		return ctx, nil, err
	}
	switch way {
	case 0:
		h.unlock = unlock
	case 1:
		to <- unlock
	case 2:
		time.AfterFunc(time.Second, func() { _ = unlock() })
	case 3:
		go unlock()
	default:
		return ctx, unlock, nil
	}
	return ctx, nil, work(ctx)
}

func returned(ctx context.Context, m *rlock.Mutex) (context.Context, rlock.UnlockFunc, error) {
	return m.Lock(ctx)
}

func named(ctx context.Context, m *rlock.Mutex) (_ context.Context, unlock rlock.UnlockFunc, err error) {
	ctx, unlock, err = m.Lock(ctx)
	if err == nil {
		err = work(ctx)
	}
	return
}

func field(ctx context.Context, m *rlock.Mutex, h *holder) (err error) {
	_, h.unlock, err = m.Lock(ctx)
	return err
}
