package pubsub

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/testing/bubble"
	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/internal/testing/require"
)

// fakeClient is a client of servers in memory, so that a bubble's clock controls when links end. Calling a missing method panics.
type fakeClient struct {
	rueidis.Client
	builder rueidis.Builder
	mode    rueidis.ClientMode
	pool    chan struct{} // a connection is there when this can be read
	silent  chan struct{} // a connection answers when this is closed; nil: at once
	pong    chan struct{} // Do answers when this is closed; nil: at once

	dialsLate bool // until then it takes no hooks

	mu    sync.Mutex // guards the fields below
	nodes map[string]rueidis.Client
	dials int
	conns int // in use
	wait  int // for one
	down  error
	asked int // calls of Do
	hangs int // so many of them have no answer
}

func newFakeClient(t *testing.T, nodes ...string) *fakeClient {
	t.Helper()
	c := &fakeClient{builder: redistest.Dial(t, redistest.Shared(t)).B(), nodes: make(map[string]rueidis.Client)}
	for _, addr := range nodes {
		c.nodes[addr] = c
	}
	return c
}

func (c *fakeClient) B() rueidis.Builder       { return c.builder }
func (c *fakeClient) Mode() rueidis.ClientMode { return c.mode }

func (c *fakeClient) Nodes() map[string]rueidis.Client {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodes
}

// Do answers a PING, and knows no slots.
func (c *fakeClient) Do(ctx context.Context, _ rueidis.Completed) rueidis.RedisResult {
	c.mu.Lock()
	c.asked++
	down, hangs := c.down, c.asked <= c.hangs
	c.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return rueidis.NewErrorResult(ctx.Err())
	}
	if c.pong != nil {
		<-c.pong
	}
	if down != nil {
		return rueidis.NewErrorResult(down)
	}
	return rueidis.RedisResult{}
}

// questions returns how often Do was called.
func (c *fakeClient) questions() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asked
}

func (c *fakeClient) setDown(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.down = err
}

func (c *fakeClient) add(conns, wait int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conns += conns
	c.dials += max(0, conns)
	c.wait += wait
}

func (c *fakeClient) count() (conns, wait int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.conns, c.wait
}

func (c *fakeClient) Dedicate() (rueidis.DedicatedClient, func()) {
	if c.pool != nil {
		c.add(0, 1)
		<-c.pool
		c.add(0, -1)
	}
	c.add(1, 0)
	return &fakeConn{client: c}, nil
}

const dialTimeout = 5 * time.Second // rueidis's

// fakeConn answers every command at once with success.
type fakeConn struct {
	rueidis.DedicatedClient
	client *fakeClient
	hooks  rueidis.PubSubHooks
}

func (c *fakeConn) B() rueidis.Builder { return c.client.builder }
func (c *fakeConn) Close()             { c.client.add(-1, 0) }

// SetPubSubHooks takes a while with RESP2, where it makes a connection.
func (c *fakeConn) SetPubSubHooks(hooks rueidis.PubSubHooks) <-chan error {
	if c.client.dialsLate {
		select {
		case <-c.client.silent:
		case <-time.After(dialTimeout):
			lost := make(chan error, 1)
			lost <- os.ErrDeadlineExceeded
			return lost
		}
	}
	c.hooks = hooks
	return nil
}

// answers waits for the answer, or returns the error of a ctx that is over before.
func (c *fakeConn) answers(ctx context.Context) error {
	if c.client.silent == nil {
		return nil
	}
	select {
	case <-c.client.silent:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *fakeConn) Do(ctx context.Context, _ rueidis.Completed) rueidis.RedisResult { // a PING
	if err := c.answers(ctx); err != nil {
		return rueidis.NewErrorResult(err)
	}
	return rueidis.RedisResult{}
}

func (c *fakeConn) DoMulti(ctx context.Context, cmds ...rueidis.Completed) []rueidis.RedisResult {
	if err := c.answers(ctx); err != nil {
		return slices.Repeat([]rueidis.RedisResult{rueidis.NewErrorResult(err)}, len(cmds))
	}
	for _, cmd := range cmds {
		words := cmd.Commands()
		kind := map[string]string{
			"SUBSCRIBE": "subscribe", "SSUBSCRIBE": "ssubscribe", "UNSUBSCRIBE": "unsubscribe", "SUNSUBSCRIBE": "sunsubscribe",
		}[words[0]]
		for _, name := range words[1:] {
			c.hooks.OnSubscription(rueidis.PubSubSubscription{Kind: kind, Channel: name})
		}
	}
	return make([]rueidis.RedisResult, len(cmds))
}

// at routes a new sharded channel to a node.
func (h *Hub) at(addr string) Channel {
	h.conns.mu.Lock()
	defer h.conns.mu.Unlock()
	for i := 0; ; i++ {
		ch := Channel{Name: fmt.Sprint(addr, i), Sharded: true}
		if _, known := h.conns.router.addrs[h.conns.slot(ch)]; !known {
			h.conns.router.addrs[h.conns.slot(ch)] = addr
			return ch
		}
	}
}

func (h *Hub) linkCount() int {
	h.conns.mu.Lock()
	defer h.conns.mu.Unlock()
	return len(h.conns.links)
}

// subscribes joins, finds the lock held, and returns when the subscription has brought the turn.
func subscribes(t *testing.T, h *Hub, ch Channel) *Waiter {
	t.Helper()
	w := &Waiter{}
	require.True(t, h.Join(w, queue(ch)))
	w.Held(-1, false)
	synctest.Wait()
	require.Len(t, w.turn, 1, "no turn")
	<-w.turn
	w.Held(-1, false)
	return w
}

// A link without subscriptions ends after the idle time, no earlier, together with its goroutine and connection. Its node gets a new link
// when needed again.
func TestIdleLinkEnds(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]rueidis.ClientMode{
		"standalone": rueidis.ClientModeStandalone,
		"sentinel":   rueidis.ClientModeSentinel, // its link looks for a failover in between
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb := newFakeClient(t, "a:1", "b:2")
			rdb.mode = mode
			bubble.Test(t, func(t *testing.T) {
				h := New(rdb, me)
				defer h.Close()
				for range 3 {
					channels := []Channel{plain("c"), h.at("a:1"), h.at("b:2")}
					var ws []*Waiter
					for _, ch := range channels {
						ws = append(ws, subscribes(t, h, ch))
					}
					time.Sleep(10 * maxIdle)
					synctest.Wait()
					require.Equal(t, 3, h.linkCount(), "they are in use")
					for i, w := range ws {
						w.Leave()
						synctest.Wait()
						require.Equal(t, 2-i, h.Len())
					}
					time.Sleep(maxIdle - 1)
					synctest.Wait()
					require.Equal(t, 3, h.linkCount(), "kept for a while")
					time.Sleep(time.Nanosecond)
					synctest.Wait()
					require.Zero(t, h.linkCount())
					conns, _ := rdb.count()
					require.Zero(t, conns)
				}
				require.Equal(t, 9, rdb.dials)
			})
		})
	}
}

// The same holds for a link whose node the client does not know, or knows no longer.
func TestLinkOfAnUnknownNodeEnds(t *testing.T) {
	t.Parallel()
	rdb := newFakeClient(t, "here:1")
	bubble.Test(t, func(t *testing.T) {
		h := New(rdb, me)
		defer h.Close()
		ch := h.at("gone:1")
		w := &Waiter{}
		require.True(t, h.Join(w, queue(ch)))
		h.conns.mu.Lock()
		h.conns.router.asking = true // it would find nothing
		h.conns.mu.Unlock()
		w.Held(-1, false)
		synctest.Wait()
		require.Len(t, w.turn, 1, "its command is what the client learns from")
		<-w.turn
		w.Held(-1, false)
		time.Sleep(maxIdle + maxBackoff)
		synctest.Wait()
		require.Zero(t, h.linkCount())
		require.Equal(t, 1, h.Len())

		h.conns.mu.Lock()
		addrs := map[uint16]string{h.conns.slot(ch): "here:1"}
		h.conns.mu.Unlock()
		h.conns.adopt(addrs)
		require.True(t, h.conns.isRouted(), "the client has heard of the new node")
		synctest.Wait()
		require.Len(t, w.turn, 1, "subscribed")
		w.Leave()
	})
}

// Nobody asks for the node of a slot on behalf of those who have left, though nobody knew it.
func TestNobodyAsksForNodesInVain(t *testing.T) {
	t.Parallel()
	rdb := newFakeClient(t)
	bubble.Test(t, func(t *testing.T) {
		rdb.down = errors.New("down")
		h := New(rdb, me)
		defer h.Close()
		for range 2 {
			w := &Waiter{}
			require.True(t, h.Join(w, queue(Channel{Name: "c", Sharded: true})))
			w.Held(-1, false)
			before := rdb.questions()
			time.Sleep(10 * maxBackoff)
			require.Greater(t, rdb.questions(), before+5, "it waits for the node")
			w.Leave()
			time.Sleep(maxBackoff)
			before = rdb.questions()
			time.Sleep(10 * maxBackoff)
			require.Equal(t, before, rdb.questions())
		}
	})
}

// A node that hangs is asked for the nodes of slots in vain: a second later another one is.
func TestNodesAreAskedSideBySide(t *testing.T) {
	t.Parallel()
	rdb := newFakeClient(t)
	bubble.Test(t, func(t *testing.T) {
		rdb.down, rdb.hangs = errors.New("down"), 3
		h := New(rdb, me)
		defer h.Close()
		w := &Waiter{}
		require.True(t, h.Join(w, queue(Channel{Name: "c", Sharded: true})))
		w.Held(-1, false)
		for n := range rdb.hangs + 1 {
			synctest.Wait()
			require.Equal(t, n+1, rdb.questions())
			time.Sleep(maxBackoff)
		}
		time.Sleep(10 * maxBackoff)
		require.Greater(t, rdb.questions(), 8, "they go on")
		w.Leave()
	})
}

// A link that ends as a request arrives loses no subscription, even if Close runs at the same time.
func TestJoinsWhileLinksEnd(t *testing.T) {
	t.Parallel()
	rdb := newFakeClient(t, "a:1", "b:2")
	bubble.Test(t, func(t *testing.T) {
		for round := range 30 {
			h := New(rdb, me)
			var wg sync.WaitGroup
			for i, ch := range []Channel{plain("c"), plain("d"), h.at("a:1"), h.at("b:2")} {
				wg.Go(func() { // ended by Close
					rnd := rand.New(rand.NewPCG(uint64(round), uint64(i)))
					for h.joinOnce(t, ch) {
						time.Sleep(maxIdle + time.Duration(rnd.IntN(3)-1)) // the link ends after maxIdle
					}
				})
			}
			time.Sleep(20 * maxIdle)
			h.Close()
			wg.Wait()
			conns, _ := rdb.count()
			require.Zero(t, conns)
		}
	})
	require.Greater(t, rdb.dials, 30*4*5, "links ended, and began again")
}

// joinOnce joins, subscribes to the channel and leaves. It returns false if the hub is closed.
func (h *Hub) joinOnce(t *testing.T, ch Channel) bool {
	w := &Waiter{}
	if h.Join(w, queue(ch)) {
		w.Held(-1, false)
	}
	began := time.Now()
	<-w.Turn()
	_, err := w.News()
	if time.Since(began) > 0 { // in a bubble, time passes only when every goroutine is blocked
		t.Errorf("the turn took %v", time.Since(began))
	}
	w.Leave()
	return err == nil
}

// While the pool is exhausted a link waits for a single connection, however many requests arrive. After Close a single goroutine waits.
func TestExhaustedPool(t *testing.T) {
	t.Parallel()
	rdb := newFakeClient(t, "a:1")
	bubble.Test(t, func(t *testing.T) {
		rdb.pool = make(chan struct{})
		h := New(rdb, me)
		for range 10 {
			for _, ch := range []Channel{plain("c"), h.at("a:1")} {
				w := &Waiter{}
				require.True(t, h.Join(w, queue(ch)))
				w.Held(-1, false)
				time.Sleep(2 * maxIdle)
				w.Leave()
			}
		}
		waits := func() int {
			synctest.Wait()
			_, wait := rdb.count()
			return wait
		}
		require.Equal(t, 2, waits(), "one for each link")
		rdb.pool <- struct{}{}
		rdb.pool <- struct{}{}
		require.Zero(t, waits())
		time.Sleep(maxIdle)
		synctest.Wait()
		require.Zero(t, h.linkCount(), "there is nothing to do any more")

		w := &Waiter{}
		require.True(t, h.Join(w, queue(plain("c"))))
		w.Held(-1, false)
		require.Equal(t, 1, waits())
		h.Close()
		require.Equal(t, 1, waits())
		rdb.pool <- struct{}{}
		require.Zero(t, waits())
		conns, _ := rdb.count()
		require.Zero(t, conns, "given back at once")
	})
}
