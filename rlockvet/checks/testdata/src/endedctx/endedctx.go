package endedctx

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/go-rlock/rlock/rlock"
)

func work(ctx context.Context) error { return ctx.Err() }

func loop(ctx context.Context, client *rlock.Client, names []string) (err error) {
	var unlock rlock.UnlockFunc
	for _, name := range names {
		ctx, unlock, err = client.Mutex(name).Lock(ctx) // want `^ctx was cancelled by the unlock of the Lock in line \d+: give this Lock a ctx from before that, and the section a ctx of its own name$`
		if err != nil {
			return err
		}
		err = errors.Join(work(ctx), unlock())
	}
	return err
}

func again(ctx context.Context, m *rlock.Mutex) (err error) {
	var unlock rlock.UnlockFunc
	for range 3 {
		if ctx, unlock, err = m.TryLock(ctx, time.Second); err != nil { // want `give this TryLock a ctx from before that`
			continue
		}
		if err := unlock(); err != nil {
			return err
		}
	}
	return err
}

func inTurn(ctx context.Context, a, b *rlock.Mutex) error {
	ctx, unlock, err := a.Lock(ctx)
	if err != nil {
		return err
	}
	if err := unlock(); err != nil {
		return err
	}
	ctx, unlock, err = b.Lock(ctx) // want `ctx was cancelled by the unlock of the Lock in line \d+: give this Lock`
	if err != nil {
		return err
	}
	_ = work(ctx)
	return unlock()
}

func onOneWay(ctx context.Context, a, b *rlock.Mutex, quick bool) error {
	ctx, unlock, err := a.Lock(ctx)
	if err != nil {
		return err
	}
	if quick {
		err = unlock()
	} else {
		defer unlock()
	}
	_ = work(ctx)                            // there is a way on which it is fine
	return errors.Join(err, b.Do(ctx, work)) // want `give this Do a ctx from before that`
}

func afterwards(ctx context.Context, m *rlock.Mutex) error {
	ctx, unlock, err := m.Lock(ctx)
	if err != nil {
		return work(ctx)
	}
	if err := errors.Join(work(ctx), unlock()); err != nil {
		return err
	}
	return work(ctx) // want `^ctx was cancelled by the unlock of the Lock in line \d+: pass a ctx from before that, and give the section a ctx of its own name$`
}

// Correct code, without findings.

func loopFine(ctx context.Context, client *rlock.Client, names []string) (err error) {
	for _, name := range names {
		held, unlock, lockErr := client.Mutex(name).Lock(ctx)
		if lockErr != nil {
			return lockErr
		}
		err = errors.Join(err, work(held), unlock())
	}
	return errors.Join(err, work(ctx))
}

func loopScoped(ctx context.Context, client *rlock.Client, names []string) (err error) {
	for _, name := range names {
		ctx, unlock, lockErr := client.Mutex(name).Lock(ctx)
		if lockErr != nil {
			return lockErr
		}
		err = errors.Join(err, work(ctx), unlock())
	}
	return errors.Join(err, work(ctx))
}

func nested(ctx context.Context, client *rlock.Client, names []string) (err error) {
	var unlock rlock.UnlockFunc
	for _, name := range names {
		ctx, unlock, err = client.Mutex(name).Lock(ctx)
		if err != nil {
			return err
		}
		defer unlock()
	}
	return work(ctx)
}

func restored(ctx context.Context, client *rlock.Client, names []string) (err error) {
	var unlock rlock.UnlockFunc
	before := ctx
	for _, name := range names {
		ctx, unlock, err = client.Mutex(name).Lock(ctx)
		if err != nil {
			return err
		}
		err = errors.Join(work(ctx), unlock())
		ctx = before
	}
	return errors.Join(err, work(ctx))
}

func retry(ctx context.Context, m *rlock.Mutex) error {
	for {
		var unlock rlock.UnlockFunc
		var err error
		ctx, unlock, err = m.TryLock(ctx, time.Second)
		if errors.Is(err, rlock.ErrNotAcquired) {
			continue
		}
		if err != nil {
			return err
		}
		return errors.Join(work(ctx), unlock())
	}
}

func harmless(ctx context.Context, m *rlock.Mutex) error {
	ctx, unlock, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	err = errors.Join(work(ctx), unlock())
	token, _ := m.FencingToken(ctx)
	slog.InfoContext(ctx, "done", "token", token, "cause", context.Cause(ctx))
	return errors.Join(err, ctx.Err(), work(context.WithoutCancel(ctx)))
}
