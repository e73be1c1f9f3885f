package rlock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// prompt is a process whose Locks ask on their callers' goroutines though they can be cancelled, since Redis has
// answered promptly so far.
type prompt struct {
	bench // Client is behind the network, rdb is not
	proxy *redistest.Proxy
}

func newPrompt(t *testing.T, way func(*rueidis.ClientOption)) *prompt {
	t.Helper()
	s := redistest.Start(t)
	h := &prompt{proxy: redistest.StartProxy(t, s.Addr())}
	h.rdb, h.name = s.Client(t), redistest.Name(t)
	h.Client = newClient(t, redistest.Dial(t, h.proxy.Addr(), way))
	loadScripts(t, h.Client)
	return h
}

// moment is what such a Lock waits for Redis at least; twice as long at most.
const moment = time.Second

// warm gets so many answers in a row that Redis counts as prompt, if they are.
func (h *prompt) warm(t *testing.T) {
	t.Helper()
	for range 10 {
		require.NoError(t, h.Mutex(h.name+":other").Do(context.Background(), func(context.Context) error { return nil }))
	}
}

// asks starts a Lock whose acquire runs, but is not answered.
func (h *prompt) asks(t *testing.T, l locker) pending {
	t.Helper()
	for range 100 {
		h.warm(t)
		h.proxy.OnReply(redistest.Nth(1, "EVALSHA", redistest.Hold))
		p := lockAsync(t, l)
		redistest.Eventually(t, 5*time.Second, func() bool { return h.proxy.Held() == 1 }, "not answered")
		if redistest.Goroutines("rlock.(*locking).question") == 0 {
			return p
		}
		h.proxy.Release() // one of the answers before was not prompt
		got := p.get(t, soon)
		require.NoError(t, got.err)
		require.NoError(t, got.unlock())
	}
	require.FailNow(t, "Redis never answers promptly")
	panic("unreachable")
}

// clear proves that nothing is left.
func (h *prompt) clear(t *testing.T) {
	t.Helper()
	redistest.Eventually(t, 5*time.Second, func() bool { return !h.exists(t, h.name) }, "given back")
	h.proxy.Release()
	_, unlock, err := h.Mutex(h.name).TryLock(context.Background(), soon) // it may not have left the queue yet
	require.NoError(t, err)
	require.NoError(t, unlock())
	h.Close()
	redistest.Eventually(t, 5*time.Second, func() bool { return !h.exists(t, h.name) }, "nothing comes late")
}

// The answer does not come in time: a goroutine asks again, so that the Lock can be cancelled meanwhile. It counts
// once.
func TestPromptLockAsksAgain(t *testing.T) {
	bothWays(t, func(t *testing.T, way func(*rueidis.ClientOption)) {
		h := newPrompt(t, way)
		p := h.asks(t, h.Mutex(h.name))
		redistest.Eventually(t, 2*moment+soon, func() bool {
			return len(p.result) == 1 || redistest.Goroutines("rlock.(*locking).question") == 1
		}, "asks again")
		h.proxy.Release() // a pipeline may have both replies
		got := p.get(t, soon)
		require.NoError(t, got.err)
		require.Equal(t, map[string]int64{rlock.Owner(got.ctx): 1}, h.fields(t, h.name))
		require.NoError(t, got.unlock())
		h.clear(t)
	})
}

// A Lock that is cancelled while it asks returns when it is answered, or soon.
func TestPromptLockIsCancelled(t *testing.T) {
	for name, answer := range map[string]func(h *prompt){
		"answered": func(h *prompt) { h.proxy.Release() },
		"silence":  func(*prompt) {},
		"cut off":  func(h *prompt) { h.proxy.CutAll() },
	} {
		t.Run(name, func(t *testing.T) {
			bothWays(t, func(t *testing.T, way func(*rueidis.ClientOption)) {
				h := newPrompt(t, way)
				p := h.asks(t, h.Mutex(h.name))
				p.cancel()
				answer(h)
				got := p.get(t, 2*moment+soon)
				require.ErrorIs(t, got.err, rlock.ErrNotAcquired)
				require.ErrorIs(t, got.err, context.Canceled)
				h.clear(t)
			})
		})
	}
}

// The same for one more level, which the hold survives.
func TestPromptReentryIsCancelled(t *testing.T) {
	bothWays(t, func(t *testing.T, way func(*rueidis.ClientOption)) {
		h := newPrompt(t, way)
		m := h.Mutex(h.name)
		ctx, unlock, err := m.Lock(context.Background())
		require.NoError(t, err)
		p := h.asks(t, inside{ctx, m})
		p.cancel()
		got := p.get(t, 2*moment+soon)
		require.ErrorIs(t, got.err, context.Canceled)
		h.proxy.Release()
		require.NoError(t, ctx.Err())
		require.NoError(t, m.Do(ctx, func(context.Context) error { return nil }), "the count is right again")
		require.Equal(t, map[string]int64{rlock.Owner(ctx): 1}, h.fields(t, h.name))
		require.NoError(t, unlock())
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

// Close does not wait longer than the Lock does, and the Lock leaves nothing.
func TestPromptLockMeetsClose(t *testing.T) {
	bothWays(t, func(t *testing.T, way func(*rueidis.ClientOption)) {
		before := ours()
		h := newPrompt(t, way)
		p := h.asks(t, h.Mutex(h.name))
		h.Close()
		require.ErrorIs(t, p.get(t, soon).err, rlock.ErrClosed)
		h.proxy.Release()
		redistest.Eventually(t, 5*time.Second, func() bool { return !h.exists(t, h.name) }, "given back")
		awaitGone(t, before)
	})
}

// What such a Lock is granted after Close has been called is given back when Close returns, for Redis may not be
// reached any more then.
func TestCloseAwaitsWhatAPromptLockGivesBack(t *testing.T) {
	for _, cancelled := range []bool{false, true} {
		t.Run(fmt.Sprintf("cancelled=%v", cancelled), func(t *testing.T) {
			bothWays(t, func(t *testing.T, way func(*rueidis.ClientOption)) {
				h := newPrompt(t, way)
				p := h.asks(t, h.Mutex(h.name))
				closed := async(func() error { h.Close(); return nil })
				done, cancel := context.WithCancel(context.Background())
				cancel()
				redistest.Eventually(t, soon, func() bool {
					_, _, err := h.Mutex(h.name).Lock(done)
					return errors.Is(err, rlock.ErrClosed)
				}, "closed")
				if cancelled {
					p.cancel()
				}
				h.proxy.Release()
				require.NoError(t, within(t, closed, soon))
				require.False(t, h.exists(t, h.name))
				require.ErrorIs(t, p.get(t, soon).err, rlock.ErrClosed)
			})
		})
	}
}

// What Redis refuses is not asked again.
func TestPromptLockIsRefused(t *testing.T) {
	bothWays(t, func(t *testing.T, way func(*rueidis.ClientOption)) {
		h := newPrompt(t, way)
		h.warm(t)
		h.proxy.OnRequest(redistest.Nth(1, "EVALSHA", redistest.Fail("OOM command not allowed")))
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		_, _, err := h.Mutex(h.name).Lock(ctx)
		require.ErrorContains(t, err, "OOM")
		h.clear(t)
	})
}

// Redis has answered promptly, but not lately: who knows whether it will.
func TestPromptnessIsForgotten(t *testing.T) {
	h := newPrompt(t, func(*rueidis.ClientOption) {})
	p := h.asks(t, h.Mutex(h.name))
	h.proxy.Release()
	require.NoError(t, p.get(t, soon).unlock())
	pass(200 * time.Millisecond)
	h.proxy.OnReply(redistest.Nth(1, "EVALSHA", redistest.Hold))
	p = lockAsync(t, h.Mutex(h.name))
	redistest.Eventually(t, 5*time.Second, func() bool { return h.proxy.Held() == 1 }, "not answered")
	require.Equal(t, 1, redistest.Goroutines("rlock.(*locking).question"))
	p.cancel()
	require.ErrorIs(t, p.get(t, soon).err, context.Canceled)
	h.proxy.Release()
	h.clear(t)
}

// A ctx that ends before the moment is over ends the Lock, and not the connection.
func TestShortDeadlineAsksElsewhere(t *testing.T) {
	bothWays(t, func(t *testing.T, way func(*rueidis.ClientOption)) {
		h := newPrompt(t, func(o *rueidis.ClientOption) { way(o); oneConn(o) }) // or the Lock may make another
		p := h.asks(t, h.Mutex(h.name))
		h.proxy.Release()
		got := p.get(t, soon)
		require.NoError(t, got.err)
		require.NoError(t, got.unlock())
		conns := h.proxy.Conns()
		h.proxy.OnReply(redistest.Nth(1, "EVALSHA", redistest.Hold))
		ctx, cancel := context.WithTimeout(context.Background(), moment/5)
		defer cancel()
		_, _, err := h.Mutex(h.name).Lock(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		redistest.Eventually(t, soon, func() bool { return h.proxy.Held() == 1 }, "not answered")
		require.Equal(t, conns, h.proxy.Conns())
		h.proxy.Release()
		h.clear(t)
	})
}
