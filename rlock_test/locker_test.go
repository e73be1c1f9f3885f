package rlock_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
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

func TestQueries(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		ctx := context.Background()
		m := b.Mutex(b.name)
		require.Equal(t, b.name, m.Name())

		check := func(ctx context.Context, locked bool, count int) {
			t.Helper()
			answer(m.IsLocked(ctx)).is(t, locked)
			answer(m.IsHeld(ctx)).is(t, count > 0)
			answer(m.HoldCount(ctx)).is(t, count)
			ttl := answer(m.TTL(ctx)).ok(t)
			if locked {
				require.Greater(t, ttl, 25*time.Second)
				require.LessOrEqual(t, ttl, rlock.DefaultWatchdogTimeout)
			} else {
				require.Zero(t, ttl)
			}
		}
		check(ctx, false, 0)
		one, unlock := enter(t, ctx, m)
		check(one, true, 1)
		check(ctx, true, 0)
		check(rlock.Detach(one), true, 0)
		answer(newClient(t, b.rdb).Mutex(b.name).HoldCount(one)).is(t, 0, "another Client has another lock, though of that name")
		two, unlockTwo := enter(t, one, m)
		check(two, true, 2)
		require.NoError(t, unlockTwo())
		check(one, true, 1)
		require.NoError(t, unlock())
		check(context.WithoutCancel(one), false, 0)
		answer(m.ForceUnlock(ctx)).is(t, false, "it is free")

		b.do(t, "HSET", b.name, foreignOwner, "1")
		answer(m.TTL(ctx)).is(t, rlock.NoExpiry)
		b.do(t, "DEL", b.name)
	})
}

// oneConn is for tests that count all commands. With several connections, rueidis picks one at random for each keyed command,
// and opens it, with commands of its own, when it first picks it.
func oneConn(o *rueidis.ClientOption) { o.PipelineMultiplex = -1 }

// An uncontended Lock and its unlock are two script calls, and Redis receives nothing else.
func TestUncontendedCostsTwoCommands(t *testing.T) {
	s := redistest.Start(t)
	rdb, watch := s.Client(t, oneConn), s.Client(t)
	m := newClient(t, rdb).Mutex("uncontended")
	pair := func() {
		_, unlock := enter(t, context.Background(), m)
		require.NoError(t, unlock())
	}
	pair() // loads the scripts
	before := redistest.Commands(t, watch)
	const n = 100
	for range n {
		pair()
	}
	after := redistest.Commands(t, watch)
	require.EqualValues(t, 2*n, after["evalsha"]-before["evalsha"])
	inScripts := map[string]int64{"pttl": n, "hincrby": n, "pexpire": n, "zrange": n, "hdel": n, "publish": n}
	for name, calls := range after {
		if name == "evalsha" || name == "info" || name == "ping" || name == "command" { // rueidis sends PING itself
			continue
		}
		require.Equal(t, inScripts[name], calls-before[name], name)
	}
}

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
	virtual(t, func(t *testing.T, b fixture) {
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
