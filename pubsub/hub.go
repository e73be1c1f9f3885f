package pubsub

import (
	"errors"
	"sync"
	"time"

	"github.com/redis/rueidis"
)

// Queue names the lock that its waiters want, and the channel on which its unlocks are published. Two locks may have
// one channel: Redisson's naming rule maps x and {x} to the same.
type Queue struct {
	Lock    string
	Channel Channel
	Places  bool // waiters get the process's place in Redis's queue, so they need no messages to all
	Each    bool // each waiter has a place of its own in Redis's queue, not one per process
	Shared  bool // waiters may want a share, and the first to get one lets others in, so a message to all is for the first
	Counts  bool // waiters want permits, and messages carry their number; a leading zero marks those for processes without a place
}

// Hub queues the waiters of one process and keeps their subscriptions. It is safe for concurrent use.
type Hub struct {
	// Aside is how long the first waiter sometimes steps aside for other processes, where unlocks notify all. Set it
	// before the first Join; 0: all ask at once.
	Aside   time.Duration
	conns   *connections // the lower half, with a lock of its own
	wakings wakings
	wg      sync.WaitGroup // the goroutine of wakings

	// mu guards the fields below and everything reachable from them: topics and waiters. It is held for memory
	// operations only. connections.mu is taken under it, and no other lock.
	mu       sync.Mutex
	topics   map[Queue]*topic
	spare    []*topic // topics in which nobody slept, for reuse
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
	h.wakings.close()
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
	h.wg.Wait()
	h.conns.close()
}

// WarnDeaf sets a function that is called when a server answers, but has taken no subscription for a second: once,
// until it takes one. node is its address, or "" for any. The function must return at once, and may not call the hub.
// Call WarnDeaf before the first Join.
func (h *Hub) WarnDeaf(deaf func(node string, err error)) { h.conns.deaf = deaf }

// Join puts w at the end of the queue q, or ahead of all others. It returns true if w may ask at once: nobody else
// waits there, and this process is not known to hold the lock. Then w has the turn, or asks beside the queue if it
// wants a share of its own. It may also ask beside the queue while others ask for a share. Otherwise [Waiter.Turn]
// announces its turn.
//
// Each Join is followed by exactly one [Waiter.Done] or [Waiter.Leave].
func (h *Hub) Join(w *Waiter, q Queue) (turn bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.topic(w, q)
	if t.first == nil {
		lasts := t.localHoldLasts()
		pause := h.yields.left(w, q)
		switch {
		case q.Each || lasts == 0 && pause == 0:
			t.askAtOnce(w)
			return true
		case lasts == 0:
			t.push(w)
			w.yields = true
			t.subscribeIfLive()
			w.park()
			if !t.asksIn(pause) { // it has too little time by now
				t.wakeFirst()
			}
			return false
		}
		t.keepSubscription()
		t.setTimer(lasts)
	}
	if w.Shared && !w.Joint && t.isShareAsked() {
		t.goApart(w)
		return true
	}
	if w.Ahead && t.first != nil {
		t.pushAhead(w)
		w.park()
		t.wakeFirst()
		return false
	}
	t.push(w)
	w.park()
	if q.Each && t.isLive() && w.err == nil { // otherwise the confirmation of the subscription makes it due
		t.makeDue(w)
		t.dispatch()
	}
	return false
}

// JoinFirst is Join for a caller that does not want to wait: if anybody else waits, w does not join, and JoinFirst
// returns false.
func (h *Hub) JoinFirst(w *Waiter, q Queue) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t := h.topics[q]; t != nil && t.first != nil && (!w.Shared || !t.isShareAsked()) {
		return false
	}
	h.topic(w, q).askAtOnce(w)
	return true
}

// MayShare reports whether a waiter for a share could ask at once: the queue is empty, or its first waiter asks for a
// share and nobody wants more.
func (h *Hub) MayShare(q Queue) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.topics[q]
	return t == nil || (t.first == nil || t.isShareAsked()) && t.localHoldLasts() == 0
}

// isShareAsked reports whether the first in the queue asks for a share, and those behind it, if any, also want
// shares.
func (t *topic) isShareAsked() bool {
	w := t.first
	return w != nil && w == t.current && w.Shared && t.exclusive == 0
}

// topic returns the topic of a queue, for a waiter that joins.
func (h *Hub) topic(w *Waiter, q Queue) *topic {
	t := h.topics[q]
	if t == nil {
		if last := len(h.spare) - 1; last >= 0 {
			t, h.spare = h.spare[last], h.spare[:last]
		} else {
			t = new(topic)
		}
		*t = topic{hub: h, queue: q}
		h.topics[q] = t
	}
	w.topic, w.since = t, t.turns
	return t
}

// askAtOnce makes a waiter that found the queue empty ask. If the subscription is live, no other attempt need follow
// its turn.
func (t *topic) askAtOnce(w *Waiter) {
	if w.Shared && (!w.Joint || t.first != nil) {
		t.goApart(w)
		return
	}
	t.push(w)
	t.begin(w)
	t.subscribeIfLive()
}

// drop forgets an empty topic.
func (h *Hub) drop(t *topic) {
	delete(h.topics, t.queue)
	if t.sub != nil {
		t.sub.leave()
		t.sub = nil // late events are for nobody
	} else if !t.slept && t.timer == nil && len(h.spare) < maxSpare { // nothing refers to it any more
		h.spare = append(h.spare, t)
	}
}

// maxSpare bounds the topics kept for reuse. Most locks are free when requested, and need a topic only for that
// moment.
const maxSpare = 64

// IsAwaited reports whether anybody waits in q.
func (h *Hub) IsAwaited(q Queue) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.topics[q]
	return t != nil && t.first != nil
}

// Len returns the number of queues that have waiters or a subscription.
func (h *Hub) Len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.topics)
}

// Waiting returns the number of waiters that sleep: they were refused, and do not have the turn.
func (h *Hub) Waiting() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, t := range h.topics {
		n += t.waiting()
	}
	return n
}

// Queued returns how many waiters of q have been put to sleep, and how many of them want more than a share.
func (h *Hub) Queued(q Queue) (all, exclusive int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.topics[q]
	if t == nil {
		return 0, 0
	}
	return t.queued()
}

// Outside returns how often this process counts as a listener out of line on a channel: 0 or 1.
func (h *Hub) Outside(ch Channel) int {
	if h.conns.isOutOfLine(ch) {
		return 1
	}
	return 0
}

// Ending announces that a holder of q is about to release it: waiters that join from now on ask Redis.
func (h *Hub) Ending(q Queue) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.freed(q)
}

// EndingForAll is [Hub.Ending] for a release that notifies all, this process included. It reports whether that listens.
func (h *Hub) EndingForAll(q Queue) (listens bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.freed(q)
	if t == nil {
		return false
	}
	t.ownUnlockPending, t.rivals.heard = t.isLive(), 0
	return t.ownUnlockPending
}

// Wake wakes the first waiter of q, as a message would.
func (h *Hub) Wake(q Queue) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t := h.freed(q); t != nil {
		t.wakeFirst()
	}
}

// Look wakes the waiter of q, if any, whose place has that owner: it may have lost the place. Without a live
// subscription, the confirmation makes it due.
func (h *Hub) Look(q Queue, owner string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t := h.topics[q]; t != nil && t.isLive() {
		if w := t.places.at(owner); w != nil {
			t.wake(w)
		}
	}
}

// Undone is Wake after a grant that could not be kept: nothing lingers for a failed call.
func (h *Hub) Undone(q Queue) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t := h.freed(q); t != nil {
		t.wakeFirst()
		if t.sub != nil {
			t.sub.endLinger()
		}
	}
}

// freed notes that the lock of q may be free, and returns its topic, if there is one.
func (h *Hub) freed(q Queue) *topic {
	t := h.topics[q]
	if t != nil {
		t.freed()
	}
	return t
}
