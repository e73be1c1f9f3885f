package rlock

import (
	"context"
	"errors"
	"net"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/lua"
)

// How a command is sent, what an error says of it, and how a caller leaves before it is answered.

const (
	// callTimeout bounds a command on a connection that nobody else uses; rueidis then closes the connection. On one
	// that others share, a command ends when rueidis notices that the connection is silent, by default after 11 s.
	callTimeout = 3 * time.Second
	// retryWindow is how long a call is repeated after it failed for the first time, as long as its caller waits. It spans a
	// reconnect, not every failover: to wait out one that takes longer, the caller calls again.
	retryWindow = 3 * time.Second

	// minTries is how often an acquire is sent at least, if it fails with errors that may pass: each try may take as long as
	// retryWindow lasts, and a cluster client that follows a failover still sends the second one to the node that is gone.
	minTries = 3

	minRetry = 10 * time.Millisecond
	maxRetry = 500 * time.Millisecond
)

// callContext is the context of one command, for rueidis only. It has a deadline, which bounds reads and writes,
// because rueidis leaves its synchronous path, which spares two goroutine switches, for a ctx that can be cancelled and
// has none (pipe.Do in v1.0.79). Done does not close when the deadline passes: on a connection that others share an answer may
// come later, and says what has to be rolled back.
//
// Done and Err are one thing. Where Done is closed and Err is nil, rueidis takes a command that is still in its queue for one
// that was answered, and uses its memory for the next: others' commands would be sent twice, and get foreign replies.
type callContext struct {
	deadline time.Time
	values   context.Context // whose values a wrapper of the client finds, such as the span of the caller
	done     <-chan struct{}

	expires bool         // see mayExpire
	looks   atomic.Int32 // how often Err was called since the last answer
}

func (c *callContext) Deadline() (time.Time, bool) { return c.deadline, true }

// Value hides package context's own keys, so that the caller's cancellation does not reach the command.
func (c *callContext) Value(key any) any { return context.WithoutCancel(c.values).Value(key) }

func (c *callContext) Done() <-chan struct{} { return c.done }

func (c *callContext) Err() error {
	c.looks.Add(1)
	if isClosed(c.done) {
		return context.Canceled
	}
	return nil
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Answered is called by package lua when the command sent so far was answered, and another one follows.
func (c *callContext) Answered() { c.looks.Store(0) }

// isRepeated reports whether the command may have run before the run that was answered, or may still run. rueidis looks
// at Err before it sends a command, so it looked once, unless it sent the command again, or dialled.
func (c *callContext) isRepeated() bool { return c.expires && c.looks.Load() > 1 }

// mayExpire reports whether connections of rdb have a lifetime (ClientOption.ConnLifetime), or whether that cannot be seen, say
// because another type is wrapped around the client. When one expires, rueidis sends the commands under way on it again by
// itself, also those that ran.
func mayExpire(rdb rueidis.Client) bool {
	v := reflect.Indirect(reflect.ValueOf(rdb))
	if v.Kind() != reflect.Struct {
		return true
	}
	f := v.FieldByName("hasLftm") // of all clients of rueidis v1.0.79 but standalone ones with replicas
	return f.Kind() != reflect.Bool || f.Bool()
}

// call is the context of a command that is sent now and takes Redis a while longer. It does not end with its caller, for
// only the answer says what has to be rolled back. Close ends it after a grace. It is made anew for each command: rueidis may
// look at it afterwards. The values are those of ctx.
func (c *Client) call(ctx context.Context, now time.Time, longer time.Duration) *callContext {
	return &callContext{values: ctx, deadline: now.Add(longer).Add(callTimeout), done: c.stopped, expires: c.expires}
}

// retry spaces the repeats of a call.
type retry struct {
	until time.Time // no try after it; zero: no such time
	least int       // tries, however long they take
	limit time.Time // the retryWindow ends; zero until the first failure
	tries int
	pause time.Duration
}

// wait pauses before the next try; before the last one the pause is cut to what is left of the time. It reports false if there should be
// none: err will not pass, the time is up, or one of the channels was closed.
func (r *retry) wait(err error, stop1, stop2 <-chan struct{}) bool {
	if !mayPass(err) {
		return false
	}
	now := time.Now()
	if r.tries++; r.tries == 1 {
		r.limit, r.pause = now.Add(retryWindow), minRetry
	}
	end := r.until
	if r.tries >= r.least && (end.IsZero() || r.limit.Before(end)) {
		end = r.limit
	}
	pause, last := r.pause, false
	if !end.IsZero() {
		rest := end.Sub(now)
		if last = rest <= minRetry; last {
			pause = rest // the time is to be used up: its caller may have asked for it
		} else {
			pause = min(pause, rest-minRetry)
		}
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	r.pause = min(2*r.pause, maxRetry)
	select {
	case <-timer.C:
		return !last
	case <-stop1:
	case <-stop2:
	}
	return false
}

// mayHaveRun reports whether the script may have run though the call failed. rueidis.ErrClosing says nothing: a
// sentinel client answers it to the commands under way when it follows another master.
func mayHaveRun(err error) bool {
	var redisErr *rueidis.RedisError
	var op *net.OpError
	switch {
	case errors.As(err, &redisErr) && strings.HasPrefix(redisErr.Error(), "UNTOLD "): // see release.lua
		return true
	case redisErr != nil, errors.Is(err, lua.ErrForeign), errors.Is(err, lua.ErrNoConnection):
		return false
	case errors.As(err, &op):
		return op.Op != "dial"
	}
	return true
}

// mayPass reports whether it makes sense to try again: the connection failed, or the server says
// that it is not ready.
func mayPass(err error) bool {
	var redisErr *rueidis.RedisError // rueidis.IsRedisErr does not look into wrapped errors
	if !errors.As(err, &redisErr) {
		return !errors.Is(err, lua.ErrForeign) && !errors.Is(err, lua.ErrNoConnection)
	}
	said := lua.Said(redisErr)
	for _, prefix := range []string{
		"LOADING", "BUSY", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "READONLY", "MOVED", "ASK",
		"max number of clients", // said instead of taking the connection; rueidis cuts the ERR off
		// A server whose slots change while a script runs; ours have written nothing by then.
		"Script attempted to access a non local key", "Lua script attempted to access a non local key",
	} {
		if strings.HasPrefix(said, prefix) {
			return true
		}
	}
	return false
}

// maxLeft bounds the calls whose callers have left, and with them the goroutines and the fields to be swept, while Redis
// is silent. One would do to notice that it answers again; more, so that a few slow connections do not keep
// the others waiting.
const maxLeft = 16

// unresponsiveAfter is for how long no call was answered if Redis counts as silent.
const unresponsiveAfter = 100 * time.Millisecond

// probeEvery is how often one more call starts all the same, if Redis is silent: it may go by a connection that is well.
const probeEvery = 500 * time.Millisecond

// maxLeftSomewhere bounds them over all slots of a cluster, where only the slots of some nodes may be silent: beyond it a slot
// that is silent has one, and nothing is probed.
const maxLeftSomewhere = 512

// leftCalls counts the calls whose callers have left, for each slot of a cluster, since one node may be silent and the others
// well. When there are too many and Redis is silent, a further call starts only when one of them ends, or as a probe, and counts
// from its start.
type leftCalls struct {
	mu    sync.Mutex           // guards the following, and all slots
	slots map[uint16]*leftSlot // those with calls left behind; without a cluster there is one
	total int
	many  atomic.Int32 // total, for a look without mu
}

type leftSlot struct {
	count    int
	began    time.Time     // when the first of them left
	answered time.Time     // when Redis answered a call last
	probed   time.Time     // when a call was started though there were too many, or the first of them left
	change   chan struct{} // closed when count falls or Redis answers; nil until somebody waits for that
}

// admit reports whether a call may start, and whether it counts. If it may not, it returns what to wait for, and for how long.
func (l *leftCalls) admit(slot uint16, waited bool) (counts bool, change <-chan struct{}, wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.slots[slot]
	most, probes := maxLeft, true
	if l.total >= maxLeftSomewhere {
		most, probes = 1, false
	}
	if s != nil && s.count >= most && time.Since(s.answered) > unresponsiveAfter {
		now := time.Now()
		if wait = probeEvery - now.Sub(s.probed); !probes {
			wait = probeEvery // to look again
		}
		if wait > 0 {
			if s.change == nil {
				s.change = make(chan struct{})
			}
			return false, s.change, wait
		}
		s.probed, waited = now, true
	}
	if waited {
		l.count(slot)
	}
	return waited, nil, 0
}

// isAny reports whether calls were left behind that have not ended.
func (l *leftCalls) isAny() bool { return l.many.Load() > 0 }

// answered notes that Redis has answered a call, unless it failed for a reason that may pass.
func (c *Client) answered(slot func() uint16, err error) {
	if c.left.isAny() && (err == nil || !mayPass(err)) {
		c.left.ended(slot(), false, true)
	}
}

// isSilent reports whether a call was left behind, and no call was answered for a while.
func (l *leftCalls) isSilent(slot uint16) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.slots[slot]
	return s != nil && time.Since(s.began) > unresponsiveAfter && time.Since(s.answered) > unresponsiveAfter
}

// add counts a call whose caller has left.
func (l *leftCalls) add(slot uint16) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count(slot)
}

func (l *leftCalls) count(slot uint16) {
	if l.slots == nil {
		l.slots = make(map[uint16]*leftSlot)
	}
	s := l.slots[slot]
	if s == nil {
		now := time.Now()
		s = &leftSlot{began: now, probed: now}
		l.slots[slot] = s
	}
	s.count++
	l.total++
	l.many.Store(int32(l.total))
}

// ended notes that a call has ended, whether it counted, and whether Redis answered it.
func (l *leftCalls) ended(slot uint16, counted, answered bool) {
	if !counted && !answered {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.slots[slot]
	if s == nil {
		return // it did not count
	}
	if counted {
		s.count--
		l.total--
		l.many.Store(int32(l.total))
	}
	if answered {
		s.answered = time.Now()
	}
	if s.change != nil {
		close(s.change)
		s.change = nil
	}
	if s.count == 0 {
		delete(l.slots, slot)
	}
}

// slot is that of the lock on a cluster; 0 without.
func (m *Mutex) slot() uint16 {
	if m.client.cluster == nil {
		return 0
	}
	return m.client.slot(m.key)
}

// canLeave reports whether a caller may leave a call before its end.
func canLeave(ctx context.Context, limit time.Time) bool { return ctx.Done() != nil || !limit.IsZero() }

// The errors of a caller that left, about Redis.
var (
	errNoAnswer = errors.New("no answer")
	errSilent   = errors.New("no answer, nor to other calls") // its own was not even sent
)

// leavable runs f, which asks Redis about m, for a caller who may leave before the answer: when ctx is done, at limit if that is
// not zero, or when the client is closed. Then it returns at once, and left is true. The error is ErrClosed, or what the caller
// may say of Redis: nothing, if there was no time for an answer. The channel that f was given is closed, and rollBack, if not nil,
// gets what f returns when it does, or an error if f was not started.
//
// It is called between Client.start and running.Done. A caller who cannot leave asks on its own goroutine.
func leavable[T any](
	ctx context.Context, m *Mutex, limit time.Time, f func(left <-chan struct{}) (T, error), rollBack func(T, error),
) (value T, left bool, err error) {
	c := m.client
	if !canLeave(ctx, limit) {
		value, err = f(c.done)
		c.answered(m.slot, err)
		return value, false, err
	}
	began := time.Now()
	var over <-chan time.Time
	if !limit.IsZero() {
		timer := time.NewTimer(limit.Sub(began))
		defer timer.Stop()
		over = timer.C
	}
	slot := m.slot()
	counts, change, wait := c.left.admit(slot, false)
	for change != nil {
		select {
		case <-change:
			counts, change, wait = c.left.admit(slot, true)
			continue
		case <-time.After(wait):
			counts, change, wait = c.left.admit(slot, true)
			continue
		case <-ctx.Done():
			err = errSilent
		case <-over:
			err = errSilent
		case <-c.done:
			err = ErrClosed
		}
		if rollBack != nil {
			rollBack(value, err)
		}
		return value, true, err
	}
	type result struct {
		value T
		err   error
	}
	results, gone := make(chan result), make(chan struct{})
	c.running.Go(func() { // ends when f does, which no ctx of a caller ends; Close waits for it
		value, err := f(gone)
		answered := err == nil || !mayPass(err)
		select { // whoever is first decides: a caller who takes the result, or one who has left
		case results <- result{value, err}:
			c.left.ended(slot, counts, answered)
		case <-gone:
			if rollBack != nil {
				rollBack(value, err)
			}
			c.left.ended(slot, true, answered)
		}
	})
	select {
	case r := <-results:
		return r.value, false, r.err
	case <-ctx.Done():
	case <-over:
	case <-c.done:
		err = ErrClosed
	}
	if err == nil && time.Since(began) >= unresponsiveAfter/2 {
		err = errNoAnswer
	}
	if !counts {
		c.left.add(slot)
	}
	close(gone)
	return value, true, err
}
