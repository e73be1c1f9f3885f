package endedctx

import (
	"context"

	"github.com/go-rlock/rlock/rlock"
)

func holdOutlivesItsWait(ctx context.Context, m *rlock.Mutex) error {
	wait, leave := context.WithCancel(ctx)
	hold, err := rlock.Acquire(wait, m)
	leave()
	if err != nil {
		return err
	}
	defer hold.Unlock()
	return work(hold.Context())
}

func afterHold(ctx context.Context, m *rlock.Mutex) error {
	hold, err := rlock.Acquire(ctx, m)
	if err != nil {
		return err
	}
	held := hold.Context()
	if err := hold.Unlock(); err != nil {
		return err
	}
	if err := work(hold.Context()); err != nil { // want `^hold\.Context\(\) was cancelled by the unlock of the Acquire in line \d+`
		return err
	}
	if err := work(held); err != nil { // want `^held was cancelled by the unlock of the Acquire in line \d+`
		return err
	}
	return work(ctx)
}
