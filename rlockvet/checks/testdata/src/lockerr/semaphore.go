package lockerr

import (
	"context"
	"errors"
	"log"

	"github.com/go-rlock/rlock/rlock"
)

func acquireStatement(ctx context.Context, s *rlock.Semaphore) error {
	s.Acquire(ctx, 1) // want `^the error of this Acquire is dropped, so the code goes on without the permits if it fails: check it, or use Do$`
	defer s.Release(ctx, 1)
	return work(ctx)
}

func acquireDropped(ctx context.Context, s *rlock.Semaphore) error {
	_ = s.TryAcquire(ctx, 1, 0) // want `the error of this TryAcquire is dropped`
	return work(ctx)
}

func acquireUnread(ctx context.Context, s *rlock.Semaphore) error {
	err := s.Acquire(ctx, 1) // want `^err is not looked at after this Acquire, so the code goes on without the permits if it fails: check it, or use Do$`
	err = work(ctx)
	return errors.Join(err, s.Release(ctx, 1))
}

func acquireSentinel(ctx context.Context, s *rlock.Semaphore) error {
	err := s.TryAcquire(ctx, 1, 0) // want `^the permits are given back in line \d+ although this TryAcquire may have failed, so there are more of them then: compare err with nil first, or use Do$`
	if errors.Is(err, rlock.ErrNotAcquired) {
		return nil
	}
	return errors.Join(work(ctx), s.Release(ctx, 1))
}

func acquireDeferredFirst(ctx context.Context, s *rlock.Semaphore) error {
	err := s.Acquire(ctx, 1) // want `the permits are given back in line \d+ although this Acquire may have failed`
	defer s.Release(ctx, 1)
	if err != nil {
		return err
	}
	return work(ctx)
}

func acquireDeferredFirstInLiteral(ctx context.Context, s *rlock.Semaphore) error {
	err := s.Acquire(ctx, 1) // want `the permits are given back in line \d+ although this Acquire may have failed`
	defer func() { _ = s.Release(ctx, 1) }()
	if err != nil {
		return err
	}
	return work(ctx)
}

// Correct code, without findings.

func acquireReturned(ctx context.Context, s *rlock.Semaphore) error {
	return s.Acquire(ctx, 1)
}

func acquireCondition(ctx context.Context, s *rlock.Semaphore) {
	if s.Acquire(ctx, 1) == nil {
		defer s.Release(ctx, 1)
		_ = work(ctx)
	}
}

func acquireChecked(ctx context.Context, s *rlock.Semaphore) error {
	switch err := s.TryAcquire(ctx, 1, 0); {
	case errors.Is(err, rlock.ErrNotAcquired):
		return nil
	case err != nil:
		return err
	}
	defer func() { _ = s.Release(ctx, 1) }()
	return work(ctx)
}

func acquireCheckedLater(ctx context.Context, s *rlock.Semaphore) (err error) {
	err = s.Acquire(ctx, 1)
	defer func() {
		if err == nil {
			err = s.Release(ctx, 1)
		}
	}()
	if err != nil {
		return err
	}
	return work(ctx)
}

func acquireLogged(ctx context.Context, s *rlock.Semaphore) {
	if err := s.Acquire(ctx, 1); err != nil { // want `^err is only logged after this Acquire, so the code goes on without the permits if it fails: return then, or use Do$`
		log.Print(err)
	}
	_ = work(ctx)
}
