package pubsub

import (
	"errors"
	"sync"
	"time"

	"github.com/redis/rueidis"
)

// Hub queues the waiters of one process and keeps their subscriptions. It is safe for concurrent use.
type Hub struct {
	// Aside is how long the first waiter sometimes steps aside for other processes, where unlocks notify all. Set it
	// before the first Join; 0: all ask at once.
	Aside time.Duration
	conns *connections // the lower half, with a lock of its own

	// mu guards the fields below and everything reachable from them: topics and waiters. It is held for memory
	// operations only. connections.mu is taken under it, and no other lock.
	mu       sync.Mutex
	topics   map[Queue]*topic
	spare    []*topic // topics without a timer or a subscription, for reuse
	yields   yields
	presence presence

	draining bool // every waiter has an error, except those that go ahead, and those given the turn since
	closed   bool // those have one, too
}

// New returns a hub that subscribes through rdb. Close ends it. With each channel it also subscribes to <name>:<id>,
// on which other processes announce grants to this process, id. If all waiters there are to have a place in Redis's
// queue, it subscribes to <name>:rlock_queue, too. If id is "" there are no grants.
func New(rdb rueidis.Client, id string) *Hub {
	return &Hub{conns: newConnections(rdb, id), topics: make(map[Queue]*topic)}
}

// ErrClosed is the error of waiters when the hub is closed.
var ErrClosed = errors.New("hub closed")

// Drain ends all waits with [ErrClosed], also later ones. Waiters that go ahead are exempt: they have what the others
// wait for, and finish. From now on a subscription ends when no waiter needs it.
func (h *Hub) Drain() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.draining = true
	for _, t := range h.topics {
		t.stopAll(ErrClosed, func(w *Waiter) bool { return !w.Ahead })
		t.tellClaimed()
	}
	h.conns.drain()
}

// Stop is the part of Close that does not wait: it ends all waits with [ErrClosed], also later ones.
func (h *Hub) Stop() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return
	}
	h.closed = true
	for _, t := range h.topics {
		t.stopTimer()
		t.stopAll(ErrClosed, func(*Waiter) bool { return true })
		t.tellClaimed()
	}
	h.conns.stop()
}

// Close stops the hub, ends all subscriptions, and returns when the hub's goroutines have ended, except those of
// rueidis's that still wait for a connection from an exhausted pool.
func (h *Hub) Close() {
	h.Stop()
	h.conns.close()
}

// WarnDeaf sets a function that is called when a server answers, but has taken no subscription for a second: once,
// until it takes one. node is its address, or "" for any. The function must return at once, and may not call the hub.
// Call WarnDeaf before the first Join.
func (h *Hub) WarnDeaf(deaf func(node string, err error)) { h.conns.deaf = deaf }

// maxSpare bounds the topics kept for reuse. Most locks are free when requested, and need a topic only for that
// moment.
const maxSpare = 64

// Waiting returns the number of waiters that sleep: they were refused, and do not have the turn.
func (h *Hub) Waiting() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, t := range h.topics {
		if n += int(t.parked); t.current != nil && t.current.turn != nil {
			n--
		}
	}
	return n
}

// Queued returns how many waiters of q have been put to sleep, and how many of them want more than a share.
func (h *Hub) Queued(q Queue) (all, exclusive int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t := h.topics[q]; t != nil {
		all, exclusive = int(t.parked), int(t.keen)
	}
	return all, exclusive
}

// Outside returns how often this process counts as a listener out of line on a channel: 0 or 1.
func (h *Hub) Outside(ch Channel) int { return h.conns.outside(ch) }

// Look wakes the waiter of q, if any, whose place has that owner: it may have lost the place. Without a live
// subscription, the confirmation makes it due.
func (h *Hub) Look(q Queue, owner string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t := h.topics[q]; t != nil && t.isLive() {
		if w := t.places[owner]; w != nil {
			t.wake(w)
		}
	}
}
