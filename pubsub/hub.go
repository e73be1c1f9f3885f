package pubsub

import (
	"context"
	"errors"
	"sync"

	"github.com/redis/rueidis"
)

// Channel names a pub/sub channel.
type Channel struct {
	Name    string
	Sharded bool // SSUBSCRIBE instead of SUBSCRIBE
}

// Queue names what its waiters wait for: a lock, whose unlocks are published on a channel. Two
// locks may have one channel: Redisson's rule for names makes it the same for x and {x}.
type Queue struct {
	Lock    string
	Channel Channel
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
	topics map[Queue]*topic
	spare  []*topic // to be used again: most locks are free, and their queues end as they began
	subs   map[Channel]*subscription
	links  map[string]*link // by node address; plain channels use plainLink
	router router
	clock  uint64 // ticks when somebody joins, a subscription is confirmed, or a hold may have ended
	closed bool
}

// New returns a hub that subscribes through rdb. Close ends it.
func New(rdb rueidis.Client) *Hub {
	ctx, cancel := context.WithCancel(context.Background())
	return &Hub{
		rdb:    rdb,
		ctx:    ctx,
		cancel: cancel,
		topics: make(map[Queue]*topic),
		subs:   make(map[Channel]*subscription),
		links:  make(map[string]*link),
		router: router{addrs: make(map[uint16]string)},
	}
}

// ErrClosed is the news for waiters when the hub is closed.
var ErrClosed = errors.New("hub closed")

// Stop is the part of Close that takes no time: it tells all waiters that they wait in vain ([ErrClosed]), those that join
// later, too.
func (h *Hub) Stop() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return
	}
	h.closed = true
	for _, t := range h.topics {
		t.stopTimer()
		for w := t.first; w != nil; w = w.next {
			w.stop(ErrClosed)
		}
	}
	for _, s := range h.subs {
		s.stopTimer()
	}
}

// Close stops the hub, ends all subscriptions, and returns when the hub's goroutines are gone.
func (h *Hub) Close() {
	h.Stop()
	h.cancel()
	h.wg.Wait()
}

// Join puts w at the end of the queue q. It reports true if w has the turn at once, because
// nobody else waits there, and the lock is not known to be held by this process. Otherwise w gets it through
// [Waiter.Turn].
//
// Each Join is followed by exactly one [Waiter.Done] or [Waiter.Leave].
func (h *Hub) Join(w *Waiter, q Queue) (turn bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.join(w, q)
	if t.first == w {
		lasts := t.lasts()
		if lasts == 0 {
			t.turnAtOnce(w)
			return true
		}
		t.need = true
		t.setTimer(lasts)
	}
	w.park()
	return false
}

// JoinFirst is Join for a caller that does not want to wait: it reports false, and w has not
// joined, if anybody else waits.
func (h *Hub) JoinFirst(w *Waiter, q Queue) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t := h.topics[q]; t != nil && t.first != nil {
		return false
	}
	h.join(w, q).turnAtOnce(w)
	return true
}

func (h *Hub) join(w *Waiter, q Queue) *topic {
	t := h.topics[q]
	if t == nil {
		t = h.newTopic(q)
	}
	h.clock++
	w.topic, w.joined = t, h.clock
	t.push(w)
	return t
}

// turnAtOnce gives the turn to the only waiter. If the subscription stands, its attempt needs none that follows.
func (t *topic) turnAtOnce(w *Waiter) {
	t.busy, t.began = w, t.hub.clock
	t.need = t.sub != nil && t.sub.stands()
}

// maxSpare is how many topics are kept. More queues at once than that are rare.
const maxSpare = 128

func (h *Hub) newTopic(q Queue) *topic {
	var t *topic
	if n := len(h.spare) - 1; n >= 0 {
		t, h.spare = h.spare[n], h.spare[:n]
	} else {
		t = &topic{hub: h}
	}
	t.queue = q
	h.topics[q] = t
	return t
}

// drop forgets an empty topic.
func (h *Hub) drop(t *topic) {
	delete(h.topics, t.queue)
	// The subscription of its next queue may be older than what it knows.
	t.sub, t.ours = nil, ours{}
	if t.timer == nil && len(h.spare) < maxSpare { // a timer that was stopped may be firing nevertheless
		h.spare = append(h.spare, t)
	}
}

// Len returns the number of queues that have waiters or a subscription.
func (h *Hub) Len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.topics)
}

// message handles an unlock message.
func (h *Hub) message(ch Channel, payload string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.subs[ch]
	if s == nil || h.closed {
		return
	}
	for _, t := range s.topics {
		t.over()
		if payload == "1" {
			t.wakeAll()
		} else {
			t.wakeFirst()
		}
	}
}
