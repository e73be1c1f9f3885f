package rlock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/rueidis"
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
