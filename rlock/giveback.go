package rlock

import (
	"context"
	"errors"
	"net"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// Nothing may be left behind by a call that failed (G5), though a command that was sent can not be
// called back. What a command without a reply may have done is found out and undone here:
//
//   - Its reply comes late: whoever waits for it gives the hold back (locking.undo).
//   - Its reply is lost: the owner field is swept, that is released again and again until it was
//     found, or until the lease that the command could have started has ended.
//
// A swept field is not used by anybody: its owner is retired, or has another tag since (burn).

const (
	// patience is how long a call goes on trying when Redis can not be reached or is not ready, as
	// long as the caller waits. It spans a reconnect, not a failover: who waits longer has a ctx to
	// say so, and calls again.
	patience = 3 * time.Second
	// callTimeout bounds a single command on a connection that nobody else uses; then rueidis closes
	// it. It is rueidis' own default for writes.
	callTimeout = 10 * time.Second

	minRetry = 10 * time.Millisecond
	maxRetry = 500 * time.Millisecond
)

// callContext is the context of one command. It has a deadline because rueidis leaves its
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
func (c *Client) call() context.Context { return c.callAt(time.Now()) }

func (c *Client) callAt(now time.Time) context.Context {
	return &callContext{deadline: now.Add(callTimeout), done: c.stopped}
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
	} {
		if strings.HasPrefix(redisErr.Error(), prefix) {
			return true
		}
	}
	return false
}

// giveBack releases a hold that was granted to nobody. If that fails it is swept.
func (c *Client) giveBack(m *Mutex, h *hold) {
	h.owner.mu.Lock()
	h.owner.burn()
	h.owner.mu.Unlock()
	if _, err := m.kind.release(c.call(), c.rdb, m.releaseArgs(h, 0, 0)); err != nil {
		c.sweep(m, h, time.Now().Add(m.ttl()), firstAnswer)
	}
}

// sweepDoubt sweeps the field of a hold that has ended, or did not come to be, if an acquire with
// unknown outcome may still act.
func (c *Client) sweepDoubt(m *Mutex, h *hold) {
	if h.doubt.IsZero() {
		return
	}
	h.owner.mu.Lock()
	h.owner.burn()
	h.owner.mu.Unlock()
	c.sweep(m, h, h.doubt, found)
}

// sweepEnd says which answer ends a sweep.
type sweepEnd bool

const (
	firstAnswer sweepEnd = false // the outcome of a release was unknown: any answer settles it
	found       sweepEnd = true  // an acquire may still be on its way to Redis: go on until it shows
)

// sweep releases the hold's field, in the background, until it is settled or the time is up, or the
// client closes.
func (c *Client) sweep(m *Mutex, h *hold, until time.Time, end sweepEnd) {
	args := m.releaseArgs(h, 0, 0)
	c.background(func() {
		for pause := minRetry; ; pause = min(2*pause, 4*maxRetry) {
			released, err := m.kind.release(c.call(), c.rdb, args)
			if err == nil && (released || end == firstAnswer) {
				return
			}
			if !mayPass(err) && err != nil || time.Now().After(until) || c.isClosed() {
				return
			}
			timer := time.NewTimer(pause)
			select {
			case <-timer.C:
			case <-c.done: // one last try
				timer.Stop()
			}
		}
	})
}
