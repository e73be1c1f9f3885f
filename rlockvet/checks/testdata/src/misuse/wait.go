package misuse

import (
	"context"
	"time"

	"github.com/go-rlock/rlock/rlock"
)

// IsBusy.

func busyUnlock(ctx context.Context, m *rlock.Mutex) error {
	_, unlock, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	if err := unlock(); rlock.IsBusy(err) { // want `^IsBusy is false for what unlock\(\) returns: it is about the errors of Lock, TryLock, Acquire and Await$`
		return nil
	}
	if rlock.IsBusy(ctx.Err()) { // want `^IsBusy is false for what ctx\.Err\(\) returns`
		return nil
	}
	if rlock.IsBusy(context.Cause(ctx)) { // want `^IsBusy is false for what context\.Cause\(ctx\) returns`
		return nil
	}
	return nil
}

func busyHold(hold *rlock.Hold) bool { return rlock.IsBusy(hold.Unlock()) } // want `^IsBusy is false for what hold\.Unlock\(\) returns`

// Waits.

func oneAttempt(ctx context.Context, c *rlock.Client) error {
	m := c.Mutex("a", rlock.WithWaitForRedis()) // want `^WithWaitForRedis has no effect, since this TryDo in line \d+ makes one attempt: give it a wait$`
	if err := m.TryDo(ctx, 0, work); err != nil {
		return err
	}
	_, err := rlock.TryAcquire(ctx, c.Mutex("a", rlock.WithWaitForRedis()), 0) // want `^WithWaitForRedis has no effect, since this TryAcquire`
	return err
}

func twoWaits(ctx context.Context, c *rlock.Client) error {
	return c.Mutex("a", rlock.WithMaxWait(time.Minute)).TryDo(ctx, time.Second, work) // want `^WithMaxWait bounds Lock and Do; this TryDo in line \d+ has a wait of its own: leave one out$`
}

// Correct code, without findings.

func waits(ctx context.Context, c *rlock.Client) error {
	m := c.Mutex("a", rlock.WithWaitForRedis(), rlock.WithMaxWait(time.Minute))
	if err := m.TryDo(ctx, 0, work); rlock.IsBusy(err) {
		return m.Do(ctx, work)
	}
	return c.Mutex("a", rlock.WithWaitForRedis()).TryDo(ctx, time.Second, work)
}

func busyWait(ctx context.Context, l *rlock.CountDownLatch) bool { return rlock.IsBusy(l.Await(ctx)) }
