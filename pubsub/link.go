package pubsub

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

const (
	plainLink = "" // the one link for plain channels, to whichever node the client picks

	subscribeBatch   = 128              // most commands in one pipeline: a slow line delays no more than these
	subscribeTimeout = 10 * time.Second // then the connection counts as broken; rueidis' own write time-out
	minBackoff       = 10 * time.Millisecond
	maxBackoff       = time.Second
	failoverCheck    = time.Second // how often a sentinel client's idea of the master is compared; sends nothing
)

// subscription is the state of a topic's subscription. Hub.mu guards it.
type subscription struct {
	want   bool  // the queue needs it
	on     bool  // the server confirmed it
	link   *link // which has it, or is asked to have it
	queued bool  // the link will look at it
	op     op    // the link's command about it that is under way
}

type op int8

const (
	noOp op = iota
	subscribing
	unsubscribing
)

func (s *subscription) idle() bool { return !s.want && !s.on && !s.queued && s.op == noOp }

// subscribe asks for the subscription. When it is confirmed, the first waiter is woken.
func (t *topic) subscribe() {
	if t.sub.want {
		return
	}
	t.sub.want = true
	if t.sub.on && t.sub.op != unsubscribing {
		t.wakeFirst() // still standing from the queue before
		return
	}
	t.reconcile()
}

func (t *topic) unsubscribe() {
	t.sub.want = false
	t.reconcile()
}

// reconcile brings the link to look at the topic if what is differs from what is wanted. A command
// under way is waited for: its end comes here again.
func (t *topic) reconcile() {
	s := &t.sub
	if s.want == s.on || s.queued || s.op != noOp || t.hub.closed {
		return
	}
	if s.want {
		if s.link = t.hub.route(t.channel); s.link == nil {
			return // the router comes here again when it knows the node
		}
	}
	s.queued = true
	s.link.enqueue(t)
}

// link is one connection for subscriptions and the goroutine that serves it; Hub.Close ends both.
type link struct {
	hub  *Hub
	addr string
	work chan struct{} // capacity 1: there may be something in dirty

	// Guarded by Hub.mu.
	dirty []*topic // to be looked at
	epoch int      // counts connections, so that a late callback of an old one is known
}

// linkTo returns the link to a node, and starts it if there is none yet. Hub.mu is held.
func (h *Hub) linkTo(addr string) *link {
	l := h.links[addr]
	if l == nil {
		l = &link{hub: h, addr: addr, work: make(chan struct{}, 1)}
		h.links[addr] = l
		h.wg.Add(1)
		go l.run()
	}
	return l
}

func (l *link) enqueue(t *topic) {
	l.dirty = append(l.dirty, t)
	l.wake()
}

func (l *link) wake() {
	select {
	case l.work <- struct{}{}:
	default:
	}
}

// run connects when there is something to do, and connects again when the connection broke, until
// the hub closes.
func (l *link) run() {
	defer l.hub.wg.Done()
	backoff := minBackoff
	for {
		select {
		case <-l.work:
		case <-l.hub.ctx.Done():
			return
		}
		began := time.Now()
		err := l.connectAndServe()
		if l.hub.ctx.Err() != nil {
			return
		}
		l.down(err)
		if time.Since(began) > maxBackoff {
			backoff = minBackoff
		}
		select {
		case <-time.After(backoff):
		case <-l.hub.ctx.Done():
			return
		}
		backoff = min(2*backoff, maxBackoff)
	}
}

var (
	errFailover    = errors.New("another node is the master now")
	errUnknownNode = errors.New("the client does not know the node")
)

// connectAndServe returns only in the following cases: the connection broke, the client does not
// know the node or follows another master, or the hub closes. It leaves no connection behind.
func (l *link) connectAndServe() error {
	h := l.hub
	nodes := h.rdb.Nodes()
	var client rueidis.Client = h.rdb
	if l.addr != plainLink {
		if client = nodes[l.addr]; client == nil {
			return errUnknownNode
		}
	}
	conn, _ := client.Dedicate()
	defer conn.Close() // gives it back, too

	h.mu.Lock()
	l.epoch++
	epoch := l.epoch
	h.mu.Unlock()
	lost := conn.SetPubSubHooks(rueidis.PubSubHooks{
		OnMessage: func(m rueidis.PubSubMessage) {
			h.message(Channel{m.Channel, l.addr != plainLink}, m.Message)
		},
		OnSubscription: func(s rueidis.PubSubSubscription) { l.confirmed(epoch, s) },
	})

	var failover <-chan time.Time
	if h.rdb.Mode() == rueidis.ClientModeSentinel {
		ticker := time.NewTicker(failoverCheck)
		defer ticker.Stop()
		failover = ticker.C
	}
	var retry <-chan time.Time
	for {
		batch := l.take()
		if len(batch) == 0 {
			select {
			case <-l.work:
			case <-retry:
				retry = nil
				l.requeue()
			case err := <-lost:
				return err
			case <-failover:
				if !sameNodes(nodes, h.rdb.Nodes()) {
					return errFailover
				}
			case <-h.ctx.Done():
				return h.ctx.Err()
			}
			continue
		}
		again, err := l.send(conn, batch)
		if err != nil {
			return err
		}
		if again && retry == nil {
			retry = time.After(maxBackoff / 4)
		}
	}
}

func sameNodes(a, b map[string]rueidis.Client) bool {
	return maps.EqualFunc(a, b, func(rueidis.Client, rueidis.Client) bool { return true })
}

// take returns topics with something to do, at most a batch of them, their op set.
func (l *link) take() []*topic {
	h := l.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	var batch []*topic
	for len(l.dirty) > 0 && len(batch) < subscribeBatch {
		t := l.dirty[0]
		l.dirty[0] = nil
		l.dirty = l.dirty[1:]
		s := &t.sub
		s.queued = false
		switch {
		case s.want && !s.on:
			s.op = subscribing
		case !s.want && s.on:
			s.op = unsubscribing
		default:
			t.settle()
			continue
		}
		batch = append(batch, t)
	}
	return batch
}

// send carries out the ops of a batch. It reports whether some have to be tried again later, and
// returns an error if the connection is broken.
func (l *link) send(conn rueidis.DedicatedClient, batch []*topic) (again bool, err error) {
	h := l.hub
	cmds := make([]rueidis.Completed, len(batch))
	h.mu.Lock()
	for i, t := range batch {
		cmds[i] = command(conn.B(), t.sub.op, t.channel)
	}
	h.mu.Unlock()
	ctx, cancel := context.WithTimeout(h.ctx, subscribeTimeout)
	defer cancel()
	results := conn.DoMulti(ctx, cmds...)

	h.mu.Lock()
	defer h.mu.Unlock()
	for i, t := range batch {
		if err := results[i].NonRedisError(); err != nil {
			return false, err // down puts the ops of all of them right
		}
		if l.finish(t, results[i].Error()) {
			again = true
		}
	}
	return again, nil
}

func command(b rueidis.Builder, op op, ch Channel) rueidis.Completed {
	switch {
	case op == subscribing && ch.Sharded:
		return b.Ssubscribe().Channel(ch.Name).Build()
	case op == subscribing:
		return b.Subscribe().Channel(ch.Name).Build()
	case ch.Sharded:
		return b.Sunsubscribe().Channel(ch.Name).Build()
	default:
		return b.Unsubscribe().Channel(ch.Name).Build()
	}
}

// finish ends a topic's op with the server's answer. It reports whether to try again later.
func (l *link) finish(t *topic, err error) (again bool) {
	op := t.sub.op
	t.sub.op = noOp
	defer t.settle()
	if err == nil {
		t.reconcile()
		return false
	}
	if op == unsubscribing { // the server does not know the channel, or not here: nothing to give back
		t.sub.on = false
		t.reconcile()
		return false
	}
	redisErr, _ := rueidis.IsRedisErr(err)
	if addr, moved := redisErr.IsMoved(); moved {
		l.hub.learn(t.channel, addr)
		t.reconcile()
		return false
	}
	if refused(redisErr) {
		t.refuse(err)
		return false
	}
	return true
}

// refuse gives up on a subscription: all that wait now are told, who joins later asks anew.
func (t *topic) refuse(err error) {
	t.fail(fmt.Errorf("subscribe to channel %q: %w", t.channel.Name, err))
	t.sub.want = false
}

// refused reports whether asking again would be answered the same way.
func refused(err *rueidis.RedisError) bool {
	text := strings.TrimPrefix(err.Error(), "ERR ")
	for _, prefix := range []string{"NOPERM", "NOAUTH", "WRONGPASS", "unknown command"} {
		if strings.HasPrefix(text, prefix) {
			return true
		}
	}
	return false
}

// requeue looks again at all topics of the link that are not as they should be.
func (l *link) requeue() {
	h := l.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, t := range h.topics {
		if t.sub.link == l {
			t.reconcile()
		}
	}
}

// confirmed handles what the server says of a subscription. It runs on the reading goroutine of
// the connection.
func (l *link) confirmed(epoch int, s rueidis.PubSubSubscription) {
	h := l.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.topics[Channel{s.Channel, l.addr != plainLink}]
	if t == nil || t.sub.link != l || l.epoch != epoch || h.closed {
		return
	}
	switch s.Kind {
	case "subscribe", "ssubscribe":
		t.sub.on = true
		if t.sub.want {
			t.wakeFirst()
		}
	case "unsubscribe", "sunsubscribe":
		t.sub.on = false
		if t.sub.op == noOp { // not ours: the slot moved to another node
			h.forgetSlot(t.channel)
			t.reconcile()
		}
	}
}

// down puts the topics of a broken connection right: nothing is subscribed any more, and what is
// still wanted is asked for anew, maybe at another node.
func (l *link) down(err error) {
	h := l.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	l.epoch++
	l.dirty = nil
	h.forget(l.addr)
	redisErr, _ := rueidis.IsRedisErr(err)
	for _, t := range h.topics {
		if t.sub.link != l {
			continue
		}
		t.sub.on, t.sub.op, t.sub.queued = false, noOp, false
		if redisErr != nil && refused(redisErr) {
			t.refuse(err)
		}
		if errors.Is(err, errUnknownNode) {
			// It joined the cluster lately. What tells the client of it is a command for a key of
			// the slot, and that is what the waiter sends.
			t.wakeFirst()
		}
		t.reconcile()
		t.settle()
	}
}
