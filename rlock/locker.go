package rlock

import (
	"context"
	"errors"
	"time"
)

// Locker is what the locks of all kinds have in common. It is small so that tests can fake it. The methods do what
// those of [Mutex] do, and so must a fake: on error Lock and TryLock return the ctx that they were given, and an unlock
// that returns [ErrNotHeld].
type Locker interface {
	// Name returns the name of the lock.
	Name() string
	// Lock waits until the lock is held or ctx is done, see [Mutex.Lock].
	Lock(ctx context.Context) (context.Context, UnlockFunc, error)
	// TryLock waits for at most that time, see [Mutex.TryLock].
	TryLock(ctx context.Context, wait time.Duration) (context.Context, UnlockFunc, error)
}

var _ Locker = (*Mutex)(nil)

// Do runs fn while it holds the lock: Lock, fn with the ctx of the section, unlock. If it could not lock, fn did not run, and the error is that of Lock and
// satisfies errors.Is for [ErrNotRun] as well. Otherwise fn has run, and the error is that of fn as it is if the unlock was fine. If not, it satisfies
// errors.Is and errors.As for those of both. If the hold was lost that is [ErrLost], whatever fn returned; the same for [ErrClosed] if Close ended
// the ctx of the section and fn returned an error. When fn has returned, Do waits for Redis to answer the unlock, whatever became of ctx,
// for up to [Options].UnlockTimeout: it then returns [ErrUnreachable]. If fn panics, or calls runtime.Goexit, the lock is released and the panic
// goes on. Do panics if fn is nil.
func (m *Mutex) Do(ctx context.Context, fn func(ctx context.Context) error) error {
	return inside(ctx, m.Lock, fn)
}

// TryDo is [Mutex.Do] with TryLock in place of Lock: if the lock could not be had within that wait, fn does not run, and the
// error is that of [Mutex.TryLock] and [ErrNotRun]. The wait does not bound fn.
func (m *Mutex) TryDo(ctx context.Context, wait time.Duration, fn func(ctx context.Context) error) error {
	return inside(ctx, within(m, wait), fn)
}

// DoValue is Do for a section that returns a value, and for locks of every kind. The value is that of fn, also if there is an
// error; the zero value if fn did not run.
func DoValue[T any](ctx context.Context, l Locker, fn func(ctx context.Context) (T, error)) (value T, err error) {
	if l == nil || fn == nil {
		panic("rlock: DoValue of a nil Locker or function")
	}
	return valueOf(ctx, l.Lock, fn)
}

// TryDoValue is [DoValue] with TryLock in place of Lock, see [Mutex.TryDo].
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

// lockFunc is a Lock.
type lockFunc func(context.Context) (context.Context, UnlockFunc, error)

// within makes a Lock of a TryLock.
func within(l Locker, wait time.Duration) lockFunc {
	return func(ctx context.Context) (context.Context, UnlockFunc, error) { return l.TryLock(ctx, wait) }
}

// inside runs fn between a Lock and its unlock: it is the Do of every kind. Its error says whether fn ran.
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

// section runs fn between a Lock and its unlock, and reports whether it did.
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

// notRunError is the error of a Lock as that of a Do.
type notRunError struct{ error }

func (e *notRunError) Is(target error) bool { return target == ErrNotRun }

func (e *notRunError) Unwrap() error { return e.error }

// ranError is the error of a Do that ran its function, in which another Do did not. It has no Unwrap, by which ErrNotRun would be found.
type ranError struct{ err error }

func (e *ranError) Error() string { return e.err.Error() }

func (e *ranError) Is(target error) bool { return target != ErrNotRun && errors.Is(e.err, target) }

func (e *ranError) As(target any) bool { return errors.As(e.err, target) }
