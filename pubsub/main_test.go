package pubsub

import (
	"context"
	"flag"
	"maps"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
)

func TestMain(m *testing.M) {
	// Most tests wait for servers, so more of them run at once than there are cores.
	if err := flag.Set("test.parallel", "6"); err != nil {
		panic(err)
	}
	redistest.Main(m)
}

const (
	// soon bounds the time of immediate events, on a machine that may be busy.
	soon = 10 * time.Second
	// recovery bounds a reconnect, an election, or both. Sentinels that noticed a two-second stall do nothing for half a minute.
	recovery = time.Minute
	// quiet is how long a test watches that nothing happens.
	quiet = 100 * time.Millisecond
)

// me is the process of the hub under test.
const me = "me"

// site is a hub on a server, and a client that plays the other processes.
type site struct {
	t   *testing.T
	hub *Hub
	rdb rueidis.Client
}

// newSite makes a hub with one client; the test uses another. Both end with the test, the hub first, which leaves no connection.
func newSite(t *testing.T, hub, test rueidis.Client) site {
	t.Helper()
	open := new(atomic.Int32)
	s := site{t: t, hub: New(counted{hub, open}, me), rdb: test}
	t.Cleanup(func() {
		s.hub.Close()
		redistest.Eventually(t, recovery, func() bool { return open.Load() == 0 }, "no connection is left")
	})
	return s
}

// counted is a client that counts the dedicated connections that are open, or on their way.
type counted struct {
	rueidis.Client
	open *atomic.Int32
}

func (c counted) Dedicate() (rueidis.DedicatedClient, func()) {
	c.open.Add(1)
	conn, cancel := c.Client.Dedicate()
	return countedConn{conn, sync.OnceFunc(func() { c.open.Add(-1) })}, cancel
}

func (c counted) Nodes() map[string]rueidis.Client {
	nodes := maps.Clone(c.Client.Nodes())
	for addr, node := range nodes {
		nodes[addr] = counted{node, c.open}
	}
	return nodes
}

type countedConn struct {
	rueidis.DedicatedClient
	closed func()
}

func (c countedConn) Close() {
	c.DedicatedClient.Close()
	c.closed()
}

func sharedSite(t *testing.T, mod ...func(*rueidis.ClientOption)) site {
	t.Helper()
	return newSite(t, redistest.Dial(t, redistest.Shared(t), mod...), redistest.Dial(t, redistest.Shared(t)))
}

// queue returns the only queue of a channel.
func queue(ch Channel) Queue { return Queue{Channel: ch} }

func plain(name string) Channel { return Channel{Name: name} }

func (s site) do(c rueidis.Completed) rueidis.RedisResult {
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	return s.rdb.Do(ctx, c)
}

func (s site) publish(ch Channel, text string) {
	s.t.Helper()
	cmd := s.rdb.B().Publish().Channel(ch.Name).Message(text).Build()
	if ch.Sharded {
		cmd = s.rdb.B().Spublish().Channel(ch.Name).Message(text).Build()
	}
	require.NoError(s.t, s.do(cmd).Error())
}

// subscribers counts the subscribers of a channel; on a cluster, on all nodes.
func (s site) subscribers(ch Channel) int64 {
	s.t.Helper()
	var all int64
	for _, node := range s.rdb.Nodes() {
		cmd := node.B().PubsubNumsub().Channel(ch.Name).Build()
		if ch.Sharded {
			cmd = node.B().PubsubShardnumsub().Channel(ch.Name).Build()
		}
		ctx, cancel := context.WithTimeout(context.Background(), recovery) // none would be taken for nobody who listens
		reply, err := node.Do(ctx, cmd).AsIntMap()
		cancel()
		if err == nil { // a node may be down
			all += reply[ch.Name]
		} else {
			s.t.Logf("who listens to %s: %v", ch.Name, err)
		}
	}
	return all
}

func (s site) awaitSubscribers(ch Channel, n int64) {
	s.t.Helper()
	redistest.Eventually(s.t, recovery, func() bool { return s.subscribers(ch) == n }, "the number of subscriptions")
}

// awaitTurn waits for w's turn.
func awaitTurn(t *testing.T, w *Waiter, within time.Duration) {
	t.Helper()
	redistest.Within(t, within, w.Turn(), "its turn")
	require.NoError(t, refusal(w))
}

// noTurn watches for a while that none of ws gets a turn.
func noTurn(t *testing.T, ws ...*Waiter) {
	t.Helper()
	time.Sleep(quiet)
	for i, w := range ws {
		require.Empty(t, w.turn, "waiter %d", i)
	}
}

// waits returns the first waiter of a queue, which found the lock held.
func (s site) waits(ch Channel) *Waiter {
	s.t.Helper()
	w := &Waiter{}
	require.True(s.t, s.hub.Join(w, queue(ch)))
	w.Held(-1, false)
	return w
}

// park makes a queue of n waiters that found the lock held, with a live subscription.
func (s site) park(ch Channel, n int) []*Waiter {
	s.t.Helper()
	ws := []*Waiter{s.waits(ch)}
	s.awaitLive(ws[0])
	ws[0].Held(-1, false)
	for range n - 1 {
		w := &Waiter{}
		require.False(s.t, s.hub.Join(w, queue(ch)))
		ws = append(ws, w)
	}
	return ws
}

// awaitLive waits for a turn of the first waiter with a live subscription. On a busy machine it may be overdue, and the waiter asks before.
func (s site) awaitLive(w *Waiter) {
	s.t.Helper()
	redistest.Eventually(s.t, recovery, func() bool {
		awaitTurn(s.t, w, recovery)
		if w.Hears() {
			return true
		}
		w.Held(-1, false)
		return false
	}, "the subscription is live")
}

func leave(ws ...*Waiter) {
	for _, w := range ws {
		w.Leave()
	}
}

// leaveAll empties a queue and checks that nothing is left.
func (s site) leaveAll(ch Channel, ws []*Waiter) {
	s.t.Helper()
	leave(ws...)
	s.awaitGone(ch)
}

func (s site) awaitGone(ch Channel) {
	s.t.Helper()
	redistest.Eventually(s.t, recovery, func() bool { return s.hub.isEmpty() }, "no topic is left")
	s.awaitSubscribers(ch, 0)
}

// refusal returns the error that fails a waiter.
func refusal(w *Waiter) error {
	_, err := w.News()
	return err
}

// isEmpty reports whether there is neither a queue nor a subscription.
func (h *Hub) isEmpty() bool {
	queues := h.Len()
	h.conns.mu.Lock()
	defer h.conns.mu.Unlock()
	return queues+len(h.conns.subs) == 0
}

// Len returns the number of queues.
func (h *Hub) Len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.topics)
}
