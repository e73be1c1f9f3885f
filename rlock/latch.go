package rlock

import (
	"context"
	"errors"
	"time"

	"github.com/go-rlock/rlock/internal/counter"
	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/internal/tenure"
)

// CountDownLatch is a handle on a count-down latch in Redis: a count that goes down to 0, and goroutines of any process that wait for
// that. It is Redisson's RCountDownLatch, so Java and Go count down, and wait for, the same latch. While there is no count, the latch is
// open and nobody waits: before it was set, and after it has reached 0, was deleted, or has expired.
//
// Nobody holds a latch: it has no lease, and exists until it is counted down or deleted. If a process dies before it counts down, the
// count stays; so wait with a ctx that ends. The name can be used again at once: all waiters of the old latch continue.
//
// A handle has no state of its own. Its methods are safe for concurrent use. They panic if the CountDownLatch is nil or was not made by a
// Client, and if ctx is nil. A latch is not a [Locker].
//
// In the terminology of the Go memory model, each CountDown is synchronized before the return of every Await that its latch releases. This
// holds across processes, as long as Redis keeps its data.
type CountDownLatch struct {
	client *Client
	latch  counter.Latch
}

// CountDownLatch returns a handle on the latch called name. It does no I/O. The methods of the handle report an empty name. It panics if
// the Client is nil.
//
// The latch is the Redis key of that name, as for [Client.Mutex]. If the key holds anything but a number, all methods return an error and
// leave it as it is, as they do on a cluster if the name has braces.
func (c *Client) CountDownLatch(name string) *CountDownLatch {
	c.check()
	return &CountDownLatch{c, c.counters.Latch(c.prefix+name, name, c.terms(kinds.Latch, name, nil))}
}

// Name returns the name of the latch.
func (l *CountDownLatch) Name() string {
	if l == nil || l.client == nil {
		panic("rlock: a CountDownLatch that was not made by a Client")
	}
	return l.latch.Name
}

func (l *CountDownLatch) check(ctx context.Context) {
	if l.Name(); ctx == nil {
		panic("rlock: the ctx is nil")
	}
}

// TrySetCount sets the count, if the latch has none, and reports whether it did. n is 0 or more; a latch that is set to 0 is open, but has
// a count, so another TrySetCount reports false until a CountDown or a Delete.
//
// It returns when ctx is done. If Redis cannot be reached, or is not ready, it tries for three seconds after the first failure, at least
// three times. The error satisfies errors.Is for
//
//   - [ErrUnreachable], if Redis did not answer, or was not ready, and for ctx.Err() as well if ctx was done by then,
//   - [ErrPending] as well, if the latch or semaphore may have been set, or may yet be, within a minute,
//   - ctx.Err(), if ctx was done first,
//   - [ErrClosed], if the Client is closed,
//
// or is the error reply from Redis.
func (l *CountDownLatch) TrySetCount(ctx context.Context, n int64) (bool, error) {
	l.check(ctx)
	if n < 0 {
		return false, l.latch.Fail(errors.New("a count is 0 or more"))
	}
	return l.latch.TrySetCount(ctx, n)
}

// CountDown takes one off the count, and wakes all waiters when it reaches 0. If there is no count it does nothing.
//
// It counts exactly once, even if its command is sent again. An error that satisfies [ErrPending] means that it continues in the
// background, for a minute or until the Client is closed: do not call it again. After any other error it counts nothing, as if ctx is done
// before the call, the Client is closed, or Redis refuses the command. A Close does not end it: it returns when Redis has answered, or when Close no
// longer waits for the answer. Otherwise errors and times are those of [CountDownLatch.TrySetCount].
func (l *CountDownLatch) CountDown(ctx context.Context) error {
	l.check(ctx)
	return l.latch.CountDown(ctx)
}

// Count returns how many more times the latch has to be counted down; 0 if it is open. It asks Redis once, and returns when ctx is done,
// with ctx.Err(). Without an answer the error is [ErrUnreachable].
func (l *CountDownLatch) Count(ctx context.Context) (int64, error) {
	l.check(ctx)
	return l.latch.Count(ctx)
}

// Await waits until the latch is open, or ctx is done. It returns nil at once if there is no count. It waits for the count that was there
// when it was called: a new count set after that one has ended does not keep it waiting.
//
// Await sends nothing while it waits: a message ends the wait. The wait also ends if the key expires, and at most a minute later if
// somebody deletes the key by hand or a message is lost.
//
// Await returns when ctx is done, whether or not Redis answers. If Redis cannot be reached, or is not ready, it tries for three seconds
// after the first failure, at least three times, and fails even if ctx leaves more time. The error satisfies errors.Is for
//
//   - [ErrNotAcquired] and ctx.Err(), if ctx was done first; for [ErrUnreachable] as well, if Redis had not answered by then.
//     The [*NotAcquiredError] has the count,
//   - [ErrUnreachable], if Redis did not answer, or was not ready,
//   - [ErrClosed], if the Client is closed or is being shut down,
//
// or is the error reply from Redis.
func (l *CountDownLatch) Await(ctx context.Context) error {
	l.check(ctx)
	return l.await(tenure.CallerNow(ctx))
}

// TryAwait is Await with a bound on the waiting: after wait it returns [ErrNotAcquired]. If wait is 0 or less it asks once. Redis gets a
// second for its first answer, even if wait is shorter.
func (l *CountDownLatch) TryAwait(ctx context.Context, wait time.Duration) error {
	l.check(ctx)
	return l.await(tenure.CallerNow(ctx).UpTo(wait, time.Second))
}

func (l *CountDownLatch) await(who tenure.Caller) error {
	trace := l.client.trace.follow(&who, l.latch.Name, l.latch.Kind.Name)
	who.Trace = trace.tracer()
	err := l.latch.Await(who)
	trace.passed(err)
	return err
}

// Delete deletes the latch, and reports whether it had a count. Waiters continue. Errors and times are those of
// [CountDownLatch.TrySetCount], and [ErrPending] if the latch may be deleted all the same.
func (l *CountDownLatch) Delete(ctx context.Context) (bool, error) {
	l.check(ctx)
	return l.latch.Delete(ctx)
}
