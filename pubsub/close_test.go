package pubsub

import (
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/redistest"
)

func TestCloseWithWaiters(t *testing.T) {
	for name, mod := range map[string][]func(*rueidis.ClientOption){"resp3": nil, "resp2": {resp2}} {
		t.Run(name, func(t *testing.T) {
			s := sharedSite(t, mod...)
			ch := plain(redistest.Name(t))
			ws := s.park(ch, 3)
			s.hub.Close()
			awaitNoGoroutines(t)
			s.awaitSubscribers(ch, 0)
			requireClosed(t, ws...)
			for _, w := range ws {
				w.Leave()
			}
			s.hub.Close()
		})
	}
}

func requireClosed(t *testing.T, ws ...*Waiter) {
	t.Helper()
	for i, w := range ws {
		require.Len(t, w.turn, 1, "waiter %d is not told", i)
		<-w.turn
		require.ErrorIs(t, refusal(w), ErrClosed)
	}
}

func TestCloseUnused(t *testing.T) {
	t.Parallel()
	sharedSite(t).hub.Close()
}

// within fails the test if f takes longer.
func within(t *testing.T, d time.Duration, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { // ended by f
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(d):
		t.Fatalf("not within %v", d)
	}
}

// The client's dial time-out, 5 s if it does not say, bounds what can't be cancelled.
func TestCloseWhileConnecting(t *testing.T) {
	for name, mod := range map[string]func(*rueidis.ClientOption){"resp3": func(*rueidis.ClientOption) {}, "resp2": resp2} {
		t.Run(name, func(t *testing.T) {
			proxy := redistest.StartProxy(t, redistest.Shared(t))
			s := newSite(t, redistest.Dial(t, proxy.Addr(), mod, func(o *rueidis.ClientOption) { o.Dialer.Timeout = time.Second }),
				redistest.Dial(t, redistest.Shared(t)))
			conns := proxy.Conns()
			proxy.BlackHole(true)
			w := &Waiter{}
			require.True(t, s.hub.Join(w, queue(plain(redistest.Name(t)))))
			w.Held(-1)
			redistest.Eventually(t, soon, func() bool { return proxy.Conns() > conns }, "it connects")
			within(t, soon, s.hub.Close)
			awaitNoGoroutines(t)
			w.Leave()
		})
	}
}

func TestCloseWhileSubscribing(t *testing.T) {
	proxy := redistest.StartProxy(t, redistest.Shared(t))
	proxy.OnRequest(redistest.Each("SUBSCRIBE", redistest.Drop))
	s := newSite(t, redistest.Dial(t, proxy.Addr()), redistest.Dial(t, redistest.Shared(t)))
	asked := make(chan struct{}, 1)
	proxy.OnRequest(func(cmd []string) redistest.Action {
		if cmd[0] == "SUBSCRIBE" {
			asked <- struct{}{}
		}
		return redistest.Pass
	})
	w := &Waiter{}
	require.True(t, s.hub.Join(w, queue(plain(redistest.Name(t)))))
	w.Held(-1)
	<-asked
	within(t, soon, s.hub.Close)
	awaitNoGoroutines(t)
}

func TestCloseWhileServerIsDown(t *testing.T) {
	server := redistest.Start(t)
	s := newSite(t, server.Client(t), redistest.Dial(t, redistest.Shared(t)))
	ws := s.park(plain("c"), 2)
	server.Kill()
	require.NotEmpty(t, ws)
	within(t, soon, s.hub.Close)
	awaitNoGoroutines(t)
}

// Whoever closes the client before the hub gets waiters that know, no panic and no busy loop.
func TestClientClosedBeforeTheHub(t *testing.T) {
	rdb := redistest.Dial(t, redistest.Shared(t))
	s := newSite(t, rdb, redistest.Dial(t, redistest.Shared(t)))
	rdb.Close()
	w := &Waiter{}
	require.True(t, s.hub.Join(w, queue(plain(redistest.Name(t)))))
	w.Held(-1)
	select {
	case <-w.Turn():
		require.ErrorIs(t, refusal(w), rueidis.ErrClosing)
	case <-time.After(soon):
		t.Fatal("the waiter was not told")
	}
	within(t, soon, s.hub.Close)
	awaitNoGoroutines(t)
}
