package lockerr

import (
	"context"
	"errors"
	"log"
	"log/slog"
	"time"

	"github.com/go-rlock/rlock/rlock"
)

func work(ctx context.Context) error { return ctx.Err() }

func dropped(ctx context.Context, m *rlock.Mutex) {
	ctx, unlock, _ := m.Lock(ctx) // want `^the error of this Lock is dropped, so the code goes on without the lock if it fails: check it, or use Do$`
	defer unlock()
	_ = work(ctx)
}

func droppedVar(ctx context.Context, m *rlock.Mutex) {
	var held, unlock, _ = m.TryLock(ctx, time.Second) // want `the error of this TryLock is dropped`
	defer unlock()
	_ = work(held)
}

func onlyCtx(ctx context.Context, client *rlock.Client) {
	ctx, _, _ = client.Mutex("a", rlock.WithLease(time.Minute)).Lock(ctx) // want `the error of this Lock is dropped`
	_ = work(ctx)
}

func onlyUnlock(ctx context.Context, m *rlock.Mutex, n *int) {
	_, unlock, _ := m.Lock(ctx) // want `the error of this Lock is dropped`
	*n++
	_ = unlock()
}

func namedResult(ctx context.Context, m *rlock.Mutex) (err error) {
	ctx, unlock, err := m.Lock(ctx) // want `^err is not looked at after this Lock, so the code goes on without the lock if it fails: check it, or use Do$`
	defer unlock()
	return work(ctx)
}

func joined(ctx context.Context, m *rlock.Mutex) (err error) {
	ctx, unlock, err := m.Lock(ctx) // want `err is not looked at after this Lock`
	defer func() { err = errors.Join(err, unlock()) }()
	return work(ctx)
}

func overwritten(ctx context.Context, m *rlock.Mutex) error {
	ctx, unlock, err := m.Lock(ctx) // want `err is not looked at after this Lock`
	defer unlock()
	err = work(ctx)
	return err
}

func byTheNext(ctx context.Context, a, b *rlock.Mutex) error {
	ctx, unlockA, err := a.Lock(ctx) // want `err is not looked at after this Lock`
	defer unlockA()
	ctx, unlockB, err := b.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlockB()
	return work(ctx)
}

func blank(ctx context.Context, m *rlock.Mutex) {
	ctx, unlock, err := m.Lock(ctx) // want `err is not looked at after this Lock`
	_ = err
	defer unlock()
	_ = work(ctx)
}

func onlyBusy(ctx context.Context, m *rlock.Mutex) error {
	ctx, unlock, err := m.TryLock(ctx, 0) // want `^err may be another error when the section begins in line 82, so the code goes on without the lock if it fails: compare it with nil, or use Do$`
	if errors.Is(err, rlock.ErrNotAcquired) {
		return nil
	}
	defer unlock()

	return work(ctx)
}

func onlyBusySwitch(ctx context.Context, m *rlock.Mutex) error {
	held, unlock, err := m.TryLock(ctx, 0) // want `err may be another error when the section begins`
	switch err {
	case rlock.ErrNotAcquired:
		return nil
	}
	return errors.Join(work(held), unlock())
}

// Correct code, without findings.

func checked(ctx context.Context, m *rlock.Mutex) (err error) {
	ctx, unlock, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	return work(ctx)
}

func probe(ctx context.Context, m *rlock.Mutex) {
	_, _, _ = m.TryLock(ctx, 0) // as lostunlock says
}

func retry(ctx context.Context, m *rlock.Mutex) (err error) {
	for range 3 {
		held, unlock, tryErr := m.TryLock(ctx, time.Second)
		if err = tryErr; err != nil {
			continue
		}
		return errors.Join(work(held), unlock())
	}
	return err
}

func untilItHas(ctx context.Context, m *rlock.Mutex) error {
	var held context.Context
	var unlock rlock.UnlockFunc
	for {
		var err error
		held, unlock, err = m.TryLock(ctx, time.Second)
		if err == nil {
			break
		}
		log.Print(err)
	}
	defer unlock()
	return work(held)
}

func must(err error) {
	if err != nil {
		log.Panic(err)
	}
}

func inFunction(ctx context.Context, m *rlock.Mutex) {
	ctx, unlock, err := m.Lock(ctx)
	must(err)
	defer unlock()
	_ = work(ctx)
}

func isBusy(err error) bool { return errors.Is(err, rlock.ErrNotAcquired) }

func inCondition(ctx context.Context, m *rlock.Mutex) error {
	ctx, unlock, err := m.TryLock(ctx, 0)
	if isBusy(err) {
		return nil
	}
	defer unlock()
	return work(ctx)
}

func inVariable(ctx context.Context, m *rlock.Mutex) error {
	ctx, unlock, err := m.TryLock(ctx, 0)
	ok := err == nil
	if !ok {
		return nil
	}
	defer unlock()
	return work(ctx)
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

func spanOf(ctx context.Context) any { return ctx.Value("span") }

func beforeTheCheck(ctx context.Context, m *rlock.Mutex) error {
	held, unlock, err := m.Lock(ctx)
	start(held, "lock")
	slog.InfoContext(held, "tried", "span", spanOf(held))
	if err != nil {
		return err
	}
	defer unlock()
	return work(held)
}

func start(ctx context.Context, name string) {}

func inLiteral(ctx context.Context, m *rlock.Mutex, onEnd func(func())) {
	ctx, unlock, err := m.Lock(ctx)
	onEnd(func() { log.Print(err) })
	defer unlock()
	_ = work(ctx)
}

func inDefer(ctx context.Context, m *rlock.Mutex) {
	ctx, unlock, err := m.Lock(ctx)
	defer func() {
		if err == nil {
			_ = unlock()
		}
	}()
	_ = work(ctx)
}

func bareReturn(ctx context.Context, m *rlock.Mutex) (held context.Context, unlock rlock.UnlockFunc, err error) {
	held, unlock, err = m.Lock(ctx)
	return
}

func bestEffort(ctx context.Context, m *rlock.Mutex) error {
	ctx, unlock, err := m.Lock(ctx) //rlockvet:ignore going on without the lock is meant
	if err != nil {
		log.Print("going on without the lock: ", err)
	}
	defer unlock()
	return work(ctx)
}

type store struct{ err error }

func (s *store) field(ctx context.Context, m *rlock.Mutex) error {
	var unlock rlock.UnlockFunc
	ctx, unlock, s.err = m.Lock(ctx)
	defer unlock()
	return work(ctx)
}

func infallible(m *rlock.Mutex) (context.Context, rlock.UnlockFunc) {
	ctx, unlock, err := m.Lock(context.Background())
	must(err)
	return ctx, unlock
}

func noError(m *rlock.Mutex) {
	ctx, unlock := infallible(m)
	defer unlock()
	_ = work(ctx)
}
