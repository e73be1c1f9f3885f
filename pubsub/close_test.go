package pubsub

import (
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
)

// Close leaves nothing behind: it waits for goroutines, and newSite for connections.
func TestClose(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]func(t *testing.T, mod func(*rueidis.ClientOption)){
		"with waiters":         closeWithWaiters,
		"while connecting":     closeWhileConnecting,
		"while subscribing":    closeWhileSubscribing,
		"before unsubscribing": closeBeforeUnsubscribing,
		"server is down":       closeWhileServerIsDown,
		"client closed before": clientClosedBeforeTheHub,
		"sharded channels":     shardedChannels,
		"many channels":        manyChannelsShareOneConnection,
		"churn":                churnLeavesNothing,
	} {
		for resp, mod := range respVersions {
			t.Run(name+"/"+resp, func(t *testing.T) {
				t.Parallel()
				f(t, mod)
			})
		}
	}
}

func closeWithWaiters(t *testing.T, mod func(*rueidis.ClientOption)) {
	s := newSite(t, redistest.Dial(t, redistest.Shared(t), mod), redistest.Dial(t, redistest.Shared(t)))
	ch := plain(redistest.Name(t))
	ws := s.park(ch, 3)
	s.hub.Close()
	s.awaitSubscribers(ch, 0)
	requireClosed(t, ws...)
	leave(ws...)
	s.hub.Close()
}

func requireClosed(t *testing.T, ws ...*Waiter) {
	t.Helper()
	for i, w := range ws {
		require.Len(t, w.turn, 1, "waiter %d has no signal", i)
		<-w.turn
		require.ErrorIs(t, refusal(w), ErrClosed)
	}
}

// within fails the test if f takes longer than d.
func within(t *testing.T, d time.Duration, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { // ends with f
		defer close(done)
		f()
	}()
	redistest.Within(t, d, done, "it returns")
}

// Operations that cannot be cancelled end after the client's dial timeout, 5 s by default.
func closeWhileConnecting(t *testing.T, mod func(*rueidis.ClientOption)) {
	proxy := redistest.StartProxy(t, redistest.Shared(t))
	s := newSite(t, redistest.Dial(t, proxy.Addr(), mod), redistest.Dial(t, redistest.Shared(t)))
	conns := proxy.Conns()
	proxy.BlackHole(true)
	w := s.waits(plain(redistest.Name(t)))
	redistest.Eventually(t, soon, func() bool { return proxy.Conns() > conns }, "it connects")
	within(t, rueidis.DefaultDialTimeout+soon, s.hub.Close)
	w.Leave()
}

func closeWhileSubscribing(t *testing.T, mod func(*rueidis.ClientOption)) {
	proxy := redistest.StartProxy(t, redistest.Shared(t))
	proxy.OnRequest(redistest.Each("SUBSCRIBE", redistest.Drop))
	s := newSite(t, redistest.Dial(t, proxy.Addr(), mod), redistest.Dial(t, redistest.Shared(t)))
	asked := make(chan struct{}, 1)
	proxy.OnRequest(func(cmd []string) redistest.Action {
		if cmd[0] == "SUBSCRIBE" {
			asked <- struct{}{}
		}
		return redistest.Pass
	})
	s.waits(plain(redistest.Name(t)))
	<-asked
	within(t, soon, s.hub.Close)
}

func closeWhileServerIsDown(t *testing.T, mod func(*rueidis.ClientOption)) {
	server := redistest.Start(t)
	s := newSite(t, server.Client(t, mod), redistest.Dial(t, redistest.Shared(t)))
	ws := s.park(plain("c"), 2)
	server.Kill()
	require.NotEmpty(t, ws)
	within(t, soon, s.hub.Close)
}

// If the client closes before the hub, waiters get an error, with no panic and no busy loop.
func clientClosedBeforeTheHub(t *testing.T, mod func(*rueidis.ClientOption)) {
	rdb := redistest.Dial(t, redistest.Shared(t), mod)
	s := newSite(t, rdb, redistest.Dial(t, redistest.Shared(t)))
	rdb.Close()
	w := s.waits(plain(redistest.Name(t)))
	select {
	case <-w.Turn():
		require.ErrorIs(t, refusal(w), rueidis.ErrClosing)
	case <-time.After(soon):
		t.Fatal("the waiter got no signal")
	}
	within(t, soon, s.hub.Close)
}
