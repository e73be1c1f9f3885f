package rlock_test

import (
	"cmp"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/rlock"
)

// fakeLock is a user's own Locker, whose calls return these errors in turn, and then succeed.
type fakeLock struct {
	locks, unlocks   []error
	locked, unlocked int // calls
}

type fakeKey struct{}

func (f *fakeLock) Name() string { return "fake" }

func (f *fakeLock) Lock(ctx context.Context) (context.Context, rlock.UnlockFunc, error) {
	f.locked++
	if err := cmp.Or(ctx.Err(), next(&f.locks)); err != nil {
		return ctx, nil, err
	}
	return context.WithValue(ctx, fakeKey{}, f), func() error { f.unlocked++; return next(&f.unlocks) }, nil
}

func (f *fakeLock) TryLock(ctx context.Context, _ time.Duration) (context.Context, rlock.UnlockFunc, error) {
	return f.Lock(ctx)
}

func next(errs *[]error) (err error) {
	if len(*errs) > 0 {
		err, *errs = (*errs)[0], (*errs)[1:]
	}
	return err
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
		{name: "not locked", lock: fakeLock{locks: []error{mine}}, errs: []error{mine}},
		{name: "section fails", returns: mine, value: 42, unlocked: 1, errs: []error{mine}},
		{name: "unlock fails", lock: fakeLock{unlocks: []error{broken}}, value: 42, unlocked: 1, errs: []error{broken}},
		{name: "both fail", lock: fakeLock{unlocks: []error{broken}}, returns: mine, value: 42, unlocked: 1, errs: []error{broken, mine}},
	} {
		t.Run(row.name, func(t *testing.T) {
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
