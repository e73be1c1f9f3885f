package pubsub

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"
)

// Channel names a pub/sub channel. Grants to this process are told on another one beside it, see [New].
type Channel struct {
	Name    string
	Sharded bool // SSUBSCRIBE instead of SUBSCRIBE
}

// Queue names what its waiters wait for: a lock, whose unlocks are published on a channel. Two
// locks may have one channel: Redisson's rule for names makes it the same for x and {x}.
type Queue struct {
	Lock    string
	Channel Channel
	Places  bool // whoever waits there is to have the process's place in Redis's queue, so it need not be told what all are told
	Each    bool // each waiter has a place of its own in Redis's queue, not only one of each process
	Shared  bool // waiters may want a share: one that gets it lets others in, so a message to all is one for the first
	Counts  bool // what is waited for is a number of permits, which messages tell; one with a leading zero is for those who have no place
}

// Hub queues the waiters of one process and keeps their subscriptions. It is safe for concurrent
// use.
type Hub struct {
	// Aside is for how long the first waiter steps aside for other processes, now and then, where all are told of an unlock. It is set before
	// the first Join; 0: all ask at once.
	Aside time.Duration

	rdb    rueidis.Client
	grants string          // what the name of a channel for grants ends with; "": there are none
	ctx    context.Context // ends with Close, and with it every goroutine of the hub
	cancel context.CancelFunc
	wg     sync.WaitGroup // links and the router; nothing is added once closed is set, but by these

	// mu guards the following and all that is reachable from it: topics, waiters, links. It is
	// held for memory operations only, and no other lock is taken under it.
	mu     sync.Mutex
	topics map[Queue]*topic
	spare  []*topic // in which nobody slept, to be used again
	subs   map[Channel]*subscription
	links  map[string]*link // by node address; plain channels use plainLink
	router router

	draining bool // then every waiter has an error but those that go ahead, and those that have the turn since
	closed   bool // then these have one, too
}

// line is what the name of the channel ends with to which those in line listen beside the unlock channel. Nothing is ever said there. Who
// listens to the unlock channel alone is not in line, and has to be told of unlocks: see release.lua.
const line = ":rlock_queue"

// InLine is the channel of those who are in line, beside the unlock channel.
func InLine(ch Channel) Channel { return Channel{ch.Name + line, ch.Sharded} }

// New returns a hub that subscribes through rdb. Close ends it. With each channel it also subscribes to
// the channel <name>:<id>, on which other processes tell this one, id, that it has a lock; and, if all who wait there
// are to have a place in Redis's queue, to <name>:rlock_queue. If id is "" there are no grants.
func New(rdb rueidis.Client, id string) *Hub {
	ctx, cancel := context.WithCancel(context.Background())
	grants := ""
	if id != "" {
		grants = ":" + id
	}
	return &Hub{
		rdb:    rdb,
		grants: grants,
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

// Drain tells all waiters that they wait in vain ([ErrClosed]), also those that join later, but for those that go ahead: they have
// what the others wait for, and finish. Subscriptions that no waiter needs end from now on.
func (h *Hub) Drain() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.draining = true
	for _, t := range h.topics {
		for w := t.first; w != nil; w = w.next {
			if !w.Ahead {
				w.stop(ErrClosed)
			}
		}
	}
	for _, s := range h.subs {
		s.endLinger()
	}
}

// Stop is the part of Close that takes no time: it tells all waiters that they wait in vain
// ([ErrClosed]), also those that join later.
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

// Close stops the hub, ends all subscriptions, and returns when the hub's goroutines are gone. One
// for each link may be left, which waits for a connection from an exhausted pool, see dedicate.
func (h *Hub) Close() {
	h.Stop()
	h.cancel()
	h.wg.Wait()
}

// Join puts w at the end of the queue q, or ahead of all others. It reports true if w may ask at once: nobody else
// waits there, and this process is not known to hold the lock. Then it has the turn, or asks beside the queue if it
// wants a share of its own; it may do that, too, while others ask for a share. Otherwise w hears of its turn through [Waiter.Turn].
//
// Each Join is followed by exactly one [Waiter.Done] or [Waiter.Leave].
func (h *Hub) Join(w *Waiter, q Queue) (turn bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.topic(w, q)
	if t.first == nil {
		lasts := t.localHoldLasts()
		if lasts == 0 || q.Each {
			t.askAtOnce(w)
			return true
		}
		t.need = true
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
	if q.Each && t.live() && w.err == nil { // or it is due when the subscription is confirmed
		t.makeDue(w)
		t.dispatch()
	}
	return false
}

// JoinFirst is Join for a caller that does not want to wait: it reports false, and w has not
// joined, if anybody else waits.
func (h *Hub) JoinFirst(w *Waiter, q Queue) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t := h.topics[q]; t != nil && t.first != nil && (!w.Shared || !t.isShareAsked()) {
		return false
	}
	h.topic(w, q).askAtOnce(w)
	return true
}

// MayShare reports whether somebody who wants a share need not wait behind anybody: the queue is empty, or there is only one who asks for a
// share.
func (h *Hub) MayShare(q Queue) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.topics[q]
	return t == nil || (t.first == nil || t.isShareAsked()) && t.localHoldLasts() == 0
}

// isShareAsked reports whether the first in the queue asks for a share, and those behind it, if any, wait for nothing else.
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

// askAtOnce has a waiter ask that found the queue empty. If the subscription is live, no other attempt need
// follow its turn.
func (t *topic) askAtOnce(w *Waiter) {
	if w.Shared && (!w.Joint || t.first != nil) {
		t.goApart(w)
		return
	}
	t.push(w)
	t.begin(w)
	t.need = t.live()
}

// drop forgets an empty topic.
func (h *Hub) drop(t *topic) {
	delete(h.topics, t.queue)
	if !t.slept && t.sub == nil && t.timer == nil && len(h.spare) < maxSpare { // nothing refers to it any more
		h.spare = append(h.spare, t)
	}
	t.sub = nil
}

// maxSpare is how many topics are kept. Most locks are free when they are asked for: each of them has a topic for as long as that takes.
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
		for w := t.first; w != nil; w = w.next {
			if w != t.current && w.turn != nil && w.err == nil && !w.askingConcurrently {
				n++
			}
		}
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
	for w := t.first; w != nil; w = w.next {
		if w.turn == nil || w.err != nil { // it has asked for the first time, or leaves
			continue
		}
		if all++; !w.Shared {
			exclusive++
		}
	}
	return all, exclusive
}

// Outside is how often this process is seen to listen to a channel as somebody who is not in line: once, or not.
func (h *Hub) Outside(ch Channel) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.subs[ch]; s != nil && s.confirmed && !slices.Contains(s.names, ch.Name+line) {
		return 1
	}
	return 0
}

// message handles a message of any channel.
func (h *Hub) message(ch Channel, payload string) {
	h.mu.Lock()
	if s := h.subs[ch]; s != nil && s.ear != nil {
		h.mu.Unlock()
		s.ear.hear(payload)
		return
	}
	defer h.mu.Unlock()
	if s := h.subs[ch]; s != nil && s.waiter != nil {
		s.waiter.topic.wake(s.waiter)
	} else if s != nil {
		s.unlocked(payload)
	}
	if s := h.beside(ch, h.grants); s != nil {
		s.told(payload)
	}
}

// beside returns the subscription that ch is a channel of beside the unlock channel, as the end of its name tells. A lock may have a
// name that ends so, too: then ch is also the unlock channel of that.
func (h *Hub) beside(ch Channel, end string) *subscription {
	name, ok := strings.CutSuffix(ch.Name, end)
	if end == "" || !ok {
		return nil
	}
	ch.Name = name
	if s := h.subs[ch]; s != nil && s.waiter == nil && s.ear == nil {
		return s
	}
	return nil
}

// Ending tells the hub that a holder of q is about to give it back: whoever joins from now on asks
// Redis.
func (h *Hub) Ending(q Queue) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.freed(q)
}

// Wake wakes the first waiter of q, as a message would.
func (h *Hub) Wake(q Queue) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t := h.freed(q); t != nil {
		t.wakeFirst()
	}
}

// Look wakes the waiter of q that has a place as that owner, if there still is one: it may have lost the place. Without a live
// subscription it is due when that is confirmed.
func (h *Hub) Look(q Queue, owner string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t := h.topics[q]; t != nil && t.live() {
		if w := t.at(owner); w != nil {
			t.wake(w)
		}
	}
}

// Undone is Wake after a grant that could not be kept: nothing lingers for a call that failed.
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
