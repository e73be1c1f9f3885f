package pubsub

import (
	"context"
	"sync"

	"github.com/redis/rueidis"
)

// Channel names a pub/sub channel.
type Channel struct {
	Name    string
	Sharded bool // SSUBSCRIBE instead of SUBSCRIBE
}

// Hub queues the waiters of one process and keeps their subscriptions. It is safe for concurrent
// use.
type Hub struct {
	rdb    rueidis.Client
	ctx    context.Context // ends with Close, and with it every goroutine of the hub
	cancel context.CancelFunc
	wg     sync.WaitGroup // links and the router

	// mu guards the following and all that is reachable from it: topics, waiters, links. It is
	// held for memory operations only, and no other lock is taken under it.
	mu     sync.Mutex
	topics map[Channel]*topic
	links  map[string]*link // by node address; plain channels use plainLink
	router router
	closed bool
}

// New returns a hub that subscribes through rdb. Close ends it.
func New(rdb rueidis.Client) *Hub {
	ctx, cancel := context.WithCancel(context.Background())
	return &Hub{
		rdb:    rdb,
		ctx:    ctx,
		cancel: cancel,
		topics: make(map[Channel]*topic),
		links:  make(map[string]*link),
		router: router{addrs: make(map[uint16]string)},
	}
}

// Close ends all subscriptions and returns when the hub's goroutines are gone. Waiters are not
// woken: whoever closes the hub has to tell them.
func (h *Hub) Close() {
	h.mu.Lock()
	h.closed = true
	for _, t := range h.topics {
		t.stopTimer()
	}
	h.mu.Unlock()
	h.cancel()
	h.wg.Wait()
}

// Join puts w at the end of the queue of ch. It reports true if w has the turn at once, because
// nobody else waits there. Otherwise w gets it through [Waiter.Turn].
//
// Each Join is followed by exactly one [Waiter.Done] or [Waiter.Leave].
func (h *Hub) Join(w *Waiter, ch Channel) (turn bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.join(w, ch)
}

// JoinFirst is Join for a caller that does not want to wait: it reports false, and w has not
// joined, if anybody else waits.
func (h *Hub) JoinFirst(w *Waiter, ch Channel) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t := h.topics[ch]; t != nil && t.first != nil {
		return false
	}
	return h.join(w, ch)
}

func (h *Hub) join(w *Waiter, ch Channel) (turn bool) {
	t := h.topics[ch]
	if t == nil {
		t = &topic{hub: h, channel: ch}
		h.topics[ch] = t
	}
	w.topic = t
	if t.push(w); t.first == w {
		t.busy = w // nobody has asked Redis yet
		return true
	}
	w.turn = make(chan struct{}, 1)
	return false
}

// Len returns the number of channels that have waiters or a subscription.
func (h *Hub) Len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.topics)
}

// message handles an unlock message.
func (h *Hub) message(ch Channel, payload string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.topics[ch]
	if t == nil || h.closed {
		return
	}
	if payload == "1" {
		t.wakeAll()
	} else {
		t.wakeFirst()
	}
}
