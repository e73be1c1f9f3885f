package rlock

import (
	"context"
	"errors"
	"time"

	"github.com/go-rlock/rlock/internal/engine"
)

// CountDownLatch is a handle on a count-down latch in Redis: a count that goes down to 0, and goroutines in whichever process that wait for
// that. It is Redisson's RCountDownLatch, so Java and Go count down, and wait for, the same one. The latch is open, and nobody waits, while
// there is no count: before it was set, and after it has come to 0, was deleted, or has expired.
//
// Nobody holds a latch: it has no lease, and is there until it is counted down or deleted. A count that a process was to take off, and died,
// stays; so wait with a ctx that ends, and delete the latch when nobody needs it. Its name can be used again at once: whoever waited before
// goes on.
//
// A handle has no state of its own. Its methods are safe for concurrent use. They panic if the CountDownLatch is nil or was not made by
// a Client, and if ctx is nil. A latch is no [Locker].
//
// In the terminology of the Go memory model, and as long as Redis keeps its data, each CountDown is synchronized before the return of the
// Await that its latch lets go, in whichever process.
type CountDownLatch struct {
	client *Client
	latch  engine.Latch
}

// CountDownLatch returns a handle on the latch called name. It does no I/O. An empty name is reported by the methods of the handle. It
// panics if the Client is nil.
//
// The latch is the Redis key of that name, behind [Options].Prefix, so it shares the name space of all other keys, locks included. A key that
// holds something else than a number is an error of all methods, and stays as it is. On a cluster a latch whose name has braces is an
// error, too: Redisson puts the name in braces once more, and the channel is in another slot then.
func (c *Client) CountDownLatch(name string) *CountDownLatch {
	c.check()
	m := c.latches.Latch(c.prefix+name, name)
	if name == "" {
		m.Invalid = m.Fail(errors.New("the name is empty"))
	}
	return &CountDownLatch{c, m}
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
// It returns when ctx is done. If Redis cannot be reached, or is not ready, it tries for three seconds after the first failure, three times
// at least. The error satisfies errors.Is for
//
//   - [ErrUnreachable], if Redis did not answer, or was not ready, and for ctx.Err() as well if ctx was done by then,
//   - ctx.Err(), if ctx was done first,
//   - [ErrClosed], if the Client is closed,
//
// or is what Redis said. A latch that a TrySetCount without an answer may have set is deleted in the background, unless somebody else has
// set it again.
func (l *CountDownLatch) TrySetCount(ctx context.Context, n int64) (bool, error) {
	l.check(ctx)
	if n < 0 {
		return false, l.latch.Fail(errors.New("a count is 0 or more"))
	}
	return l.latch.TrySetCount(ctx, n)
}

// CountDown takes one off the count. Whoever waits goes on when that is 0. If there is no count it does nothing.
//
// It counts exactly once, though its command may be sent again, and even if it fails with [ErrUnreachable] or ends with ctx: then it goes
// on in the background, for a minute or until the Client is closed. So do not call it again. It counts nothing if ctx is done before the call,
// if it fails with [ErrClosed], or if Redis refuses the command. A Close does not end it: it returns when Redis has answered, or Close no
// longer waits for that. Errors and times are those of [CountDownLatch.TrySetCount] otherwise.
//
// The CountDowns of one Client that come while another call for the latch is under way make one command.
func (l *CountDownLatch) CountDown(ctx context.Context) error {
	l.check(ctx)
	return l.latch.CountDown(ctx)
}

// Count returns how often the latch is still to be counted down; 0 if it is open. It asks Redis once, and returns when ctx is done, with
// ctx.Err(). Without an answer the error is [ErrUnreachable].
func (l *CountDownLatch) Count(ctx context.Context) (int64, error) {
	l.check(ctx)
	return l.latch.Count(ctx)
}

// Await waits until the latch is open, or ctx is done. It returns nil at once if there is no count. If it waited, it returns also if the
// count was set anew since: what counts is the count that was there when it came.
//
// A wait sends nothing: it ends by a message. It also ends if the key expires, and, at most a minute later, if somebody deletes the key by
// hand or a message is lost; after a lost connection Redis is asked again. However many goroutines of a Client wait for a latch,
// they need one subscription, and a command for all of them when they come and when there is a message.
//
// Await returns when ctx is done, whether or not Redis answers. If Redis cannot be reached, or is not ready, it tries for three seconds
// after the first failure, three times at least, and fails even if ctx leaves more time. The error satisfies errors.Is for
//
//   - [ErrNotAcquired] and ctx.Err(), if ctx was done first; for [ErrUnreachable] as well, if Redis had not answered by then.
//     The [*NotAcquiredError] has the count,
//   - [ErrUnreachable], if Redis did not answer, or was not ready,
//   - [ErrClosed], if the Client is closed or is being shut down,
//
// or is what Redis said.
func (l *CountDownLatch) Await(ctx context.Context) error {
	l.check(ctx)
	return l.await(engine.CallerNow(ctx))
}

// TryAwait is Await with a bound on the waiting: after wait it returns [ErrNotAcquired]. If wait is 0 or less it asks once. Redis is given
// a second for its first answer, also if wait is shorter.
func (l *CountDownLatch) TryAwait(ctx context.Context, wait time.Duration) error {
	l.check(ctx)
	return l.await(engine.CallerNow(ctx).UpTo(wait, time.Second))
}

func (l *CountDownLatch) await(who engine.Caller) error {
	trace := l.client.trace.follow(&who, l.latch.Name, l.latch.Kind.Name)
	who.Trace = trace.tracer()
	err := l.latch.Await(who)
	trace.passed(err)
	return err
}

// Delete deletes the latch, and reports whether it had a count. Whoever waits goes on. Errors and times are those of
// [CountDownLatch.TrySetCount]; without an answer the latch may be deleted or not.
func (l *CountDownLatch) Delete(ctx context.Context) (bool, error) {
	l.check(ctx)
	return l.latch.Delete(ctx)
}
