package lostunlock

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/go-rlock/rlock/rlock"
)

func acquireEarlyReturn(ctx context.Context, s *rlock.Semaphore) error {
	if err := s.Acquire(ctx, 2); err != nil { // want `^s\.Release is not called on every path, and the permits stay taken after the return in line \d+: defer it when err is checked, or use Do$`
		return err
	}
	if err := work(ctx); err != nil {
		return fmt.Errorf("working: %w", err)
	}
	return s.Release(ctx, 2)
}

func acquireLateDefer(ctx context.Context, client *rlock.Client, closed bool) error {
	err := client.Semaphore("gpus").TryAcquire(ctx, 1, 0) // want `^client\.Semaphore\("gpus"\)\.Release is not called on every path`
	if err != nil {
		return err
	}
	if closed {
		return nil
	}
	defer func() { check(client.Semaphore("gpus").Release(ctx, 1)) }()
	return work(ctx)
}

func acquireInBranch(ctx context.Context, s *rlock.Semaphore) {
	if err := s.TryAcquire(ctx, 1, 0); err == nil { // want `s\.Release is not called on every path`
		if work(ctx) != nil {
			return
		}
		check(s.Release(ctx, 1))
	}
}

type pool struct{ gpus *rlock.Semaphore }

func (p *pool) acquireNextRound(ctx context.Context, names []string) {
	for range names {
		if err := p.gpus.Acquire(ctx, 1); err != nil { // want `^p\.gpus\.Release is not called on every path, and the permits stay taken in the next round of the loop: use Do, or a function for each round that defers it$`
			return
		}
		if work(ctx) != nil {
			continue
		}
		if err := p.gpus.Release(ctx, 1); err != nil {
			log.Print(err)
		}
	}
}

func acquireNotDeferred(ctx context.Context, s *rlock.Semaphore) error {
	if err := s.Acquire(ctx, 1); err != nil { // want `^s\.Release is not deferred, so a panic in line \d+ leaves the permits taken: defer it instead, or use Do$`
		return err
	}
	err := work(ctx)
	return errors.Join(err, s.Release(ctx, 1))
}

func acquireNotDeferredInLoop(ctx context.Context, s *rlock.Semaphore) {
	for s.Acquire(ctx, 1) == nil { // not followed: the error has no variable
		check(work(ctx))
		check(s.Release(ctx, 1))
	}
	for {
		err := s.Acquire(ctx, 1) // want `^s\.Release is not deferred, so a panic in line \d+ leaves the permits taken: use Do, or a function for each round that defers it$`
		if err != nil {
			return
		}
		check(work(ctx))
		check(s.Release(ctx, 1))
	}
}

func acquireArgument(ctx context.Context, s *rlock.Semaphore) error {
	if err := s.Acquire(ctx, 1); err != nil {
		return err
	}
	defer check(s.Release(ctx, 1)) // want `^s\.Release is called at once, and only check is deferred, so the section runs without the permits: defer a function literal that calls both$`
	return nil
}

func permitsLocker(ctx context.Context, s *rlock.Semaphore) error {
	ctx, _, err := s.Locker(2).Lock(ctx) // want `the unlock of this Lock is dropped`
	if err != nil {
		return err
	}
	return work(ctx)
}

// Correct code, without findings.

func acquireDeferred(ctx context.Context, s *rlock.Semaphore) (err error) {
	if err := s.Acquire(ctx, 1); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Release(context.WithoutCancel(ctx), 1)) }()
	return work(ctx)
}

func acquireDeferredPlainly(ctx context.Context, s *rlock.Semaphore) error {
	if err := s.Acquire(ctx, 1); err != nil {
		return err
	}
	defer s.Release(ctx, 1)
	return work(ctx)
}

func acquireShort(ctx context.Context, s *rlock.Semaphore, n *int) error {
	if err := s.Acquire(ctx, 1); err != nil {
		return err
	}
	*n++
	return s.Release(ctx, 1)
}

// The caller has them if nothing fails.
func reserve(ctx context.Context, s *rlock.Semaphore) error {
	if err := s.Acquire(ctx, 1); err != nil {
		return err
	}
	if err := work(ctx); err != nil {
		return errors.Join(err, s.Release(ctx, 1))
	}
	return nil
}

// A goroutine gives them back.
func start(ctx context.Context, s *rlock.Semaphore, jobs []func()) error {
	for _, job := range jobs {
		if err := s.Acquire(ctx, 1); err != nil {
			return err
		}
		go func() {
			defer func() { check(s.Release(ctx, 1)) }()
			job()
		}()
	}
	return nil
}

// The producer gives, the consumer takes.
func consume(ctx context.Context, items *rlock.Semaphore) error {
	if err := items.Acquire(ctx, 1); err != nil {
		return err
	}
	return work(ctx)
}

func collectPermits(ctx context.Context, s *rlock.Semaphore, n int64) error {
	for range n {
		if err := s.Acquire(ctx, 1); err != nil {
			return err
		}
	}
	return errors.Join(work(ctx), s.Release(ctx, n))
}

func twoSemaphores(ctx context.Context, a, b *rlock.Semaphore) error {
	if err := a.Acquire(ctx, 1); err != nil {
		return err
	}
	return b.Release(ctx, 1)
}

func inLiteral(ctx context.Context, s *rlock.Semaphore) error {
	release := func() { check(s.Release(ctx, 1)) }
	if err := s.Acquire(ctx, 1); err != nil {
		return err
	}
	if err := work(ctx); err != nil {
		release()
		return err
	}
	return s.Release(ctx, 1)
}

func passedSemaphore(ctx context.Context, s *rlock.Semaphore, later func(*rlock.Semaphore)) error {
	if err := s.Acquire(ctx, 1); err != nil {
		return err
	}
	if err := work(ctx); err != nil {
		later(s)
		return err
	}
	return s.Release(ctx, 1)
}

func anotherHandle(ctx context.Context, client *rlock.Client) error {
	s := client.Semaphore("a")
	if err := s.Acquire(ctx, 1); err != nil {
		return err
	}
	if _, err := s.Available(ctx); err != nil {
		return errors.Join(err, s.Release(ctx, 1))
	}
	s = client.Semaphore("b")
	return s.Release(ctx, 1)
}
