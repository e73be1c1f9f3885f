package pubsub

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/redis/rueidis"
)

// send carries out the ops of a batch. It reports whether to try some again later, and returns an error if the
// connection is broken, or too slow: with an UNSUBSCRIBE in it, a batch has less time (unsubscribeTimeout).
//
// With RESP2 the subscriptions have a connection of their own inside conn; when that breaks, rueidis sends the
// commands again and again on it until ctx is done, hence the look at lost.
func (l *link) send(conn rueidis.DedicatedClient, lost <-chan error, batch []*subscription) (again bool, err error) {
	c := l.conns
	now, err := l.postpone(conn, batch)
	if err != nil || len(now) == 0 {
		return true, err
	}
	again = len(now) < len(batch)
	timeout := subscribeTimeout
	if slices.ContainsFunc(now, ends) {
		timeout = unsubscribeTimeout
	}
	ctx, cancel := l.limited(timeout)
	defer cancel(nil)
	cmds := make([]rueidis.Completed, len(now))
	for i, s := range now {
		cmds[i] = command(conn.B(), s)
	}
	c.wg.Go(func() { // ends with ctx
		select {
		case err := <-lost:
			cancel(err)
		case <-ctx.Done():
		}
	})
	results := conn.DoMulti(ctx, cmds...)
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}

	refusal, err := l.finishAll(now, results)
	if refusal != nil {
		l.unsubscribed(refusal, l.overdue())
	}
	return again || refusal != nil, err
}

// finishAll ends the ops of a batch. It returns the last refusal after which to try again, and the error of a broken connection.
func (l *link) finishAll(batch []*subscription, results []rueidis.RedisResult) (refusal, err error) {
	l.conns.mu.Lock()
	defer l.conns.unlock()
	for i, s := range batch {
		if err := broken(results[i]); err != nil {
			return nil, err // down cleans up the ops of all of them
		}
		if err := results[i].Error(); l.finish(s, err) {
			refusal = err
		}
	}
	return refusal, nil
}

// command is for all channels of a subscription, so that the server refuses all of them or none.
func command(b rueidis.Builder, s *subscription) rueidis.Completed {
	switch sharded := s.channel.Sharded; {
	case s.op == subscribing && sharded:
		return b.Ssubscribe().Channel(s.names...).Build()
	case s.op == subscribing:
		return b.Subscribe().Channel(s.names...).Build()
	case sharded:
		return b.Sunsubscribe().Channel(s.names...).Build()
	default:
		return b.Unsubscribe().Channel(s.names...).Build()
	}
}

func ends(s *subscription) bool { return s.op == unsubscribing }

// unsubscribeTimeout is how long an UNSUBSCRIBE may take before its connection is closed, see postpone. rueidis takes
// up to 2s more for that (a second for each of its connections, pipe.Close in v1.0.79), and Redis answers with BUSY
// 5s after the script began.
const unsubscribeTimeout = time.Second

// postpone takes the unsubscriptions out of a batch if the server does not answer a PING with PONG.
//
// rueidis sends a PING behind each UNSUBSCRIBE, and matches the two replies by guesswork (pipe._backgroundRead in
// v1.0.79). A server that runs a script for too long answers both with BUSY; then rueidis has a reply without a
// command, and panics, on a goroutine of its own. Other errors of the PING leave it out of step. So nothing is
// unsubscribed before a PING of ours is answered. If the script begins between the two, there is no answer until it
// has run for busy-reply-threshold; before that, the connection is closed. Nothing helps a user that may not send a
// PING and is let through: rueidis knows that error, but not together with BUSY.
func (l *link) postpone(conn rueidis.DedicatedClient, batch []*subscription) ([]*subscription, error) {
	if !slices.ContainsFunc(batch, ends) {
		return batch, nil
	}
	ctx, cancel := l.limited(subscribeTimeout)
	defer cancel(nil)
	result := conn.Do(ctx, conn.B().Ping().Build())
	if err := broken(result); err != nil {
		return nil, err
	}
	if err := result.Error(); err == nil || isForbidden(err) {
		return batch, nil
	}
	defer l.conns.lock().Unlock()
	return slices.DeleteFunc(batch, func(s *subscription) bool {
		if !ends(s) {
			return false
		}
		s.op = noOp
		s.dropIdle() // the server may have ended it meanwhile
		return true
	}), nil
}

var errSilent = errors.New("the server does not answer")

// limited returns a context for commands that ends after d. It has no deadline: rueidis would wait for their answers
// until then, even if ctx was cancelled, on a connection that only one call at a time has used (pipe.Do in v1.0.79).
func (l *link) limited(d time.Duration) (context.Context, context.CancelCauseFunc) {
	return limitedIn(l.conns.ctx, d)
}

func limitedIn(ctx context.Context, d time.Duration) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(d, func() { cancel(errSilent) })
	return ctx, func(cause error) {
		timer.Stop()
		cancel(cause)
	}
}
