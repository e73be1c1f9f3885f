package endedctx

import (
	"context"
	"time"

	"github.com/go-rlock/rlock/rlock"
)

// The ctx that Lock was given.

func bounded(ctx context.Context, m *rlock.Mutex) error {
	wait, cancel := context.WithTimeout(ctx, time.Second)
	held, unlock, err := m.Lock(wait)
	cancel()
	if err != nil {
		return err
	}
	defer unlock()
	return work(held) // want `^held was cancelled by cancel, whose ctx the Lock in line \d+ was given: defer cancel, or bound the wait with TryLock$`
}

func boundedAfter(ctx context.Context, m *rlock.Mutex) error {
	wait, cancel := context.WithCancel(ctx)
	held, unlock, err := m.Lock(wait)
	if err != nil {
		cancel()
		return err
	}
	defer unlock()
	if err := work(held); err != nil {
		return err
	}
	cancel()
	return work(held) // want `held was cancelled by cancel`
}

// The ctx of a section, returned.

func escapes(ctx context.Context, m *rlock.Mutex) (context.Context, error) {
	held, unlock, err := m.Lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	return held, nil // want `^held is cancelled by the unlock of the Lock in line \d+, which is deferred, so the caller gets a ctx that has ended: return the unlock as well, and do not defer it$`
}

// Correct code, without findings.

func boundedFine(ctx context.Context, m *rlock.Mutex, quick bool) error {
	wait, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	held, unlock, err := m.Lock(wait)
	if err != nil {
		return err
	}
	defer unlock()
	if quick {
		cancel()
		return context.Cause(held)
	}
	return work(held)
}

func boundedEarlier(ctx context.Context, m *rlock.Mutex) error {
	wait, cancel := context.WithTimeout(ctx, time.Second)
	_ = work(wait)
	cancel()
	held, unlock, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	return work(held)
}

func handedOn(ctx context.Context, m *rlock.Mutex) (_ context.Context, _ rlock.UnlockFunc, err error) {
	held, unlock, err := m.Lock(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			_ = unlock()
		}
	}()
	if err := work(held); err != nil {
		return nil, nil, err
	}
	return held, unlock, nil
}
