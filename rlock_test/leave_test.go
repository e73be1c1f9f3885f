package rlock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// leavingCallers is a process whose callers leave while Redis is asked.
type leavingCallers struct {
	fixture // Client is behind the network, rdb is not
	proxy   *redistest.Proxy
}

func newLeavingCallers(t *testing.T, way func(*rueidis.ClientOption)) *leavingCallers {
	t.Helper()
	c, proxy, past := behindProxy(t, way)
	past.Client = c
	return &leavingCallers{past, proxy}
}

// inBothWays runs a test in the virtual world, with both ways in which rueidis sends a command.
func inBothWays(t *testing.T, test func(*testing.T, func(*rueidis.ClientOption))) {
	t.Helper()
	bothWays(t, func(t *testing.T, way func(*rueidis.ClientOption)) {
		redistest.Virtual(t, func(t *testing.T) { test(t, way) })
	})
}

// leavers runs a test with such a process, in both ways.
func leavers(t *testing.T, test func(*testing.T, *leavingCallers)) {
	t.Helper()
	inBothWays(t, func(t *testing.T, way func(*rueidis.ClientOption)) { test(t, newLeavingCallers(t, way)) })
}

// asks starts a Lock whose acquire runs, but is not answered.
func (h *leavingCallers) asks(t *testing.T, l locker) pendingLock {
	t.Helper()
	h.proxy.OnReply(redistest.Nth(1, "EVALSHA", redistest.Hold))
	p := lockAsync(t, l)
	redistest.Eventually(t, 5*time.Second, func() bool { return h.proxy.Held() == 1 }, "not answered")
	return p
}

// clear proves that nothing is left.
func (h *leavingCallers) clear(t *testing.T) {
	t.Helper()
	redistest.Eventually(t, testTimeout, func() bool { return !h.exists(t, h.name) }, "given back")
	h.proxy.Release()
	lockAndUnlock(t, tryFor{h.Mutex(h.name), 2 * time.Second}) // it may not have left the queue yet
	h.Close()
	redistest.Eventually(t, 5*time.Second, func() bool { return !h.exists(t, h.name) }, "nothing comes late")
}

// A Lock that is cancelled while it asks returns at once, whether the answer comes late, never, or is lost with its connection. Anything
// granted is given back.
func TestLockIsCancelledWhileItAsks(t *testing.T) {
	for name, answer := range map[string]func(h *leavingCallers){
		"answered": func(h *leavingCallers) { h.proxy.Release() },
		"silence":  func(*leavingCallers) {},
		"cut off":  func(h *leavingCallers) { h.proxy.CutAll() },
	} {
		t.Run(name, func(t *testing.T) {
			leavers(t, func(t *testing.T, h *leavingCallers) {
				p := h.asks(t, h.Mutex(h.name))
				sleep(200 * time.Millisecond) // time for an answer
				p.cancel()
				got := p.get(t, soon)
				require.ErrorIs(t, got.err, rlock.ErrNotAcquired)
				require.ErrorIs(t, got.err, rlock.ErrUnreachable, "nothing is known of the lock")
				require.ErrorIs(t, got.err, context.Canceled)
				answer(h)
				h.clear(t)
			})
		})
	}
}

// The same for a further level that needs a longer lease. The hold survives.
func TestReentryIsCancelledWhileItAsks(t *testing.T) {
	leavers(t, func(t *testing.T, h *leavingCallers) {
		m := h.Mutex(h.name)
		a := locked(t, m)
		p := h.asks(t, inside{a.ctx, h.Mutex(h.name, rlock.WithLease(time.Hour))})
		p.cancel()
		require.ErrorIs(t, p.get(t, soon).err, context.Canceled)
		h.proxy.Release()
		require.NoError(t, a.ctx.Err())
		require.NoError(t, m.Do(a.ctx, nothing), "the count is right again")
		h.awaitFields(t, h.name, map[string]int64{rlock.Owner(a.ctx): 1})
		require.NoError(t, a.unlock())
		h.clear(t)
	})
}

// inside locks under a hold's ctx, with the caller's cancellation.
type inside struct {
	hold context.Context
	*rlock.Mutex
}

func (i inside) Lock(ctx context.Context) (context.Context, rlock.UnlockFunc, error) {
	under, cancel := context.WithCancel(i.hold)
	context.AfterFunc(ctx, cancel)
	return i.Mutex.Lock(under)
}

// A Lock that is granted after Close was called gives that back before Close returns, because Redis may be unreachable afterwards. The same
// holds for a Lock that cannot be cancelled.
func TestCloseAwaitsWhatALockGivesBack(t *testing.T) {
	for name, ctx := range map[string]func(*testing.T) context.Context{
		"cancellable":        func(t *testing.T) context.Context { return t.Context() },
		"context.Background": func(*testing.T) context.Context { return context.Background() },
	} {
		t.Run(name, func(t *testing.T) {
			leavers(t, func(t *testing.T, h *leavingCallers) {
				p := h.asks(t, under{ctx(t), h.Mutex(h.name)})
				closed := async(func() error { h.Close(); return nil })
				redistest.Eventually(t, soon, func() bool {
					_, _, err := h.Mutex(h.name).Lock(canceled())
					return errors.Is(err, rlock.ErrClosed)
				}, "closed")
				h.proxy.Release()
				require.NoError(t, within(t, closed, soon))
				require.False(t, h.exists(t, h.name))
				require.ErrorIs(t, p.get(t, soon).err, rlock.ErrClosed)
			})
		})
	}
}

// A command that Redis refuses is not sent again.
func TestRefusedIsNotAskedAgain(t *testing.T) {
	leavers(t, func(t *testing.T, h *leavingCallers) {
		h.proxy.OnRequest(redistest.Nth(1, "EVALSHA", redistest.Fail("OOM command not allowed")))
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		_, _, err := h.Mutex(h.name).Lock(ctx)
		require.ErrorContains(t, err, "OOM")
		require.NotErrorIs(t, err, rlock.ErrUnreachable)
		h.clear(t)
	})
}

// A ctx that ends soon ends the Lock, and not the connection.
func TestShortDeadlineSparesTheConnection(t *testing.T) {
	inBothWays(t, func(t *testing.T, way func(*rueidis.ClientOption)) {
		h := newLeavingCallers(t, func(o *rueidis.ClientOption) { way(o); oneConn(o) }) // or the Lock may make another
		conns := h.proxy.Conns()
		h.proxy.OnReply(redistest.Nth(1, "EVALSHA", redistest.Hold))
		ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
		defer cancel()
		requireLockFails(t, ctx, h.Mutex(h.name), context.DeadlineExceeded)
		redistest.Eventually(t, soon, func() bool { return h.proxy.Held() == 1 }, "not answered")
		require.Equal(t, conns, h.proxy.Conns())
		h.proxy.Release()
		h.clear(t)
	})
}

// holdScript makes the proxy hold the next script's request, or its reply.
func holdScript(proxy *redistest.Proxy, where string) {
	if where == "request" {
		proxy.OnRequest(nthScript(1, redistest.Hold))
	} else {
		proxy.OnReply(nthScript(1, redistest.Hold))
	}
}

// leavesDuring makes a call whose caller leaves while the request of its script, or the reply, is held. It returns when the call has ended in
// the background, too.
func leavesDuring(t testing.TB, proxy *redistest.Proxy, where string, call func(ctx context.Context) error) {
	t.Helper()
	holdScript(proxy, where)
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	err := within(t, async(func() error { return call(ctx) }), wakeTimeout)
	require.ErrorIs(t, err, rlock.ErrUnreachable)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	proxy.Release()
	noCalls(t)
}

// G5, G9: thousands of calls, most of them in vain, leave nothing, here or in Redis, but records that expire.
func TestManyCallsLeaveNothing(t *testing.T) {
	setPermits := func(b fixture, name string, n int64) error {
		return second(b.Semaphore(name).TrySetPermits(context.Background(), n))
	}
	for kind, of := range map[string]struct {
		set  func(b fixture, name string, n int64) error                   // n is 0 if nobody may get in
		call func(ctx context.Context, c *rlock.Client, name string) error // gives back what it gets
		left func(t *testing.T, b fixture, name string, n int64)
	}{
		"locks": {
			set: func(b fixture, name string, n int64) error {
				if n > 0 {
					return nil
				}
				return b.rdb.Do(context.Background(), b.rdb.B().Hset().Key(name).FieldValue().FieldValue(foreignOwner, "1").Build()).Error()
			},
			call: func(ctx context.Context, c *rlock.Client, name string) error { return c.Mutex(name).Do(ctx, nothing) },
			left: func(t *testing.T, b fixture, name string, n int64) { require.Equal(t, n == 0, b.exists(t, name)) },
		},
		"semaphores": {
			set: setPermits,
			call: func(ctx context.Context, c *rlock.Client, name string) error {
				return c.Semaphore(name).Do(ctx, 1, nothing)
			},
			left: func(t *testing.T, b fixture, name string, n int64) { requireFree(t, b.Semaphore(name), n) },
		},
		"permits": {
			set: setPermits,
			call: func(ctx context.Context, c *rlock.Client, name string) error {
				return c.PermitSemaphore(name).Do(ctx, func(context.Context, *rlock.Permit) error { return nil })
			},
			left: func(t *testing.T, b fixture, name string, n int64) { requirePermits(t, b.PermitSemaphore(name), n, 0) },
		},
		"latches": {
			set: func(b fixture, name string, _ int64) error {
				return second(b.CountDownLatch(name).TrySetCount(context.Background(), 2))
			},
			call: func(ctx context.Context, c *rlock.Client, name string) error {
				l := c.CountDownLatch(name)
				waits := async(func() error { return l.Await(ctx) })
				if err := l.CountDown(ctx); err != nil && !errors.Is(err, ctx.Err()) {
					return err
				}
				return errors.Join(second(l.Delete(context.Background())), <-waits)
			},
			left: func(t *testing.T, b fixture, name string, _ int64) { require.False(t, b.exists(t, name)) },
		},
	} {
		t.Run(kind, func(t *testing.T) {
			redistest.OnlyVirtual(t, "it counts all goroutines", func(t *testing.T) {
				const names = 1_000
				b := newFixture(t)
				requireNoGoroutines(t, b.rdb, names, func(i int) {
					name := fmt.Sprintf("%s:%d", kind, i)
					assert.NoError(t, of.set(b, name, int64(i%2)))
					ctx, cancel := context.WithTimeout(context.Background(), rand.N(20*time.Millisecond))
					defer cancel()
					if err := of.call(ctx, b.Client, name); err != nil {
						assert.ErrorIs(t, err, rlock.ErrNotAcquired)
					}
				})
				require.Empty(t, answer(b.do(t, "PUBSUB", "CHANNELS").AsStrSlice()).ok(t))
				for i := range names {
					name := fmt.Sprintf("%s:%d", kind, i)
					of.left(t, b, name, int64(i%2))
					require.NoError(t, b.do(t, "DEL", name).Error())
				}
				for _, key := range answer(b.do(t, "KEYS", "*").AsStrSlice()).ok(t) {
					require.Regexp(t, "^rlock_(sem_requests|latch):{", key)
					require.NotEqual(t, -time.Millisecond, b.pttl(t, key), "it ends by itself")
				}
				require.Zero(t, b.Stats().Holds)
				require.Zero(t, b.Stats().Waiting)
			})
		})
	}
}

// requireNoGoroutines calls f for each of n names, 64 at a time, and requires that no more goroutines are left than by the first hundred.
func requireNoGoroutines(t *testing.T, rdb rueidis.Client, n int, f func(i int)) {
	t.Helper()
	require.NoError(t, rdb.Do(t.Context(), rdb.B().Ping().Build()).Error()) // a ctx that can be cancelled starts rueidis' goroutines for good
	const first = 100
	settled := func() int { // those in the bubble: outside of it are clients of servers that outlast their tests
		sleep(testTimeout)
		redistest.Settle(t)
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		require.Less(t, len(stacks), 1<<20, "all fit in")
		return bytes.Count(stacks, []byte(", synctest bubble "))
	}
	inParallel(first, f)
	before := settled()
	require.Positive(t, before)
	inParallel(n-first, func(i int) { f(first + i) })
	require.LessOrEqual(t, settled(), before)
}
