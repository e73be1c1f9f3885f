package rlock_test

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

func permitKey(name string) string { return "{" + name + "}:timeout" }
func slotKey(name string) string   { return "rlock_sem_slots:{" + name + "}" }

// setPermits sets the number of permits.
func setPermits(t testing.TB, s *rlock.PermitSemaphore, n int64) {
	t.Helper()
	answer(s.TrySetPermits(context.Background(), n)).is(t, true)
}

// requirePermits checks how many permits are free and how many are held.
func requirePermits(t testing.TB, s *rlock.PermitSemaphore, free, held int64) {
	t.Helper()
	answer(s.Available(context.Background())).is(t, free, "free")
	answer(s.Acquired(context.Background())).is(t, held, "held")
	answer(s.Permits(context.Background())).is(t, free+held, "all")
}

// eventuallyPermits is requirePermits for work in the background.
func eventuallyPermits(t testing.TB, s *rlock.PermitSemaphore, free, held int64) {
	t.Helper()
	redistest.Eventually(t, testTimeout, func() bool {
		n, err := s.Available(context.Background())
		m, err2 := s.Acquired(context.Background())
		return err == nil && err2 == nil && n == free && m == held
	}, fmt.Sprint(free, " are free, ", held, " are held"))
}

// permitSection is the result of an Acquire.
type permitSection struct {
	ctx    context.Context
	permit *rlock.Permit
}

func acquire(t testing.TB, s *rlock.PermitSemaphore, n int) permitSection {
	t.Helper()
	ctx, p, err := s.AcquireN(context.Background(), n)
	require.NoError(t, err)
	return permitSection{ctx, p}
}

// permitAsync starts to wait for one permit, and returns when the given number of processes are queued and only wait.
func (b fixture) permitAsync(t testing.TB, s *rlock.PermitSemaphore, processes int) (got <-chan error, section *permitSection) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel) // ends the goroutine if nothing else has
	section = new(permitSection)
	got = async(func() (err error) {
		section.ctx, section.permit, err = s.Acquire(ctx)
		return err
	})
	b.awaitLine(t, s.Name(), processes)
	return got, section
}

// requireLost waits for the loss that ends a section, and returns it.
func requireLost(t testing.TB, s permitSection, within time.Duration) *rlock.LostError {
	t.Helper()
	redistest.Within(t, within, s.ctx.Done(), "the holder's ctx is cancelled")
	var loss *rlock.LostError
	require.ErrorAs(t, context.Cause(s.ctx), &loss)
	require.ErrorIs(t, loss, rlock.ErrLost)
	return loss
}

func TestPermits(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		ctx := context.Background()
		s := b.PermitSemaphore(b.name)
		require.Equal(t, b.name, s.Name())
		requirePermits(t, s, 0, 0)
		setPermits(t, s, 3)
		answer(s.TrySetPermits(ctx, 9)).is(t, false)

		section, one, err := s.Acquire(ctx)
		require.NoError(t, err)
		require.NoError(t, section.Err())
		require.Regexp(t, "^"+strings.ReplaceAll(b.ID(), "-", "")[:16]+"[0-9a-f]{16}$", one.ID(), "the id begins with the Client's")
		require.Zero(t, one.Slot())
		requirePermits(t, s, 2, 1)
		require.Equal(t, "2", b.text(t, b.name), "the same counter as in Redisson")
		left := answer(s.LeaseTime(ctx, one.ID())).ok(t)
		require.InDelta(t, 30, left.Seconds(), 10)

		two := acquire(t, s, 2)
		require.Equal(t, []int{1, 2}, two.permit.Slots())
		require.Equal(t, two.permit.ID(), two.permit.IDs()[0])
		require.NotEqual(t, two.permit.IDs()[0], two.permit.IDs()[1])
		_, none, err := s.TryAcquire(section, 0)
		require.ErrorIs(t, err, rlock.ErrNotAcquired, "permits are not re-entered")
		require.ErrorContains(t, err, ": 0 free of 1 wanted")
		require.ErrorIs(t, none.Release(), rlock.ErrNotHeld)
		require.Equal(t, -1, none.Slot())
		require.Nil(t, none.Slots())
		require.Empty(t, none.ID())
		require.Equal(t, 2, b.Stats().Holds)

		require.NoError(t, one.Release())
		require.ErrorIs(t, context.Cause(section), context.Canceled)
		require.NotErrorIs(t, context.Cause(section), rlock.ErrLost)
		require.ErrorIs(t, one.Release(), rlock.ErrNotHeld)
		requirePermits(t, s, 1, 2)
		require.NoError(t, two.ctx.Err())
		require.NoError(t, two.permit.Release())
		requirePermits(t, s, 3, 0)
		require.False(t, b.exists(t, permitKey(b.name)))
		require.False(t, b.exists(t, slotKey(b.name)))
		require.Zero(t, b.Stats().Holds)
		require.Zero(t, b.Stats().Lost)
	})
}

func TestPermitNumbers(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		ctx := context.Background()
		s := b.PermitSemaphore(b.name)
		require.NoError(t, s.SetPermits(ctx, 4))
		held := acquire(t, s, 3)
		require.NoError(t, s.SetPermits(ctx, 2))
		requirePermits(t, s, -1, 3)
		require.NoError(t, s.AddPermits(ctx, 2))
		requirePermits(t, s, 1, 3)
		require.NoError(t, s.AddPermits(ctx, -3))
		requirePermits(t, s, -2, 3)
		_, _, err := s.TryAcquire(ctx, 0)
		require.ErrorIs(t, err, rlock.ErrNotAcquired)
		require.NoError(t, held.ctx.Err(), "no holder loses a permit")
		require.NoError(t, held.permit.Release())
		requirePermits(t, s, 1, 0)
	})
}

func TestPermitsMisuse(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		ctx := context.Background()
		s := b.PermitSemaphore(b.name)
		for _, n := range []int{0, -1, 101} {
			_, p, err := s.AcquireN(ctx, n)
			require.ErrorContains(t, err, "want 1 to 100")
			require.ErrorIs(t, p.Release(), rlock.ErrNotHeld)
		}
		require.ErrorContains(t, s.SetPermits(ctx, -1), "want 0 to 2147483647")
		require.ErrorContains(t, s.AddPermits(ctx, rlock.MaxPermits+1), "want -2147483647 to 2147483647")
		for _, id := range []string{"", "00", "zz000000000000000000000000000000", "000000000000000000000000000000000"} {
			require.ErrorContains(t, s.Release(ctx, id), "is no id of a permit, which has 32 hex digits", id)
		}
		const unknown = "00000000000000000000000000000001"
		require.ErrorIs(t, s.Release(ctx, unknown), rlock.ErrNotHeld)
		require.ErrorIs(t, s.UpdateLease(ctx, unknown, time.Second), rlock.ErrNotHeld)
		_, err := s.LeaseTime(ctx, unknown)
		require.ErrorIs(t, err, rlock.ErrNotHeld)
		require.ErrorContains(t, s.UpdateLease(ctx, unknown, 0), "want at least 1ms")
		_, _, err = b.PermitSemaphore("").Acquire(ctx)
		require.EqualError(t, err, `rlock: "": the name is empty`)
		_, _, err = b.PermitSemaphore(b.name, rlock.WithMinHold(time.Second)).Acquire(ctx)
		require.ErrorContains(t, err, "WithMinHold")
		require.Panics(t, func() { (*rlock.PermitSemaphore)(nil).Name() })
		require.Panics(t, func() { _, _, _ = new(rlock.PermitSemaphore).Acquire(ctx) })
		require.Panics(t, func() { _ = s.Do(ctx, nil) })
		_, _, err = rlock.All(b.Mutex(b.name+":lock"), s.Locker(1)).Lock(ctx)
		require.ErrorContains(t, err, "cannot be one of several locks")
		_, _, err = rlock.Quorum(s.Locker(1), s.Locker(1), s.Locker(1)).Lock(ctx)
		require.Error(t, err)
		done, cancel := context.WithCancel(ctx)
		cancel()
		_, _, err = s.Acquire(done)
		require.ErrorIs(t, err, rlock.ErrNotAcquired)
		require.ErrorIs(t, err, context.Canceled)
		for what, fill := range map[string][]string{"a hash": {"HSET", b.name, foreignOwner, "1"}, "a text": {"SET", b.name, "word"}} {
			require.NoError(t, b.do(t, "DEL", b.name).Error())
			require.NoError(t, b.do(t, fill...).Error())
			_, _, err := s.Acquire(ctx)
			require.ErrorContains(t, err, "not a counter", what)
			_, err = s.Available(ctx)
			require.ErrorContains(t, err, "not a counter", what)
		}
	})
}

func TestPermitSections(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		ctx := context.Background()
		s := b.PermitSemaphore(b.name)
		setPermits(t, s, 2)
		require.NoError(t, s.Do(ctx, func(outer context.Context, p *rlock.Permit) error {
			require.Zero(t, p.Slot())
			return s.Do(outer, func(_ context.Context, p *rlock.Permit) error {
				require.Equal(t, 1, p.Slot())
				return nil
			})
		}))
		oh := errors.New("oh")
		require.ErrorIs(t, s.Do(ctx, func(context.Context, *rlock.Permit) error { return oh }), oh)
		require.Panics(t, func() { _ = s.Do(ctx, func(context.Context, *rlock.Permit) error { panic("oh") }) })
		held, err := rlock.DoValue(ctx, s.Locker(2), func(ctx context.Context) (int64, error) { return s.Acquired(ctx) })
		require.NoError(t, err)
		require.Equal(t, int64(2), held)
		_, unlock, err := s.Locker(2).TryLock(ctx, 0)
		require.NoError(t, err)
		_, none, err := s.Locker(1).TryLock(ctx, 0)
		require.ErrorIs(t, err, rlock.ErrNotAcquired)
		require.ErrorIs(t, none(), rlock.ErrNotHeld)
		require.NoError(t, unlock())
		requirePermits(t, s, 2, 0)
		require.ErrorIs(t, s.Do(ctx, func(ctx context.Context, p *rlock.Permit) error { return s.Release(ctx, p.ID()) }), rlock.ErrLost)
		requirePermits(t, s, 2, 0)
	})
}

func TestPermitsAreTraced(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T) {
		var told traceLines
		b := newFixture(t, told.traced())
		s := b.PermitSemaphore(b.name)
		setPermits(t, s, 1)
		held := acquire(t, s, 1)
		require.Equal(t, []string{"permits free"}, told.take())
		_, _, err := s.TryAcquire(context.Background(), 0)
		require.Error(t, err)
		require.Equal(t, []string{"permits failed: not acquired"}, told.take())
		got, next := b.permitAsync(t, s, 1)
		require.NoError(t, held.permit.Release())
		require.NoError(t, within(t, got, wakeTimeout))
		require.ElementsMatch(t, []string{"permits waits", "permits free released: ok", "permits woken"}, told.take())
		require.NoError(t, s.Release(context.Background(), next.permit.ID()))
		require.ErrorIs(t, next.permit.Release(), rlock.ErrLost)
		require.ErrorIs(t, next.permit.Release(), rlock.ErrNotHeld)
		redistest.Eventually(t, testTimeout, func() bool { return b.Stats().Lost == 1 }, "the loss is counted")
		b.Close()
		require.ElementsMatch(t, []string{"permits lost: 2, true", "permits woken released: lost, not held"}, told.take())
	})
}

// A permit's section carries the holds of the ctx around it, and shares the time limit of their unlocks.
func TestPermitsAmongLocks(t *testing.T) {
	virtual(t, func(t *testing.T, b fixture) {
		s, m := b.PermitSemaphore(b.name), b.Mutex(b.name+":lock")
		setPermits(t, s, 1)
		outer, unlock := enter(t, context.Background(), m)
		require.NoError(t, s.Do(outer, func(ctx context.Context, _ *rlock.Permit) error {
			require.Equal(t, rlock.Owner(outer), rlock.Owner(ctx))
			require.Contains(t, fmt.Sprint(ctx), ".WithPermit(")
			return m.Do(ctx, func(ctx context.Context) error {
				require.Equal(t, rlock.Owner(outer), rlock.Owner(ctx), "Lock re-enters through the section of the permit")
				return nil
			})
		}))
		require.NoError(t, unlock())
	})
}

// permitEnds returns a permit's expiry by the clock of the server, which is this machine's.
func (b fixture) permitEnds(t testing.TB, id string) time.Time {
	t.Helper()
	raw := answer(hex.DecodeString(id)).ok(t)
	ms := answer(b.do(t, "ZSCORE", permitKey(b.name), string(raw)).AsFloat64()).ok(t)
	return time.UnixMilli(int64(ms))
}

// G2: Redis counts in whole milliseconds, including the one in which it grants a permit. It keeps a permit at least as long as the
// process trusts it.
func TestPermitIsKeptWhileItIsTrusted(t *testing.T) {
	ctx := context.Background()
	b := newFixture(t)
	const lease = time.Minute
	s := b.PermitSemaphore(b.name, rlock.WithLease(lease))
	setPermits(t, s, 50)
	for range 50 {
		asked := time.Now()
		id := acquire(t, s, 1).permit.ID()
		require.False(t, b.permitEnds(t, id).Before(asked.Add(lease)), "taken")
		asked = time.Now()
		require.NoError(t, s.UpdateLease(ctx, id, 2*lease))
		require.False(t, b.permitEnds(t, id).Before(asked.Add(2*lease)), "after UpdateLease")
	}
	for range 8 { // each is a process, cut off after a renewal
		redistest.RunVirtual(t, "renewed", func(t *testing.T) {
			c, proxy, past := behindProxy(t, anyWay, rlock.Options{WatchdogTimeout: 3 * time.Second})
			s := c.PermitSemaphore(past.name)
			setPermits(t, s, 1)
			held := acquire(t, s, 1)
			first := past.permitEnds(t, held.permit.ID())
			redistest.Eventually(t, testTimeout, func() bool { return past.permitEnds(t, held.permit.ID()).After(first) }, "renewed")
			proxy.BlackHole(true)
			since := requireLost(t, held, wakeTimeout).Since
			require.False(t, past.permitEnds(t, held.permit.ID()).Before(since.Truncate(time.Microsecond)))
			proxy.BlackHole(false)
			proxy.CutAll()
			require.ErrorIs(t, held.permit.Release(), rlock.ErrLost)
		})
	}
}
