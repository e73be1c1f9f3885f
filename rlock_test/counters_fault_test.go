package rlock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// Calls of counters that are stopped, lost or left.

// counterCall is a call of a counter, and its number before, after it, if its caller leaves, and if it fails.
type counterCall struct {
	before, after, left, failed int64
	call                        func(ctx context.Context, c *rlock.Client, name string) error
}

// counterCalls are the calls that change a counter, by the number that is in Redis before them, after one that was answered, after one
// whose caller has left, and after an outage in which it failed.
var counterCalls = map[string]counterCall{
	"Semaphore.Acquire": {5, 2, 5, 5, func(ctx context.Context, c *rlock.Client, name string) error {
		return c.Semaphore(name).Acquire(ctx, 3)
	}},
	"Semaphore.Release": {5, 7, 7, 7, func(ctx context.Context, c *rlock.Client, name string) error {
		return c.Semaphore(name).Release(ctx, 2)
	}},
	"Semaphore.Drain": {5, 0, 5, 5, func(ctx context.Context, c *rlock.Client, name string) error {
		n, err := c.Semaphore(name).Drain(ctx)
		return did(n == 5, err)
	}},
	"Semaphore.ReleaseIfExists": {5, 6, 6, 6, func(ctx context.Context, c *rlock.Client, name string) error {
		return did(c.Semaphore(name).ReleaseIfExists(ctx, 1))
	}},
	"PermitSemaphore.Acquire": {5, 4, 5, 5, func(ctx context.Context, c *rlock.Client, name string) error {
		_, _, err := c.PermitSemaphore(name).Acquire(ctx)
		return err
	}},
	"PermitSemaphore.AcquireN": {5, 2, 5, 5, func(ctx context.Context, c *rlock.Client, name string) error {
		_, _, err := c.PermitSemaphore(name, rlock.WithLease(time.Minute)).AcquireN(ctx, 3)
		return err
	}},
	"CountDownLatch.TrySetCount": {0, 5, 5, 0, func(ctx context.Context, c *rlock.Client, name string) error {
		return did(c.CountDownLatch(name).TrySetCount(ctx, 5))
	}},
	"CountDownLatch.CountDown": {5, 4, 4, 4, func(ctx context.Context, c *rlock.Client, name string) error {
		return c.CountDownLatch(name).CountDown(ctx)
	}},
	"the last CountDown": {1, 0, 0, 0, func(ctx context.Context, c *rlock.Client, name string) error {
		return c.CountDownLatch(name).CountDown(ctx)
	}},
	"CountDownLatch.Delete": {5, 0, 0, 5, func(ctx context.Context, c *rlock.Client, name string) error {
		return did(c.CountDownLatch(name).Delete(ctx))
	}},
}

// did is the error of a call that has done something.
func did(it bool, err error) error {
	if err == nil && !it {
		err = errors.New("its repeat was taken for another call")
	}
	return err
}

// Calls whose replies are lost are made again, and count once.
func TestCountersCountOnce(t *testing.T) {
	for _, action := range []redistest.Action{redistest.Cut, redistest.Drop} {
		lose := func(proxy *redistest.Proxy) {
			proxy.OnReply(nthScript(1, action))
			proxy.OnReply(nthScript(2, action))
		}
		for name, row := range counterCalls {
			redistest.RunVirtual(t, string(action)+"/"+name, func(t *testing.T) {
				c, proxy, b := behindProxy(t, quickTimeout)
				b.counter(t, row.before)
				lose(proxy)
				require.NoError(t, within(t, async(func() error { return row.call(context.Background(), c, b.name) }), testTimeout))
				b.requireCounter(t, row.after)
			})
		}
		for _, n := range []int{1, 3} {
			redistest.RunVirtual(t, fmt.Sprintf("%s/Permit.Release/%d", action, n), func(t *testing.T) {
				c, proxy, b := behindProxy(t, quickTimeout, rlock.Options{UnlockTimeout: time.Minute})
				b.counter(t, 5)
				lose(proxy)
				held := acquire(t, c.PermitSemaphore(b.name, rlock.WithLease(time.Minute)), n)
				requirePermits(t, b.PermitSemaphore(b.name), 5-int64(n), int64(n))
				lose(proxy)
				require.NoError(t, within(t, async(held.permit.Release), testTimeout))
				requirePermits(t, b.PermitSemaphore(b.name), 5, 0)
			})
		}
	}
}

// underWay starts the call, and returns when it has run. Its reply is held back, and its process notices nothing.
func (row counterCall) underWay(t *testing.T) (proxy *redistest.Proxy, b fixture, result <-chan error) {
	t.Helper()
	c, proxy, b := behindProxy(t, func(o *rueidis.ClientOption) {
		pipelined(o)
		o.Dialer.KeepAlive, o.ConnWriteTimeout = time.Hour, time.Hour
	})
	b.counter(t, row.before)
	proxy.OnReply(nthScript(1, redistest.Hold))
	result = async(func() error { return row.call(context.Background(), c, b.name) })
	redistest.Eventually(t, testTimeout, func() bool { return proxy.Held() > 0 }, "it has run")
	b.requireCounter(t, row.after)
	return proxy, b, result
}

// A process that was stopped for minutes during a call, and finds its connection broken, does not make that again: by now Redis has forgotten
// that it ran, and whatever others did since would be changed.
func TestCountersAfterAStop(t *testing.T) {
	for name, row := range counterCalls {
		t.Run(name, func(t *testing.T) {
			redistest.OnlyVirtual(t, "the process stands still for minutes", func(t *testing.T) {
				proxy, b, result := row.underWay(t)
				sleep(3 * time.Minute)
				since := int64(100)
				if row.before == 0 {
					since = 0
				}
				require.NoError(t, b.do(t, "DEL", b.name).Error())
				b.counter(t, since)
				proxy.CutAll()
				require.ErrorIs(t, within(t, result, testTimeout), rlock.ErrUnreachable)
				sleep(time.Minute)
				if strings.HasPrefix(name, "PermitSemaphore") { // ids tell them apart
					since += row.before - row.after
				}
				b.requireCounter(t, since)
			})
		})
	}
}

// forgets deletes all that Redis remembers of the calls for a counter, as it does after two minutes.
func (b fixture) forgets(t testing.TB) {
	t.Helper()
	for _, key := range answer(b.do(t, "KEYS", "*"+b.name+"*").AsStrSlice()).ok(t) {
		if strings.HasPrefix(key, "rlock_") {
			require.NoError(t, b.do(t, "DEL", key).Error())
		}
	}
}

// Nor does it if it is stopped in the pause before the repeat.
func TestCountersAfterAStopInAPause(t *testing.T) {
	for name, row := range counterCalls {
		t.Run(name, func(t *testing.T) {
			redistest.OnlyVirtual(t, "a pause of 10 ms", func(t *testing.T) {
				proxy, b, result := row.underWay(t)
				sleep(time.Minute - 5*time.Millisecond)
				b.forgets(t)
				proxy.CutAll()
				require.ErrorIs(t, within(t, result, testTimeout), rlock.ErrUnreachable)
				sleep(time.Minute)
				want := row.after
				if strings.HasPrefix(name, "PermitSemaphore") { // ids tell them apart
					want = row.before
				}
				b.requireCounter(t, want)
			})
		})
	}
}

// Nor does it if it is stopped during a call that it makes for a caller that has left, of whose earlier calls none has run.
func TestCountersAfterAStopInTheBackground(t *testing.T) {
	redistest.OnlyVirtual(t, "the last repeat comes over a minute after the first call", func(t *testing.T) {
		c, proxy, b := behindProxy(t, quickTimeout)
		b.counter(t, 5)
		began, ran := time.Now(), atomic.Int32{}
		loads := func() bool { return time.Since(began) < 57*time.Second }
		proxy.OnRequest(func(cmd []string) redistest.Action {
			if isScript(cmd) && loads() {
				return redistest.Fail("LOADING Redis is loading the dataset in memory")
			}
			return redistest.Pass
		})
		proxy.OnReply(func(cmd []string) redistest.Action {
			if isScript(cmd) && !loads() && ran.Add(1) == 1 {
				return redistest.Drop
			}
			return redistest.Pass
		})
		require.ErrorIs(t, c.Semaphore(b.name).Release(context.Background(), 2), rlock.ErrPending)
		redistest.Eventually(t, time.Minute, func() bool { return ran.Load() == 1 }, "it has run")
		b.requireCounter(t, 7)
		b.forgets(t)
		redistest.Eventually(t, testTimeout, func() bool { return ran.Load() == 2 }, "it is ended")
		require.Greater(t, time.Since(began), time.Minute)
		noCalls(t)
		b.requireCounter(t, 7)
	})
}

// A caller that leaves takes nothing, whether its request or its reply is late. What it gives back, sets or counts down takes effect.
func TestCountersWhoseCallersLeave(t *testing.T) {
	for _, where := range []string{"request", "reply"} {
		for name, row := range counterCalls {
			redistest.RunVirtual(t, where+"/"+name, func(t *testing.T) {
				c, proxy, b := behindProxy(t, anyWay)
				b.counter(t, row.before)
				leavesDuring(t, proxy, where, func(ctx context.Context) error { return row.call(ctx, c, b.name) })
				b.requireCounter(t, row.left)
			})
		}
		redistest.RunVirtual(t, where+"/Permit.Release", func(t *testing.T) {
			c, proxy, b := behindProxy(t, anyWay, rlock.Options{UnlockTimeout: 200 * time.Millisecond})
			b.counter(t, 5)
			held := acquire(t, c.PermitSemaphore(b.name), 2)
			noCalls(t)
			holdScript(proxy, where)
			require.ErrorIs(t, within(t, async(held.permit.Release), wakeTimeout), rlock.ErrUnreachable)
			require.Zero(t, c.Stats().Holds)
			proxy.Release()
			noCalls(t)
			requirePermits(t, b.PermitSemaphore(b.name), 5, 0)
		})
	}
}

// While Redis is down a call fails with ErrUnreachable. Once Redis is back, what gives back or counts down has been done, and what sets a count if
// its error says so, but nothing else: only then other calls of the process succeed.
func TestCountersOutage(t *testing.T) {
	for name, row := range counterCalls {
		redistest.RunVirtual(t, name, func(t *testing.T) {
			c, proxy, b := behindProxy(t, anyWay)
			b.counter(t, row.before)
			lockAndUnlock(t, c.Mutex(redistest.Name(t))) // it is connected
			proxy.Refuse(true)
			proxy.CutAll()
			call := func() error { return row.call(context.Background(), c, b.name) }
			err := within(t, async(call), testTimeout)
			require.ErrorIs(t, err, rlock.ErrUnreachable)
			want := row.failed
			if name == "CountDownLatch.TrySetCount" && errors.Is(err, rlock.ErrPending) { // a copy of it may have run
				want = row.after
			}
			proxy.Refuse(false)
			noCalls(t)
			redistest.Eventually(t, testTimeout, func() bool {
				n, _ := b.do(t, "GET", b.name).AsInt64()
				return n == want
			}, "what was to be done is done")
			answer(c.Semaphore(b.name).Available(context.Background())).is(t, want)
		})
	}
}

// A lost message, or a counter changed by hand, is noticed when the connection is renewed.
func TestCountersLoseAMessage(t *testing.T) {
	for kind, of := range awaitedCounters {
		redistest.RunVirtual(t, kind, func(t *testing.T) {
			c, proxy, b := behindProxy(t, anyWay)
			b.counter(t, 1)
			proxy.OnReply(redistest.Each("MESSAGE", redistest.Drop))
			waits := async(func() error { return of.wait(context.Background(), c, b.name) })
			b.awaitWaiters(t, 1)
			sleep(time.Second) // it has looked after it began to listen
			require.NoError(t, of.change(context.Background(), b.Client, b.name))
			sleep(100 * time.Millisecond)
			requireStillWaits(t, waits)
			proxy.CutAll()
			require.NoError(t, within(t, waits, wakeTimeout))
		})
	}
}
