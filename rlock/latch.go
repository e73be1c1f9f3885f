package rlock

import (
	"context"
	"errors"
	"time"

	"github.com/go-rlock/rlock/internal/counter"
	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/internal/tenure"
)

// CountDownLatch is a handle on a count-down latch in Redis, Redisson's RCountDownLatch: goroutines of any process wait until a count is down to
// 0. Without a count it is open: before it was set, and after it has reached 0, was deleted, or has expired.
//
// Nobody holds a latch: if a process dies before it counts down, the count stays, so wait with a ctx that ends. Each CountDown is synchronized
// before the return of every Await that its latch releases, see [Mutex].
type CountDownLatch struct {
	client *Client
	latch  counter.Counter
}

// CountDownLatch returns a handle on the latch called name.
func (c *Client) CountDownLatch(name string) *CountDownLatch {
	c.check()
	return &CountDownLatch{c, c.counters.Get(c.prefix+name, kinds.Latch, name, c.terms(kinds.Latch, name, nil))}
}

// Name returns the name of the latch.
func (l *CountDownLatch) Name() string {
	if l == nil || l.client == nil {
		panic("rlock: a CountDownLatch that was not made by a Client")
	}
	return l.latch.Name
}

func (l *CountDownLatch) check(ctx context.Context) {
	l.Name()
	needs(ctx)
}

// TrySetCount sets the count, if the latch has none, and reports whether it did. A latch that is set to 0 is open, but has a count until a
// CountDown or a Delete.
//
// It returns when ctx is done, with ctx.Err(), and retries as [Mutex.Lock] does. The error satisfies errors.Is for [ErrUnreachable] if Redis did
// not answer, or was not ready; for [ErrPending] as well if the change may yet be made, within a minute; for [ErrClosed] if the Client is
// closed; or it is Redis's error reply.
func (l *CountDownLatch) TrySetCount(ctx context.Context, n int64) (bool, error) {
	l.check(ctx)
	if n < 0 {
		return false, l.latch.Fail(errors.New("a count is 0 or more"))
	}
	o, err := l.latch.Change(ctx, counter.SetCount, n)
	return o.Done == 1, err
}

// CountDown takes one off the count, if there is one, and wakes all waiters when it reaches 0. It counts exactly once. With [ErrPending] it
// continues in the background, for a minute or until the Client is closed: do not call it again. Otherwise errors and times are those of
// [CountDownLatch.TrySetCount].
func (l *CountDownLatch) CountDown(ctx context.Context) error {
	l.check(ctx)
	_, err := l.latch.Change(ctx, counter.CountDown, 1)
	return err
}

// Count returns how many more times the latch has to be counted down; 0 if it is open. Errors and times are those of
// [Mutex.IsLocked].
func (l *CountDownLatch) Count(ctx context.Context) (int64, error) {
	l.check(ctx)
	n, err := l.latch.Count(ctx)
	return max(n, 0), err
}

// Await waits until the latch is open, or ctx is done. A count that is set after the one it waits for has ended does not keep it waiting. It
// sends nothing meanwhile, but looks once a minute. Errors and times are those of [Mutex.Lock]; the [*NotAcquiredError] has the count.
func (l *CountDownLatch) Await(ctx context.Context) error {
	l.check(ctx)
	return l.await(tenure.CallerNow(ctx))
}

// TryAwait is Await with the bound of [Mutex.TryLock]. If wait is 0 or less it asks once.
func (l *CountDownLatch) TryAwait(ctx context.Context, wait time.Duration) error {
	l.check(ctx)
	return l.await(tenure.CallerNow(ctx).UpTo(wait, l.client.engine.Attempt))
}

func (l *CountDownLatch) await(who tenure.Caller) error {
	trace := l.client.trace.follow(&who, l.latch.Name, l.latch.Kind.Name)
	who.Trace = trace.tracer()
	err := l.latch.Await(who, 0)
	trace.passed(err)
	return err
}

// Delete deletes the latch, and reports whether it had a count. Waiters continue. Errors and times are those of
// [CountDownLatch.TrySetCount].
func (l *CountDownLatch) Delete(ctx context.Context) (bool, error) {
	l.check(ctx)
	o, err := l.latch.Change(ctx, counter.DeleteLatch, 0)
	return o.Done == 1, err
}
