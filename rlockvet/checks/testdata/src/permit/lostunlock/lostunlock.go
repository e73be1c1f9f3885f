package lostunlock

import (
	"context"
	"errors"
	"log"
	"time"

	"github.com/go-rlock/rlock/rlock"
)

func work(ctx context.Context) error { return ctx.Err() }

func workAt(ctx context.Context, _ int) error { return ctx.Err() }

func check(err error) {
	if err != nil {
		log.Print(err)
	}
}

func dropped(ctx context.Context, s *rlock.PermitSemaphore) error {
	ctx, _, err := s.Acquire(ctx) // want `^the permit of this Acquire is dropped, so the permit stays held: assign it and defer its Release, or use Do$`
	if err != nil {
		return err
	}
	return work(ctx)
}

func never(ctx context.Context, s *rlock.PermitSemaphore) error {
	ctx, permit, err := s.TryAcquire(ctx, time.Second) // want `^permit\.Release is not called on every path, and the permit stays held after the return in line \d+: defer it when err is checked, or use Do$`
	if err != nil {
		return err
	}
	log.Print("has ", permit.ID())
	return workAt(ctx, permit.Slot())
}

func earlyReturn(ctx context.Context, s *rlock.PermitSemaphore) error {
	ctx, permit, err := s.Acquire(ctx) // want `permit\.Release is not called on every path`
	if err != nil {
		return err
	}
	if err := work(ctx); err != nil {
		return err
	}
	return permit.Release()
}

func overwritten(ctx context.Context, a, b *rlock.PermitSemaphore) error {
	_, permit, err := a.Acquire(ctx) // want `^permit is overwritten in line \d+ before its Release is called, so the permit stays held: call it first$`
	if err != nil {
		return err
	}
	_, permit, err = b.Acquire(ctx)
	if err != nil {
		return err
	}
	return permit.Release()
}

func overwrittenBehindDefer(ctx context.Context, a, b *rlock.PermitSemaphore) error {
	ctx, permit, err := a.Acquire(ctx) // want `^permit is overwritten in line \d+, so the deferred function calls the later one, and this permit stays held: give each permit a variable of its own$`
	if err != nil {
		return err
	}
	defer func() { check(permit.Release()) }()
	ctx, permit, err = b.Acquire(ctx)
	if err != nil {
		return err
	}
	return work(ctx)
}

func notDeferred(ctx context.Context, s *rlock.PermitSemaphore) error {
	ctx, permit, err := s.Acquire(ctx) // want `^permit\.Release is not deferred, so a panic in line \d+ leaves the permit held: use Do, or defer it as well \(a second call changes nothing\)$`
	if err != nil {
		return err
	}
	err = work(ctx)
	return errors.Join(err, permit.Release())
}

func argument(ctx context.Context, s *rlock.PermitSemaphore) error {
	ctx, permit, err := s.Acquire(ctx)
	if err != nil {
		return err
	}
	defer check(permit.Release()) // want `^permit\.Release is called at once, and only check is deferred, so the section runs without the permit: defer a function literal that calls both$`
	return work(ctx)
}

func deferredInLoop(ctx context.Context, s *rlock.PermitSemaphore) {
	for {
		held, permit, err := s.Acquire(ctx) // want `^permit\.Release is deferred in a loop, so the permit stays held in all later rounds: use Do, or a function for each round that defers it$`
		if err != nil {
			return
		}
		defer permit.Release()
		check(work(held))
	}
}

// Correct code, without findings.

func deferred(ctx context.Context, s *rlock.PermitSemaphore) (err error) {
	ctx, permit, err := s.Acquire(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, permit.Release()) }()
	return workAt(ctx, permit.Slot())
}

func twoDeferred(ctx context.Context, a, b *rlock.PermitSemaphore) error {
	ctx, permit, err := a.Acquire(ctx)
	if err != nil {
		return err
	}
	defer permit.Release()
	ctx, permit, err = b.Acquire(ctx)
	if err != nil {
		return err
	}
	defer permit.Release()
	return work(ctx)
}

func leased(ctx context.Context, client *rlock.Client) error {
	_, _, err := client.PermitSemaphore("mails", rlock.WithLease(time.Minute)).Acquire(ctx)
	return err
}

func passedOn(ctx context.Context, s *rlock.PermitSemaphore, to chan<- *rlock.Permit) error {
	_, permit, err := s.Acquire(ctx)
	if err != nil {
		return err
	}
	to <- permit
	return nil
}

func method(ctx context.Context, s *rlock.PermitSemaphore) (context.Context, func() error, error) {
	ctx, permit, err := s.Acquire(ctx)
	if err != nil {
		return nil, nil, err
	}
	return ctx, permit.Release, nil
}

// Others give it back by its id.
func id(ctx context.Context, s *rlock.PermitSemaphore) (string, error) {
	_, permit, err := s.Acquire(ctx)
	if err != nil {
		return "", err
	}
	return permit.ID(), nil
}
