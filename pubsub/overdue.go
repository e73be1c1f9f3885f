package pubsub

import (
	"context"
	"errors"
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

// looking runs f, which waits for the server, err says for what. Until then the waiters of overdue subscriptions look.
func (l *link) looking(err error, f func()) {
	ctx, end := context.WithCancel(l.conns.ctx)
	defer end()
	l.conns.wg.Go(func() { // ends with ctx
		overdue := time.NewTicker(maxBackoff)
		defer overdue.Stop()
		for {
			select {
			case <-overdue.C:
				l.unsubscribed(err, l.overdue())
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
	s.lookAt = now.Add(maxBackoff * 9 / 10) // a ticker comes a little sooner or later
	return !first
}

func (l *link) overdue() (all []*subscription) {
	c := l.conns
	defer c.lock().Unlock()
	for _, s := range c.subs {
		if s.link == l && s.overdue() {
			all = append(all, s)
		}
	}
	return all
}

// unsubscribed makes the waiters of overdue subscriptions look at their locks, if the server answers. err is why there is no subscription.
func (l *link) unsubscribed(err error, overdue []*subscription) {
	if len(overdue) == 0 || !says(err) || !l.answers() {
		return
	}
	c, tell := l.conns, false
	c.mu.Lock()
	for _, s := range overdue {
		if s.confirmed { // meanwhile
			continue
		}
		tell, c.told[l.addr] = tell || !c.told[l.addr], true
		s.notify(listener.look)
	}
	c.unlock()
	if tell && c.deaf != nil {
		c.deaf(l.addr, err)
	}
}

// says reports whether a failure may say that the server takes no subscription. The others say that it is the wrong one.
func says(err error) bool {
	return !errors.Is(err, errFailover) && !errors.Is(err, errUnknownNode) && !errors.Is(err, errCutOff)
}

// answers reports whether the server answers on the client's other connection.
func (l *link) answers() bool {
	client := l.conns.rdb
	if l.addr != plainLink {
		if client = client.Nodes()[l.addr]; client == nil {
			return false
		}
	}
	ctx, cancel := l.limited(maxBackoff)
	defer cancel(nil)
	err := client.Do(ctx, client.B().Ping().Build()).Error()
	return err == nil || isForbidden(err)
}
