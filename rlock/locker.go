package rlock

import (
	"context"
	"errors"
	"time"
)

// Locker is the interface common to locks of all kinds. A fake for tests must keep the contracts of [Mutex]: on error, Lock and TryLock
// return the given ctx and an unlock that returns [ErrNotHeld].
type Locker interface {
	// Name returns the name of the lock.
	Name() string
	// Lock is as [Mutex.Lock].
	Lock(ctx context.Context) (context.Context, UnlockFunc, error)
	// TryLock is as [Mutex.TryLock].
	TryLock(ctx context.Context, wait time.Duration) (context.Context, UnlockFunc, error)
}

var _ Locker = (*Mutex)(nil)

// Do calls Lock, runs fn with the section's ctx, and unlocks as an [UnlockFunc] does. If fn panics or calls runtime.Goexit, the lock is released
// and the panic continues.
//
// If Lock fails, fn does not run, and the error is Lock's and [ErrNotRun]. Otherwise it is fn's, unchanged if the unlock succeeds; else
// errors.Is and errors.As match both errors. A lost hold is always reported as [ErrLost], whatever fn returned. If Close cancelled the section's
// ctx and fn returned an error, [ErrClosed] is reported too.
func (m *Mutex) Do(ctx context.Context, fn func(ctx context.Context) error) error {
	return inside(ctx, m.Lock, fn)
}

// TryDo is [Mutex.Do] with [Mutex.TryLock] in place of Lock. The wait does not bound fn.
func (m *Mutex) TryDo(ctx context.Context, wait time.Duration, fn func(ctx context.Context) error) error {
	return inside(ctx, within(m, wait), fn)
}

// DoValue is Do, for locks of every kind, with a function that returns a value: fn's, even alongside an error; the zero value if fn did
// not run.
func DoValue[T any](ctx context.Context, l Locker, fn func(ctx context.Context) (T, error)) (value T, err error) {
	if l == nil || fn == nil {
		panic("rlock: DoValue of a nil Locker or function")
	}
	return valueOf(ctx, l.Lock, fn)
}

// TryDoValue is [DoValue] with TryLock in place of Lock, as [Mutex.TryDo].
func TryDoValue[T any](ctx context.Context, l Locker, wait time.Duration, fn func(ctx context.Context) (T, error)) (value T, err error) {
	if l == nil || fn == nil {
		panic("rlock: TryDoValue of a nil Locker or function")
	}
	return valueOf(ctx, within(l, wait), fn)
}

func valueOf[T any](ctx context.Context, lock lockFunc, fn func(ctx context.Context) (T, error)) (value T, err error) {
	err = inside(ctx, lock, func(ctx context.Context) (err error) {
		value, err = fn(ctx)
		return err
	})
	return value, err
}

type lockFunc func(context.Context) (context.Context, UnlockFunc, error)

// within turns a TryLock into a Lock.
func within(l Locker, wait time.Duration) lockFunc {
	return func(ctx context.Context) (context.Context, UnlockFunc, error) { return l.TryLock(ctx, wait) }
}

// inside runs fn between a Lock and its unlock: the Do of every kind. Its error says whether fn ran.
func inside(ctx context.Context, lock lockFunc, fn func(context.Context) error) error {
	ran, err := section(ctx, lock, fn)
	switch {
	case !ran:
		return &notRunError{err}
	case errors.Is(err, ErrNotRun): // another one, inside
		return &ranError{err}
	}
	return err
}

// section runs fn between a Lock and its unlock, and reports whether fn ran.
func section(ctx context.Context, lock lockFunc, fn func(context.Context) error) (ran bool, err error) {
	if fn == nil {
		panic("rlock: Do of a nil function")
	}
	ctx, unlock, err := lock(ctx)
	if err != nil {
		return false, err
	}
	defer func() {
		lockErr := unlock()
		var loss *LostError
		if lockErr == nil && err != nil && errors.As(context.Cause(ctx), &loss) && loss.Reason == LostClosed {
			lockErr = loss
		}
		err = joinErrors(lockErr, err)
	}()
	return true, fn(ctx)
}

// notRunError is a Lock error returned by a Do.
type notRunError struct{ error }

func (e *notRunError) Is(target error) bool { return target == ErrNotRun }

func (e *notRunError) Unwrap() error { return e.error }

// ranError is the error of a Do whose function ran, but contained another Do whose function did not. It has no Unwrap,
// which would expose the inner ErrNotRun.
type ranError struct{ err error }

func (e *ranError) Error() string { return e.err.Error() }

func (e *ranError) Is(target error) bool { return target != ErrNotRun && errors.Is(e.err, target) }

func (e *ranError) As(target any) bool { return errors.As(e.err, target) }
