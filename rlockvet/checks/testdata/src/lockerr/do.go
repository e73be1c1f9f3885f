package lockerr

import (
	"context"
	"errors"
	"log"
	"time"

	"github.com/go-rlock/rlock/rlock"
)

// The error of Do.

func value(ctx context.Context) (int, error) { return 1, ctx.Err() }

func zero(ctx context.Context, m *rlock.Mutex) int {
	n, _ := rlock.DoValue(ctx, m, value) // want `^the error of this DoValue is dropped, so n is a zero value if the function did not run: check it$`
	return n
}

func zeroVar(ctx context.Context, m *rlock.Mutex) int {
	var n, _ = rlock.TryDoValue(ctx, m, time.Second, value) // want `the error of this TryDoValue is dropped`
	return n
}

func doOnlyBusy(ctx context.Context, m *rlock.Mutex) error {
	if err := m.TryDo(ctx, 0, work); errors.Is(err, rlock.ErrNotAcquired) { // want `^err is only compared with rlock\.ErrNotAcquired after this TryDo, so that every other error is taken for success: compare it with nil as well$`
		return nil
	}
	return work(ctx)
}

func doOnlyBusyVar(ctx context.Context, m *rlock.Mutex) bool {
	err := m.TryDo(ctx, 0, work) // want `err is only compared with rlock\.ErrNotAcquired after this TryDo`
	if !errors.Is(err, rlock.ErrNotAcquired) {
		return true
	}
	return false
}

func doOnlyBusySwitch(ctx context.Context, m *rlock.Mutex) string {
	n, err := rlock.TryDoValue(ctx, m, 0, value) // want `err is only compared with rlock\.Err\w+ after this TryDoValue`
	switch {
	case errors.Is(err, rlock.ErrNotAcquired):
		return "busy"
	case errors.Is(err, rlock.ErrLost):
		return "lost"
	}
	return string(rune(n))
}

func thenAnother(ctx context.Context, a, b *rlock.Mutex) error {
	err := a.TryDo(ctx, 0, work) // want `err is only compared with rlock\.ErrNotAcquired after this TryDo`
	if errors.Is(err, rlock.ErrNotAcquired) {
		return nil
	}
	err = b.Do(ctx, work)
	return err
}

func onlyAs(ctx context.Context, m *rlock.Mutex) string {
	err := m.TryDo(ctx, 0, work) // want `err is only compared with \*rlock\.LostError after this TryDo`
	if lost, ok := errors.AsType[*rlock.LostError](err); ok {
		return lost.Name
	}
	return ""
}

// Correct code, without findings.

func joinedLater(ctx context.Context, a, b *rlock.Mutex) error {
	err := a.Do(ctx, work)
	return errors.Join(err, b.Do(ctx, work))
}

func bothCompared(ctx context.Context, m *rlock.Mutex) error {
	err := m.TryDo(ctx, 0, work)
	if errors.Is(err, rlock.ErrNotAcquired) {
		return nil
	}
	return err
}

func elseCompared(ctx context.Context, m *rlock.Mutex) {
	if err := m.TryDo(ctx, 0, work); errors.Is(err, rlock.ErrNotAcquired) {
		log.Print("busy")
	} else if err != nil {
		log.Print(err)
	}
}

func comparedInADefer(ctx context.Context, m *rlock.Mutex) (err error) {
	defer func() { log.Print(err) }()
	if err = m.TryDo(ctx, 0, work); errors.Is(err, rlock.ErrNotAcquired) {
		return nil
	}
	return
}

func ownErrors(ctx context.Context, m *rlock.Mutex) error {
	var failed error
	err := m.Do(ctx, func(ctx context.Context) error {
		failed = work(ctx)
		return nil
	})
	if errors.Is(err, rlock.ErrNotRun) {
		return errors.New("later")
	}
	return failed
}

func dropsBoth(ctx context.Context, m *rlock.Mutex) {
	_, _ = rlock.DoValue(ctx, m, value)
	_ = m.Do(ctx, work)
}
