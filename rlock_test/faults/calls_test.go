package faults

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/rlock"
)

// granted is what a Lock returned, and when.
type granted struct {
	ctx    context.Context
	unlock rlock.UnlockFunc
	err    error
	at     time.Time
}

// waiter is a Lock under way on a goroutine of its own.
type waiter chan granted

// startLock calls Lock on a goroutine that ends with it: when the client is closed at the latest.
func startLock(ctx context.Context, m *rlock.Mutex) waiter {
	return startWaiter(func() (g granted) {
		g.ctx, g.unlock, g.err = m.Lock(ctx)
		return g
	})
}

// startStubbornLock is startLock for a caller that calls Lock again when Redis could not be reached
// for longer than Lock tries, as it can not while a failover is under way.
func startStubbornLock(m *rlock.Mutex) waiter {
	return startWaiter(func() (g granted) {
		for g.unlock == nil || g.err != nil && !errors.Is(g.err, rlock.ErrClosed) {
			g.ctx, g.unlock, g.err = m.Lock(context.Background())
		}
		return g
	})
}

func startWaiter(lock func() granted) waiter {
	w := make(waiter, 1)
	go func() {
		g := lock()
		g.at = time.Now()
		w <- g
	}()
	return w
}

// within returns what Lock returned, and fails the test if that takes longer.
func (w waiter) within(t testing.TB, d time.Duration) granted {
	t.Helper()
	select {
	case g := <-w:
		return g
	case <-time.After(d):
		require.FailNow(t, "Lock did not return", "within %v", d)
		panic("unreachable")
	}
}

// gets returns what the waiter got, which has to be the lock.
func (w waiter) gets(t testing.TB, within time.Duration, why string) granted {
	t.Helper()
	g := w.within(t, within)
	require.NoError(t, g.err, why)
	return g
}

// waits requires that Lock has not returned.
func (w waiter) waits(t testing.TB) {
	t.Helper()
	select {
	case g := <-w:
		require.FailNow(t, "Lock returned", "%v", g.err)
	default:
	}
}

// call runs f on a goroutine that ends with it, and hands its error on.
func call(f func() error) <-chan error {
	result := make(chan error, 1)
	go func() { result <- f() }()
	return result
}

// returned is the result of a call, which has to come in time.
func returned(t testing.TB, c <-chan error, within time.Duration) error {
	t.Helper()
	select {
	case err := <-c:
		return err
	case <-time.After(within):
		require.FailNow(t, "the call did not return", "within %v", within)
		panic("unreachable")
	}
}

// tidings are when the ctx of a hold ended.
type tidings chan time.Time

// tellOf returns when ctx ends, as soon as it does.
func tellOf(ctx context.Context) tidings {
	c := make(tidings, 1)
	context.AfterFunc(ctx, func() { c <- time.Now() })
	return c
}

// by requires that the ctx has ended by then, which is G2 if that is when the lease is over.
func (c tidings) by(t testing.TB, then time.Time) {
	t.Helper()
	select {
	case at := <-c:
		require.False(t, at.After(then), "told %v too late", at.Sub(then))
	case <-time.After(time.Until(then) + prompt):
		require.FailNow(t, "not told", "%v after it was time", prompt)
	}
}

// ended waits until the ctx of a hold ends, which has to be because the hold is lost.
func ended(t testing.TB, ctx context.Context, within time.Duration) {
	t.Helper()
	select {
	case <-ctx.Done():
		require.ErrorIs(t, context.Cause(ctx), rlock.ErrLost)
	case <-time.After(within):
		require.FailNow(t, "the hold is not lost", "within %v", within)
	}
}

// pass lets time go by where time itself is what is tested.
func pass(d time.Duration) { <-time.After(d) }
