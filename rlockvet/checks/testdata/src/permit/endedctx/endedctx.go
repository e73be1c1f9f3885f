package endedctx

import (
	"context"
	"errors"

	"github.com/go-rlock/rlock/rlock"
)

func work(ctx context.Context) error { return ctx.Err() }

func after(ctx context.Context, s *rlock.PermitSemaphore) error {
	ctx, permit, err := s.Acquire(ctx)
	if err != nil {
		return err
	}
	err = errors.Join(work(ctx), permit.Release())
	return errors.Join(err, work(ctx)) // want `^ctx was cancelled by the unlock of the Acquire in line \d+`
}
