package rlock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// fakeLock is a user's own Locker. Lock fails with err, unlock with unlockErr.
type fakeLock struct {
	err, unlockErr error
	waits          []time.Duration
	unlocked       int
}

type fakeKey struct{}

func (f *fakeLock) Name() string { return "fake" }

func (f *fakeLock) Lock(ctx context.Context) (context.Context, rlock.UnlockFunc, error) {
	if f.err != nil {
		return ctx, nil, f.err
	}
	return context.WithValue(ctx, fakeKey{}, f), func() error { f.unlocked++; return f.unlockErr }, nil
}

func (f *fakeLock) TryLock(ctx context.Context, wait time.Duration) (context.Context, rlock.UnlockFunc, error) {
	f.waits = append(f.waits, wait)
	return f.Lock(ctx)
}

// DoValue needs only the methods of the Locker interface.
func TestDoValueOfAnyLocker(t *testing.T) {
	mine, broken := errors.New("mine"), errors.New("broken")
	ctx := context.Background()
	for _, row := range []struct {
		name     string
		lock     fakeLock
		returns  error
		value    int
		unlocked int
		errs     []error
	}{
		{name: "well", value: 42, unlocked: 1},
		{name: "not locked", lock: fakeLock{err: mine}, errs: []error{mine}},
		{name: "section fails", returns: mine, value: 42, unlocked: 1, errs: []error{mine}},
		{name: "unlock fails", lock: fakeLock{unlockErr: broken}, value: 42, unlocked: 1, errs: []error{broken}},
		{name: "both fail", lock: fakeLock{unlockErr: broken}, returns: mine, value: 42, unlocked: 1, errs: []error{broken, mine}},
	} {
		redistest.RunVirtual(t, row.name, func(t *testing.T) {
			l := &row.lock
			value, err := rlock.DoValue(ctx, l, func(ctx context.Context) (int, error) {
				require.Same(t, l, ctx.Value(fakeKey{}), "the ctx of the section")
				require.Zero(t, l.unlocked)
				return 42, row.returns
			})
			require.Equal(t, row.value, value)
			require.Equal(t, row.unlocked, l.unlocked)
			if row.errs == nil {
				require.NoError(t, err)
			}
			for _, want := range row.errs {
				require.ErrorIs(t, err, want)
			}
		})
	}
	l := new(fakeLock)
	require.PanicsWithValue(t, "boom", func() {
		_, _ = rlock.DoValue(ctx, l, func(context.Context) (int, error) { panic("boom") })
	})
	require.Equal(t, 1, l.unlocked, "also after a panic")
}

// TryDo runs its function only with the lock, and waits no longer than its wait.
func TestTryDo(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		m, ctx := b.Mutex(b.name), context.Background()
		mine := errors.New("mine")
		require.Same(t, mine, m.TryDo(ctx, 0, func(ctx context.Context) error {
			held, err := m.IsHeld(ctx)
			require.NoError(t, err)
			require.True(t, held)
			for _, wait := range []time.Duration{0, 20 * time.Millisecond} {
				began := time.Now()
				err := m.TryDo(rlock.Detach(ctx), wait, func(context.Context) error { panic("not with the lock") })
				require.ErrorIs(t, err, rlock.ErrNotAcquired)
				require.GreaterOrEqual(t, time.Since(began), wait)
			}
			return mine
		}))
		redistest.Eventually(t, soon, func() bool { return !b.exists(t, b.name) }, "unlocked, and not left to those that gave up")
	})
}
