package pubsub

import (
	"context"
	"errors"
	"strings"
	"time"
)

// A server may answer commands and take no subscription: it has no room for one more connection (maxclients), a proxy hangs up, this
// process has no file descriptor left, all connections of rueidis's pool are in use, or this one alone has no answer. Then nothing wakes the
// waiters until their timers fire. So a subscription that has failed, or had no answer, for a second is overdue, and again every second. If the
// server answers a PING on the client's other connection, the first waiter of each of its locks asks, however many wait.
//
// If it does not, they sleep on: attempts in an outage would only fail.

var (
	errNoConnection = errors.New("no connection yet")
	errUnanswered   = errors.New("no answer yet")
)

// looking runs f, which waits for the server of a link; nil: for any, to learn which one it is. Until then the waiters of overdue subscriptions
// look.
func (c *connections) looking(l *link, f func()) {
	ctx, end := context.WithCancel(c.ctx)
	defer end()
	c.wg.Go(func() { // ends with ctx
		overdue := time.NewTicker(maxBackoff)
		defer overdue.Stop()
		for {
			select {
			case <-overdue.C:
				c.unsubscribed(l, errUnanswered, c.overdue(l))
			case <-ctx.Done():
				return
			}
		}
	})
	f()
}

// overdue notes that the subscription is wanted, but is not there, and reports whether its waiters are to look. connections.mu is held.
func (s *subscription) overdue() bool {
	if s.confirmed || !s.wanted() {
		return false
	}
	now := time.Now()
	first := s.lookAt.IsZero()
	if !first && now.Before(s.lookAt) {
		return false
	}
	s.lookAt = now.Add(maxBackoff)
	return !first
}

// overdue returns the subscriptions of a link that are overdue; nil: those whose node is not known.
func (c *connections) overdue(l *link) (all []*subscription) {
	defer c.lock().Unlock()
	for _, s := range c.subs {
		if s.link == l && s.overdue() {
			all = append(all, s)
		}
	}
	return all
}

// unsubscribed makes the waiters of overdue subscriptions look at their locks, if the server answers. err is why there is no subscription.
func (c *connections) unsubscribed(l *link, err error, overdue []*subscription) {
	addr := plainLink
	if l != nil {
		addr = l.addr
	}
	if len(overdue) == 0 || !says(err) || !c.answers(addr) {
		return
	}
	c.mu.Lock()
	told := c.told[addr]
	c.told[addr] = true
	for _, s := range overdue {
		s.notify(listener.look)
	}
	c.unlock()
	if !told && c.deaf != nil {
		c.deaf(addr, err)
	}
}

// says reports whether a failure may say that the server takes no subscription. The others say that it is the wrong one.
func says(err error) bool {
	return !errors.Is(err, errFailover) && !errors.Is(err, errUnknownNode) && !errors.Is(err, errCutOff)
}

// answers reports whether the server with that address answers on the client's other connection; any, for a plain link.
func (c *connections) answers(addr string) bool {
	client := c.rdb
	if addr != plainLink {
		if client = client.Nodes()[addr]; client == nil {
			return false
		}
	}
	ctx, cancel := c.limited(maxBackoff)
	defer cancel(nil)
	err := client.Do(ctx, client.B().Ping().Build()).Error()
	return err == nil || strings.HasPrefix(err.Error(), "NOPERM")
}
