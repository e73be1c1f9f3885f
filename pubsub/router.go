package pubsub

import (
	"context"
	"errors"
	"net"
	"strconv"
	"time"

	"github.com/redis/rueidis"
)

// router knows which node of a cluster serves which slot, for the sharded channels. connections.mu guards it. It
// learns from CLUSTER SLOTS when an unknown slot is requested, and from MOVED answers.
type router struct {
	addrs  map[uint16]string
	asking bool // a goroutine asks CLUSTER SLOTS
}

// route returns the link for a channel, or nil if the node is not known yet; then a goroutine finds out.
// connections.mu is held.
func (c *connections) route(ch Channel) *link {
	if !ch.Sharded {
		return c.linkTo(plainLink)
	}
	if addr, ok := c.router.addrs[c.slot(ch)]; ok {
		return c.linkTo(addr)
	}
	if !c.router.asking {
		c.router.asking = true
		c.wg.Go(c.askRoutes)
	}
	return nil
}

func (c *connections) slot(ch Channel) uint16 {
	cmd := c.rdb.B().Ssubscribe().Channel(ch.Name).Build()
	return cmd.Slot()
}

// routes are an answer of the cluster.
type routes struct {
	addrs map[uint16]string
	err   error
}

// askRoutes asks the cluster until nobody waits for a route any more, the user may not ask, or close ends it. Another node is asked beside one
// that does not answer for a second, which may hang.
func (c *connections) askRoutes() {
	ctx, end := context.WithCancel(c.ctx)
	defer end()
	answers := make(chan routes)
	silent := 0 // how many in a row have not answered
	for backoff := minBackoff; ; backoff = min(2*backoff, maxBackoff) {
		cmd := c.slotsOf(silent%2 == 1)
		c.wg.Go(func() { // ends with ctx at the latest; while it dials, as rueidis does
			addrs, err := c.clusterSlots(ctx, cmd)
			select {
			case answers <- routes{addrs, err}:
			case <-ctx.Done():
			}
		})
		select {
		case r := <-answers:
			silent = 0
			if answer := answerIn(r.err); answer != nil && refused(answer) {
				c.noRoutes(r.err)
				return
			}
			if r.err == nil {
				c.adopt(r.addrs)
			}
		case <-time.After(maxBackoff):
			if c.isRouted() {
				return
			}
			silent++
			continue
		case <-ctx.Done():
			return
		}
		if c.isRouted() {
			return
		}
		select {
		case <-time.After(backoff):
		case <-ctx.Done():
			return
		}
	}
}

// adopt takes over the routes, and forwards the subscriptions that waited for them.
func (c *connections) adopt(addrs map[uint16]string) {
	defer c.lock().Unlock()
	c.router.addrs = addrs
	for _, s := range c.subs {
		s.update() // does not start askRoutes again: it is still asking
	}
}

// isRouted reports whether nobody waits for a route any more. Then nobody asks for one.
func (c *connections) isRouted() bool {
	defer c.lock().Unlock()
	if c.unrouted() != nil {
		return false
	}
	c.router.asking = false
	return true
}

// unrouted returns a subscription that waits for a route, any one; nil: none does. connections.mu is held.
func (c *connections) unrouted() *subscription {
	for _, s := range c.subs {
		if s.wanted() && s.link == nil {
			return s
		}
	}
	return nil
}

// noRoutes refuses the subscriptions that wait for a route.
func (c *connections) noRoutes(err error) {
	c.mu.Lock()
	defer c.unlock()
	c.router.asking = false
	for _, s := range c.subs {
		if s.wanted() && s.link == nil {
			s.refuse(err)
		}
	}
}

// slotsOf asks any node for all routes, or the one that has the slot of somebody who waits, as far as the client knows: if that does not answer,
// its route is of no use.
func (c *connections) slotsOf(owner bool) rueidis.Completed {
	cmd := c.rdb.B().ClusterSlots().Build()
	defer c.lock().Unlock()
	if s := c.unrouted(); owner && s != nil {
		return cmd.SetSlot(s.channel.Name)
	}
	return cmd
}

func (c *connections) clusterSlots(ctx context.Context, cmd rueidis.Completed) (map[uint16]string, error) {
	ctx, cancel := limitedIn(ctx, subscribeTimeout)
	defer cancel(nil)
	ranges, err := c.rdb.Do(ctx, cmd).ToArray()
	if err != nil {
		return nil, err
	}
	addrs := make(map[uint16]string)
	for _, r := range ranges {
		addr, first, last, err := c.parseRange(r)
		if err != nil {
			return nil, err
		}
		for slot := first; slot <= last; slot++ {
			addrs[uint16(slot)] = addr
		}
	}
	return addrs, nil
}

var errBadSlots = errors.New("unexpected reply to CLUSTER SLOTS")

// parseRange reads one element of CLUSTER SLOTS: first slot, last slot, [host, port, …] of the master, and the
// replicas. An empty host is the node that was asked.
func (c *connections) parseRange(r rueidis.RedisMessage) (addr string, first, last int64, err error) {
	fields, err := r.ToArray()
	if err != nil || len(fields) < 3 {
		return "", 0, 0, errBadSlots
	}
	first, errFirst := fields[0].AsInt64()
	last, errLast := fields[1].AsInt64()
	master, err := fields[2].ToArray()
	if errors.Join(errFirst, errLast, err) != nil || first < 0 || last > 16383 || len(master) < 2 {
		return "", 0, 0, errBadSlots
	}
	host, _ := master[0].ToString()
	port, err := master[1].AsInt64()
	if err != nil {
		return "", 0, 0, errBadSlots
	}
	if host == "" {
		for a := range c.rdb.Nodes() {
			host, _, _ = net.SplitHostPort(a)
			break
		}
	}
	return net.JoinHostPort(host, strconv.FormatInt(port, 10)), first, last, nil
}
