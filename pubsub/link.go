package pubsub

import (
	"errors"
	"maps"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

const (
	plainLink = "" // the one link for plain channels, to any node that the client picks

	subscribeBatch   = 128              // most commands in one pipeline: a slow line delays no more than these
	subscribeTimeout = 10 * time.Second // then the connection counts as broken; rueidis's own write time-out
	minBackoff       = 10 * time.Millisecond
	maxBackoff       = time.Second
	failoverCheck    = time.Second     // how often a sentinel client's view of the master is compared; sends nothing
	maxIdle          = 5 * time.Second // then a link without subscriptions ends, and gives its connection back
	closedThrice     = 3               // ErrClosing so often in a row means a closed client, not a failover under way
)

// link is one connection for subscriptions and the goroutine that serves it. Both end when no subscription has used
// the link for maxIdle, or with connections.close.
type link struct {
	conns *connections
	addr  string
	work  chan struct{} // capacity 1: there may be something in dirty

	// Guarded by connections.mu.
	dirty     []*subscription // to be looked at
	epoch     int             // counts lost connections, to recognise their late callbacks
	suspected bool            // the node may be cut off, see cutoff.go
}

// linkTo returns the link to a node, and starts it if there is none. connections.mu is held. The caller must give it a
// subscription before releasing it, or the link might end.
func (c *connections) linkTo(addr string) *link {
	l := c.links[addr]
	if l == nil {
		l = &link{conns: c, addr: addr, work: make(chan struct{}, 1)}
		c.links[addr] = l
		c.wg.Go(l.run)
	}
	return l
}

func (l *link) wake() {
	select {
	case l.work <- struct{}{}:
	default:
	}
}

// end drops the link if no subscription uses it: the next one that needs the node gets a new link.
func (l *link) end() bool {
	c := l.conns
	defer c.lock().Unlock()
	for _, s := range c.subs {
		if s.link == l {
			return false
		}
	}
	delete(c.links, l.addr)
	return true
}

var (
	errEnded       = errors.New("nobody waits")
	errFailover    = errors.New("another node is the master now")
	errUnknownNode = errors.New("the client does not know the node")
)

// run connects when there is something to do, and reconnects after the connection broke.
func (l *link) run() {
	c := l.conns
	backoff, closings := minBackoff, 0
	for {
		select {
		case <-l.work:
		case <-time.After(maxIdle):
			if l.end() {
				return
			}
			continue
		case <-c.ctx.Done():
			return
		}
		began := time.Now()
		err := l.connectAndServe()
		if c.ctx.Err() != nil || errors.Is(err, errEnded) {
			return
		}
		if errors.Is(err, rueidis.ErrClosing) {
			closings++
		} else {
			closings = 0
		}
		l.unsubscribed(err, l.down(err, closings >= closedThrice))
		if time.Since(began) > maxBackoff {
			backoff = minBackoff
		}
		select {
		case <-time.After(backoff):
		case <-c.ctx.Done():
			return
		}
		backoff = min(2*backoff, maxBackoff)
	}
}

// connectAndServe returns only in these cases: the connection broke, the client does not know the node or follows
// another master, the node is cut off, the link has ended, or all of them do. It leaves no connection behind.
func (l *link) connectAndServe() error {
	c := l.conns
	nodes := c.rdb.Nodes()
	var client rueidis.Client = c.rdb
	if l.addr != plainLink {
		if client = nodes[l.addr]; client == nil {
			return errUnknownNode
		}
	}
	var conn rueidis.DedicatedClient
	l.looking(errNoConnection, func() { conn = l.dedicate(client) })
	if conn == nil {
		return c.ctx.Err()
	}
	defer conn.Close() // gives it back, too

	c.mu.Lock()
	epoch := l.epoch
	l.suspected = true // nothing is known about the node yet
	c.mu.Unlock()
	var lost <-chan error
	l.looking(errUnanswered, func() { // with RESP2 this dials
		lost = conn.SetPubSubHooks(rueidis.PubSubHooks{
			OnMessage: func(m rueidis.PubSubMessage) {
				c.message(Channel{m.Channel, l.addr != plainLink}, m.Message)
			},
			OnSubscription: func(s rueidis.PubSubSubscription) { l.onSubscription(epoch, s) },
		})
	})

	var failover <-chan time.Time
	if c.rdb.Mode() == rueidis.ClientModeSentinel {
		ticker := time.NewTicker(failoverCheck)
		defer ticker.Stop()
		failover = ticker.C
	}
	idle := time.NewTimer(maxIdle) // since the last command
	defer idle.Stop()
	var retry <-chan time.Time
	named := false
	work := func(batch []*subscription, suspected bool) error {
		if suspected {
			if err := l.inTouch(conn); err != nil || len(batch) == 0 {
				return err
			}
		}
		again, err := l.send(conn, lost, batch)
		if again && retry == nil {
			retry = time.After(maxBackoff / 4)
		}
		if err != nil || named {
			return err
		}
		named = true // not before: nobody waits for it
		return l.name(conn)
	}
	for {
		if batch, suspected := l.take(); len(batch) > 0 || suspected {
			var err error
			l.looking(errUnanswered, func() { err = work(batch, suspected) })
			if err != nil {
				return err
			}
			if len(batch) > 0 {
				idle.Reset(maxIdle)
				continue
			}
		}
		select {
		case <-l.work:
		case <-idle.C:
			if l.end() {
				return errEnded
			}
			idle.Reset(maxIdle)
		case <-retry:
			retry = nil
			l.requeue()
		case err := <-lost:
			return err
		case <-failover:
			if !maps.EqualFunc(nodes, c.rdb.Nodes(), func(rueidis.Client, rueidis.Client) bool { return true }) {
				return errFailover
			}
		case <-c.ctx.Done():
			return c.ctx.Err()
		}
	}
}

// dedicate takes a connection, or returns nil if connections.close comes first. Only then it leaves a goroutine behind, at
// most one per link, until rueidis has a connection for it to close: rueidis cannot be stopped from asking, and Close
// would have to wait for others that have exhausted the pool. Until then the link itself waits here, so nothing piles
// up.
func (l *link) dedicate(client rueidis.Client) rueidis.DedicatedClient {
	conns := make(chan rueidis.DedicatedClient)
	go func() {
		conn, _ := client.Dedicate()
		select {
		case conns <- conn:
		case <-l.conns.ctx.Done():
			conn.Close()
		}
	}()
	select {
	case conn := <-conns:
		return conn
	case <-l.conns.ctx.Done():
		return nil
	}
}

// name names the connection rlock:<id> on the server, so that operators find the process of an owner. A name given by
// the program stays. It returns the error of a broken connection, and ignores a server's refusal of the name.
func (l *link) name(conn rueidis.DedicatedClient) error {
	if l.conns.grants == "" {
		return nil
	}
	ctx, cancel := l.limited(subscribeTimeout)
	defer cancel(nil)
	result := conn.Do(ctx, conn.B().ClientGetname().Build())
	if err := broken(result); err != nil {
		return err
	}
	if name, err := result.ToString(); name != "" || err != nil && !errors.Is(err, rueidis.Nil) {
		return nil // or it may not be asked
	}
	return broken(conn.Do(ctx, conn.B().ClientSetname().ConnectionName("rlock"+l.conns.grants).Build()))
}

// take returns subscriptions with something to do, at most a batch, their op set, and whether to ask the node first
// if it is in touch with its cluster.
func (l *link) take() (batch []*subscription, suspected bool) {
	c := l.conns
	defer c.lock().Unlock()
	suspected, l.suspected = l.suspected, false
	for len(l.dirty) > 0 && len(batch) < subscribeBatch {
		s := l.dirty[0]
		l.dirty[0] = nil
		l.dirty = l.dirty[1:]
		s.queued = false
		switch wanted := s.wanted(); {
		case wanted && !s.confirmed:
			s.op = subscribing
			s.choose()
		case s.confirmed && (!wanted || s.wrong()):
			s.op = unsubscribing
		default:
			s.dropIdle()
			continue
		}
		batch = append(batch, s)
	}
	return batch, suspected
}

// finish ends an op with the server's answer. It reports whether to try again later. connections.mu is held.
func (l *link) finish(s *subscription, err error) (again bool) {
	op := s.op
	if op == noOp || op == subscribing && err == nil {
		return false // the last channel's confirmation has ended it, or will: rueidis answers with the first one's
	}
	s.op = noOp
	if redisErr := answerIn(err); redisErr != nil {
		addr, moved := redisErr.IsMoved()
		switch {
		case op == unsubscribing: // the server does not know the channel, or not here: nothing to give back
			s.lose()
		case moved:
			l.conns.router.addrs[l.conns.slot(s.channel)] = addr
		case refused(redisErr) && !s.bare:
			s.bare = true // the user may be allowed to hear of unlocks alone
		case refused(redisErr):
			s.refuse(err)
		default:
			s.dropIdle()
			return true
		}
	}
	s.update()
	return false
}

// answerIn returns what the server answered with, if err is that, or a wrapper of the client has wrapped it; nil if not.
func answerIn(err error) *rueidis.RedisError {
	var answer *rueidis.RedisError
	errors.As(err, &answer)
	return answer
}

// broken returns the error of a command without an answer. A server may have answered the connection's own commands with it, but then it is not
// wrapped.
func broken(r rueidis.RedisResult) error {
	err := r.NonRedisError()
	if answer := answerIn(err); answer != nil && err != error(answer) { //nolint:errorlint // whether it is wrapped
		return nil
	}
	return err
}

func isForbidden(err error) bool {
	answer := answerIn(err)
	return answer != nil && strings.HasPrefix(answer.Error(), "NOPERM")
}

// refused reports whether a repeat would get the same answer.
func refused(err *rueidis.RedisError) bool {
	text := strings.TrimPrefix(err.Error(), "ERR ")
	for _, prefix := range []string{"NOPERM", "NOAUTH", "WRONGPASS", "unknown command"} {
		if strings.HasPrefix(text, prefix) {
			return true
		}
	}
	return false
}

// requeue looks again at all subscriptions of the link that are in the wrong state.
func (l *link) requeue() {
	c := l.conns
	defer c.lock().Unlock()
	for _, s := range c.subs {
		if s.link == l {
			s.update()
		}
	}
}

// onSubscription handles the server's confirmations, on the reading goroutine of the connection.
func (l *link) onSubscription(epoch int, event rueidis.PubSubSubscription) {
	c := l.conns
	c.mu.Lock()
	defer c.unlock()
	ch := Channel{event.Channel, l.addr != plainLink}
	for _, s := range [...]*subscription{c.subs[ch], c.besideOf(ch, c.grants), c.besideOf(ch, line)} {
		if s != nil && s.link == l && l.epoch == epoch {
			s.heard(event)
		}
	}
}

// heard handles the server's confirmation for one of the channels.
func (s *subscription) heard(event rueidis.PubSubSubscription) {
	c := s.conns
	switch event.Kind {
	case "subscribe", "ssubscribe":
		if len(s.names) > 0 && event.Channel == s.names[len(s.names)-1] { // all of them
			s.confirm()
		}
	case "unsubscribe", "sunsubscribe":
		s.lose()
		if s.op == noOp { // not requested here: the slot moved to another node
			if s.channel.Sharded {
				delete(c.router.addrs, c.slot(s.channel))
			}
			s.update()
		}
	}
}

// down cleans up the subscriptions of a broken connection: none is live any more, and those still wanted are
// requested again, maybe at another node, unless that is hopeless. It returns those that are overdue.
func (l *link) down(err error, hopeless bool) (overdue []*subscription) {
	c := l.conns
	c.mu.Lock()
	defer c.unlock()
	l.epoch++
	l.dirty, l.suspected = nil, false
	maps.DeleteFunc(c.router.addrs, func(_ uint16, addr string) bool { return addr == l.addr })
	redisErr := answerIn(err)
	for _, s := range c.subs {
		if s.link != l {
			continue
		}
		s.lose()
		s.op, s.queued = noOp, false
		if hopeless || redisErr != nil && refused(redisErr) {
			s.refuse(err)
		}
		if errors.Is(err, errUnknownNode) {
			s.notify(listener.look) // it joined the cluster lately
		}
		if s.overdue() {
			overdue = append(overdue, s)
		}
		s.update()
	}
	return overdue
}
