package outerctx

import (
	"context"

	"github.com/go-rlock/rlock/rlock"
)

func work(ctx context.Context) error { return ctx.Err() }

func before(ctx context.Context, s *rlock.PermitSemaphore) error {
	held, permit, err := s.Acquire(ctx)
	if err != nil {
		return err
	}
	defer permit.Release()
	if err := work(held); err != nil {
		return err
	}
	return work(ctx) // want `^ctx is from before the Acquire in line \d+`
}

func outside(ctx context.Context, s *rlock.PermitSemaphore) error {
	return s.Do(ctx, func(held context.Context, _ *rlock.Permit) error {
		if err := work(held); err != nil {
			return err
		}
		return work(ctx) // want `^ctx is from outside of this Do, .*: pass held$`
	})
}
