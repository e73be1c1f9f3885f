package pubsub

import (
	"errors"
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
	failoverCheck    = time.Second     // how often a sentinel client's idea of the master is compared; sends nothing
	maxIdle          = 5 * time.Second // then a connection without subscriptions is given back
	closedThrice     = 3               // so often in a row ErrClosing is not a failover under way, but a closed client
)

// link is one connection for subscriptions and the goroutine that serves it; Hub.Close ends both.
type link struct {
	hub  *Hub
	addr string
	work chan struct{} // capacity 1: there may be something in dirty

	// Guarded by Hub.mu.
	dirty     []*subscription // to be looked at
	epoch     int             // counts connections, so that a late callback of an old one is known
	suspected bool            // the node may be cut off, see cutoff.go
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

func (l *link) enqueue(s *subscription) {
	l.dirty = append(l.dirty, s)
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
	backoff, closings := minBackoff, 0
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
		if errors.Is(err, rueidis.ErrClosing) {
			closings++
		} else {
			closings = 0
		}
		l.down(err, closings >= closedThrice)
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
	errIdle        = errors.New("nobody waits")
)

// connectAndServe returns only in the following cases: the connection broke, the client does not
// know the node or follows another master, the node is cut off, nobody has waited for a while, or
// the hub closes. It leaves no connection behind.
func (l *link) connectAndServe() error {
	h := l.hub
	nodes := h.rdb.Nodes()
	var client rueidis.Client = h.rdb
	if l.addr != plainLink {
		if client = nodes[l.addr]; client == nil {
			return errUnknownNode
		}
	}
	conn := l.dedicate(client)
	if conn == nil {
		return h.ctx.Err()
	}
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
	if err := l.inTouch(conn); err != nil {
		return err
	}
	var retry <-chan time.Time
	for {
		if l.suspicious() {
			if err := l.inTouch(conn); err != nil {
				return err
			}
		}
		batch := l.take()
		if len(batch) == 0 {
			var idle <-chan time.Time
			if l.unused() {
				idle = time.After(maxIdle)
			}
			select {
			case <-l.work:
			case <-idle:
				if l.unused() {
					return errIdle
				}
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
		again, err := l.send(conn, lost, batch)
		if err != nil {
			return err
		}
		if again && retry == nil {
			retry = time.After(maxBackoff / 4)
		}
	}
}

// dedicate takes a connection, or returns nil if the hub closes first. The goroutine that it may then
// leave behind ends when rueidis has one for it to close: it offers no way to stop asking, so a pool
// that others have exhausted would keep Close waiting for them.
func (l *link) dedicate(client rueidis.Client) rueidis.DedicatedClient {
	conns := make(chan rueidis.DedicatedClient)
	go func() {
		conn, _ := client.Dedicate()
		select {
		case conns <- conn:
		case <-l.hub.ctx.Done():
			conn.Close()
		}
	}()
	select {
	case conn := <-conns:
		return conn
	case <-l.hub.ctx.Done():
		return nil
	}
}

// unused reports whether no subscription needs the link.
func (l *link) unused() bool {
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	for _, s := range l.hub.subs {
		if s.link == l {
			return false
		}
	}
	return true
}

func sameNodes(a, b map[string]rueidis.Client) bool {
	return maps.EqualFunc(a, b, func(rueidis.Client, rueidis.Client) bool { return true })
}

// take returns subscriptions with something to do, at most a batch of them, their op set.
func (l *link) take() []*subscription {
	h := l.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	var batch []*subscription
	for len(l.dirty) > 0 && len(batch) < subscribeBatch {
		s := l.dirty[0]
		l.dirty[0] = nil
		l.dirty = l.dirty[1:]
		s.queued = false
		switch want := s.want(); {
		case want && !s.on:
			s.op = subscribing
		case !want && s.on:
			s.op = unsubscribing
		default:
			s.settle()
			continue
		}
		batch = append(batch, s)
	}
	return batch
}

// finish ends an op with the server's answer. It reports whether to try again later.
func (l *link) finish(s *subscription, err error) (again bool) {
	op := s.op
	s.op = noOp
	defer s.settle()
	if err == nil {
		s.reconcile()
		return false
	}
	if op == unsubscribing { // the server does not know the channel, or not here: nothing to give back
		s.off()
		s.reconcile()
		return false
	}
	redisErr, _ := rueidis.IsRedisErr(err)
	if addr, moved := redisErr.IsMoved(); moved {
		l.hub.learn(s.channel, addr)
		s.reconcile()
		return false
	}
	if refused(redisErr) {
		s.refuse(err)
		return false
	}
	return true
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

// requeue looks again at all subscriptions of the link that are not as they should be.
func (l *link) requeue() {
	h := l.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.subs {
		if s.link == l {
			s.reconcile()
		}
	}
}

// confirmed handles what the server says of a subscription. It runs on the reading goroutine of
// the connection.
func (l *link) confirmed(epoch int, event rueidis.PubSubSubscription) {
	h := l.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.subs[Channel{event.Channel, l.addr != plainLink}]
	if s == nil || s.link != l || l.epoch != epoch || h.closed {
		return
	}
	switch event.Kind {
	case "subscribe", "ssubscribe":
		s.stand()
	case "unsubscribe", "sunsubscribe":
		s.off()
		if s.op == noOp { // not ours: the slot moved to another node
			h.forgetSlot(s.channel)
			s.reconcile()
			s.settle()
		}
	}
}

// down puts the subscriptions of a broken connection right: none is standing any more, and what is
// still wanted is asked for anew, maybe at another node, unless that is hopeless.
func (l *link) down(err error, hopeless bool) {
	h := l.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	l.epoch++
	l.dirty, l.suspected = nil, false
	h.forget(l.addr)
	redisErr, _ := rueidis.IsRedisErr(err)
	for _, s := range h.subs {
		if s.link != l {
			continue
		}
		s.off()
		s.op, s.queued = noOp, false
		if hopeless || redisErr != nil && refused(redisErr) {
			s.refuse(err)
		}
		if errors.Is(err, errUnknownNode) {
			// It joined the cluster lately. What tells the client of it is a command for a key of
			// the slot, and that is what the waiter sends.
			s.wakeFirst()
		}
		s.reconcile()
		s.settle()
	}
}
