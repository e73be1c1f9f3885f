package lockerr

import (
	"context"
	"errors"

	"github.com/go-rlock/rlock/rlock"
)

func work(ctx context.Context) error { return ctx.Err() }

func dropped(ctx context.Context, s *rlock.PermitSemaphore) error {
	ctx, permit, _ := s.Acquire(ctx) // want `^the error of this Acquire is dropped, so the code goes on without the permit if it fails: check it, or use Do$`
	defer permit.Release()
	return work(ctx)
}

func sentinel(ctx context.Context, s *rlock.PermitSemaphore) error {
	ctx, permit, err := s.TryAcquire(ctx, 0) // want `^err may be another error when the section begins in line \d+, so the code goes on without the permit if it fails`
	if errors.Is(err, rlock.ErrNotAcquired) {
		return nil
	}
	return errors.Join(work(ctx), permit.Release())
}

func checked(ctx context.Context, s *rlock.PermitSemaphore) error {
	ctx, permit, err := s.Acquire(ctx)
	if err != nil {
		return err
	}
	defer permit.Release()
	return work(ctx)
}
