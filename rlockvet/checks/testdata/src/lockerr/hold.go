package lockerr

import (
	"context"
	"errors"
	"time"

	"github.com/go-rlock/rlock/rlock"
)

func holdErrDropped(ctx context.Context, m *rlock.Mutex) error {
	hold, _ := rlock.Acquire(ctx, m) // want `^the error of this Acquire is dropped, so there is no hold, which is nil, if it fails: check it, or use Do$`
	defer hold.Unlock()
	return work(hold.Context())
}

func holdDeferredFirst(ctx context.Context, m *rlock.Mutex) error {
	hold, err := rlock.Acquire(ctx, m) // want `^hold is used in line \d+ before err is looked at, and is nil if this Acquire has failed: check err first$`
	defer hold.Unlock()
	if err != nil {
		return err
	}
	return work(hold.Context())
}

func holdIfBusy(ctx context.Context, m *rlock.Mutex) error {
	hold, err := rlock.TryAcquire(ctx, m, time.Second) // want `^hold is used in line \d+ before err is looked at`
	if rlock.IsBusy(err) {
		return nil
	}
	return errors.Join(work(hold.Context()), hold.Unlock())
}

func holdMayBeNilAtTheEnd(ctx context.Context, m *rlock.Mutex) error {
	hold, err := rlock.Acquire(ctx, m) // want `^hold is used in line \d+ before err is looked at`
	defer func() {
		if hold != nil {
			_ = hold.Unlock()
		}
	}()
	if err := work(hold.Context()); err != nil {
		return err
	}
	return err
}

func lockIfNotBusy(ctx context.Context, m *rlock.Mutex) error {
	ctx, unlock, err := m.TryLock(ctx, time.Second) // want `^err may be another error when the section begins in line \d+`
	if rlock.IsBusy(err) {
		return nil
	}
	return errors.Join(work(ctx), unlock())
}

func doIfNotBusy(ctx context.Context, m *rlock.Mutex) error {
	if err := m.TryDo(ctx, 0, work); rlock.IsBusy(err) { // want `^err is only compared with ErrNotAcquired \(by IsBusy\) after this TryDo`
		return nil
	}
	return work(ctx)
}

// Correct code, without findings.

func holdChecked(ctx context.Context, m *rlock.Mutex) error {
	hold, err := rlock.TryAcquire(ctx, m, 0)
	switch {
	case rlock.IsBusy(err):
		return nil
	case err != nil:
		return err
	}
	defer hold.Unlock()
	return work(hold.Context())
}

func holdMayBeNil(ctx context.Context, m *rlock.Mutex) (err error) {
	hold, err := rlock.Acquire(ctx, m)
	defer func() {
		if hold != nil {
			err = errors.Join(err, hold.Unlock())
		}
	}()
	if err != nil {
		return err
	}
	return work(hold.Context())
}

func holdIsNil(ctx context.Context, m *rlock.Mutex) error {
	hold, err := rlock.TryAcquire(ctx, m, 0)
	if hold == nil {
		return err
	}
	defer hold.Unlock()
	return work(hold.Context())
}

func holdIsThere(ctx context.Context, m *rlock.Mutex) (bool, error) {
	hold, err := rlock.TryAcquire(ctx, m, 0)
	if nil != hold {
		defer hold.Unlock()
		return true, work(hold.Context())
	}
	return false, err
}

func doBusy(ctx context.Context, m *rlock.Mutex) error {
	err := m.TryDo(ctx, 0, work)
	if rlock.IsBusy(err) {
		return nil
	}
	return err
}
