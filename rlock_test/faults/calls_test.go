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
// for longer than Lock tries, as it cannot while a failover is under way.
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

// tellSlack is how much later than its time a holder may be told, by a process that has not stood still meanwhile.
const tellSlack = 200 * time.Millisecond

// tidings are when the ctx of a hold ended, and when this process stood still until then.
type tidings struct {
	at     chan time.Time
	stalls stalls
	noted  chan struct{} // closed when the last stall was
}

// tellOf returns when ctx ends, as soon as it does.
func tellOf(ctx context.Context) *tidings {
	c := &tidings{at: make(chan time.Time, 1), noted: make(chan struct{})}
	context.AfterFunc(ctx, func() { c.at <- time.Now() })
	go func() { // ended by the end of ctx
		defer close(c.noted)
		for ctx.Err() == nil {
			c.stalls.step()
		}
		c.stalls.step()
	}()
	return c
}

// by requires that the ctx has ended by then, which is G2 if that is when the lease is over, or as soon after it as
// slack. A machine that did not let the process run is no fault of the lock.
func (c *tidings) by(t testing.TB, then time.Time, slack time.Duration) {
	t.Helper()
	select {
	case at := <-c.at:
		<-c.noted
		late, _ := c.stalls.clear(span{then, at})
		require.LessOrEqual(t, late, slack, "told %v too late", at.Sub(then))
	case <-time.After(time.Until(then) + slack + prompt):
		require.FailNow(t, "not told", "%v after it was time", slack+prompt)
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
