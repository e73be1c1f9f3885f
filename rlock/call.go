package rlock

import (
	"context"
	"errors"
	"net"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

const (
	// patience is how long a call goes on trying when Redis can not be reached or is not ready, as
	// long as the caller waits. It spans a reconnect, not a failover: who waits longer has a ctx to
	// say so, and calls again.
	patience = 3 * time.Second
	// callTimeout bounds a single command on a connection that nobody else uses: rueidis then closes
	// the connection, and the command is sent on a new one. No ctx ends such a command earlier, so it
	// also bounds Close.
	callTimeout = 3 * time.Second

	minRetry = 10 * time.Millisecond
	maxRetry = 500 * time.Millisecond
)

// callContext is the context of one command, for rueidis only: passing the deadline does not close
// Done, it bounds reads and writes. It has one because rueidis leaves its
// synchronous path, which spares two goroutine switches, for a ctx that can be cancelled and has
// none (pipe.Do in v1.0.79). What else would end the command is left to done.
type callContext struct {
	deadline time.Time
	done     <-chan struct{}
}

func (c *callContext) Deadline() (time.Time, bool) { return c.deadline, true }
func (c *callContext) Done() <-chan struct{}       { return c.done }
func (c *callContext) Value(any) any               { return nil }
func (c *callContext) Err() error {
	select {
	case <-c.done:
		return context.Canceled
	default:
		return nil
	}
}

// call is the context of a command that is to be answered even if its caller has gone. Close ends
// it after a grace.
func (c *Client) call() context.Context { return c.callAt(time.Now(), 0) }

// callAt is call for a command sent at now, which takes Redis a while longer. The sum of the two could
// be more than a Duration holds. It is made anew for each command: rueidis may look at it after the command.
func (c *Client) callAt(now time.Time, longer time.Duration) context.Context {
	return &callContext{deadline: now.Add(longer).Add(callTimeout), done: c.stopped}
}

// retry spaces the repeats of a call.
type retry struct {
	limit time.Time
	pause time.Duration
}

func newRetry(limit time.Time) *retry { return &retry{limit: limit, pause: minRetry} }

// wait pauses before the next try. It reports false if there should be none: err will not pass, the
// time is up, or one of the channels was closed.
func (r *retry) wait(err error, stop1, stop2 <-chan struct{}) bool {
	if !mayPass(err) || time.Now().Add(r.pause).After(r.limit) {
		return false
	}
	timer := time.NewTimer(r.pause)
	defer timer.Stop()
	r.pause = min(2*r.pause, maxRetry)
	select {
	case <-timer.C:
		return true
	case <-stop1:
	case <-stop2:
	}
	return false
}

// mayHaveRun reports whether the script may have run though the call failed.
func mayHaveRun(err error) bool {
	var redisErr *rueidis.RedisError
	if errors.As(err, &redisErr) {
		return false
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return false
	}
	return !errors.Is(err, rueidis.ErrClosing)
}

// mayPass reports whether it makes sense to try again: the connection failed, or the server says
// that it is not ready.
func mayPass(err error) bool {
	var redisErr *rueidis.RedisError // rueidis.IsRedisErr does not look into wrapped errors
	if !errors.As(err, &redisErr) {
		return !errors.Is(err, rueidis.ErrClosing)
	}
	for _, prefix := range []string{
		"LOADING", "BUSY", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "READONLY", "MOVED", "ASK",
		"max number of clients", // said instead of taking the connection; rueidis cuts the ERR off
	} {
		if strings.HasPrefix(redisErr.Error(), prefix) {
			return true
		}
	}
	return false
}

// await runs a command that may be given up: it returns when ctx is done, though rueidis does not
// while it waits for a connection.
func await[T any](ctx context.Context, c *Client, command func(context.Context) (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	var none T
	if c.isClosed() {
		return none, ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return none, err
	}
	if ctx.Done() == nil {
		return command(c.call())
	}
	results := make(chan result, 1)
	if !c.background(func() {
		value, err := command(c.call())
		results <- result{value, err}
	}) {
		return none, ErrClosed
	}
	select {
	case r := <-results:
		return r.value, r.err
	case <-ctx.Done():
		return none, ctx.Err()
	case <-c.done:
		return none, ErrClosed
	}
}
