package pubsub

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// send carries out the ops of a batch. It reports whether some have to be tried again later, and
// returns an error if the connection is broken.
//
// With RESP2 the subscriptions have a connection of their own inside of conn; when that breaks,
// rueidis sends the commands again and again on it until ctx is done, hence the look at lost.
func (l *link) send(conn rueidis.DedicatedClient, lost <-chan error, batch []*subscription) (again bool, err error) {
	h := l.hub
	ctx, cancel := l.limited()
	defer cancel()
	all := len(batch)
	if batch, err = l.postpone(ctx, conn, batch); err != nil || len(batch) == 0 {
		return true, err
	}
	again = len(batch) < all
	cmds := make([]rueidis.Completed, len(batch))
	h.mu.Lock()
	for i, s := range batch {
		cmds[i] = command(conn.B(), s.op, s.channel)
	}
	h.mu.Unlock()
	broken := make(chan error, 1)
	h.wg.Go(func() { // ends with ctx
		select {
		case err := <-lost:
			broken <- err
			cancel()
		case <-ctx.Done():
		}
	})
	results := conn.DoMulti(ctx, cmds...)
	select {
	case err := <-broken:
		return false, err
	default:
	}

	h.mu.Lock()
	defer h.mu.Unlock()
	for i, s := range batch {
		if err := results[i].NonRedisError(); err != nil {
			return false, err // down puts the ops of all of them right
		}
		if l.finish(s, results[i].Error()) {
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

// postpone takes the unsubscriptions out of a batch if the server does not answer a PING with PONG.
//
// rueidis sends a PING behind each UNSUBSCRIBE, and matches the two replies by guesswork (pipe._backgroundRead in v1.0.79). A
// server that runs a script for too long answers both with BUSY; then there is one reply that rueidis has no command for, and it
// panics, on a goroutine of its own. Other errors of the PING leave it out of step. So it is asked first, and nothing is
// unsubscribed before a PING is answered. What begins between the two is still met; and so is what happens to a user that may
// not send a PING, who has to be let through: rueidis knows that error, but not together with BUSY.
func (l *link) postpone(ctx context.Context, conn rueidis.DedicatedClient, batch []*subscription) ([]*subscription, error) {
	h := l.hub
	ends := func(s *subscription) bool { return s.op == unsubscribing }
	h.mu.Lock()
	some := slices.ContainsFunc(batch, ends)
	h.mu.Unlock()
	if !some {
		return batch, nil
	}
	result := conn.Do(ctx, conn.B().Ping().Build())
	if err := result.NonRedisError(); err != nil {
		return nil, err
	}
	if err := result.Error(); err == nil || strings.HasPrefix(err.Error(), "NOPERM") {
		return batch, nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.DeleteFunc(batch, func(s *subscription) bool {
		if !ends(s) {
			return false
		}
		s.op = noOp
		s.settle() // the server may have ended it meanwhile
		return true
	}), nil
}

// limited returns the context of commands that have subscribeTimeout. It has no deadline: rueidis would wait for their
// answers till then, even if ctx was cancelled, on a connection that has been used by one call at a time (pipe.Do in v1.0.79).
func (l *link) limited() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(l.hub.ctx)
	timer := time.AfterFunc(subscribeTimeout, cancel)
	return ctx, func() {
		timer.Stop()
		cancel()
	}
}
