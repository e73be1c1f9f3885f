package rlock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// The error of Do reports whether its own function ran, even around the error of an inner Do. errors.Is and errors.As find the
// other errors as usual.
func TestErrNotRun(t *testing.T) {
	ctx := context.Background()
	broken := &rlock.NotAcquiredError{Name: "inner"}
	free, taken := &fakeLock{}, &fakeLock{locks: slices.Repeat([]error{broken}, 100)}
	inner := func(ctx context.Context) error {
		_, err := rlock.DoValue(ctx, taken, func(context.Context) (int, error) { panic("it runs") })
		return err
	}
	for name, do := range map[string]func(l rlock.Locker, fn func(ctx context.Context) error) error{
		"DoValue": func(l rlock.Locker, fn func(ctx context.Context) error) error {
			_, err := rlock.DoValue(ctx, l, func(ctx context.Context) (struct{}, error) { return struct{}{}, fn(ctx) })
			return err
		},
		"TryDoValue": func(l rlock.Locker, fn func(ctx context.Context) error) error {
			_, err := rlock.TryDoValue(ctx, l, time.Second, func(ctx context.Context) (struct{}, error) { return struct{}{}, fn(ctx) })
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			err := do(taken, func(context.Context) error { panic("it runs") })
			require.ErrorIs(t, err, rlock.ErrNotRun)
			require.ErrorIs(t, err, rlock.ErrNotAcquired)
			require.EqualError(t, err, broken.Error(), "the text of Lock's error")
			var not *rlock.NotAcquiredError
			require.ErrorAs(t, err, &not)
			require.Same(t, broken, not)

			for what, fn := range map[string]func(ctx context.Context) error{
				"as it is": inner,
				"wrapped":  func(ctx context.Context) error { return fmt.Errorf("layer: %w", inner(ctx)) },
				"joined":   func(ctx context.Context) error { return errors.Join(errors.New("layer"), inner(ctx)) },
			} {
				for _, unlocks := range [][]error{nil, {errors.New("unlock")}} {
					err = do(&fakeLock{unlocks: unlocks}, fn)
					require.NotErrorIs(t, err, rlock.ErrNotRun, what)
					require.ErrorIs(t, err, rlock.ErrNotAcquired, what)
					require.True(t, rlock.IsBusy(err), "as the inner lock is")
					require.ErrorAs(t, err, &not, what)
					require.ErrorContains(t, err, broken.Error(), what)
					for _, failed := range unlocks {
						require.ErrorIs(t, err, failed, what)
					}
				}
			}
			require.ErrorIs(t, do(free, func(ctx context.Context) error { return rlock.ErrNotHeld }), rlock.ErrNotHeld)
			mine := errors.New("mine")
			require.Equal(t, mine, do(free, func(context.Context) error { return mine }), "the function's error is returned unchanged")
			require.NotErrorIs(t, do(&fakeLock{unlocks: []error{rlock.ErrUnreachable}}, nothingToDo), rlock.ErrNotRun)
		})
	}
	require.Panics(t, func() { _, _ = rlock.TryDoValue[int](ctx, nil, 0, nil) })
}

// Do of every kind of lock returns ErrNotRun if the function did not run.
func TestErrNotRunOfAllKinds(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		b := newFixture(t)
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		run := func(context.Context) error { panic("it runs") }
		rw := b.RWMutex(b.name)
		u := rw.Upgradeable()
		all := rlock.All(b.Mutex(b.name), b.Mutex(b.name+":b"))
		quorum := rlock.Quorum(b.Mutex(b.name), newClient(t, b.rdb).Mutex(b.name), newClient(t, b.rdb).Mutex(b.name))
		for name, err := range map[string]error{
			"Mutex":           b.Mutex(b.name).Do(ctx, run),
			"Mutex.TryDo":     b.Mutex(b.name).TryDo(ctx, 0, run),
			"read":            rw.Read().Do(ctx, run),
			"Upgradeable":     u.Do(ctx, run),
			"UpgradeDo":       u.UpgradeDo(context.Background(), run),
			"All":             all.Do(ctx, run),
			"All.TryDo":       all.TryDo(ctx, 0, run),
			"Quorum":          quorum.Do(ctx, run),
			"Quorum.TryDo":    quorum.TryDo(ctx, 0, run),
			"Semaphore":       b.Semaphore(b.name).Do(ctx, 1, run),
			"Semaphore.TryDo": b.Semaphore(b.name).TryDo(context.Background(), 1, 0, run),
			"PermitSemaphore": b.PermitSemaphore(b.name).Do(ctx, func(ctx context.Context, _ *rlock.Permit) error { return run(ctx) }),
			"Permits.TryDo": b.PermitSemaphore(b.name).TryDo(context.Background(), 0, func(ctx context.Context, _ *rlock.Permit) error {
				return run(ctx)
			}),
			"an option is bad": b.Mutex(b.name, rlock.WithLease(-1)).Do(context.Background(), run),
		} {
			require.ErrorIs(t, err, rlock.ErrNotRun, name)
		}
		err := rlock.Lead(context.Background(), b.Mutex(b.name, rlock.WithLease(-1)), run)
		require.Error(t, err)
		require.NotErrorIs(t, err, rlock.ErrNotRun, "Lead makes several calls")
	})
}
