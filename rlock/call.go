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
	// patience is how long a call is repeated after it failed for the first time, as long as its caller waits. It spans a
	// reconnect, not every failover: to wait out one that takes longer, the caller calls again.
	patience = 3 * time.Second

	// minTries is how often an acquire is sent at least, if it fails with errors that may pass: each try may take as long as
	// patience lasts, and a cluster client that follows a failover still sends the second one to the node that is gone.
	minTries = 3

	minRetry = 10 * time.Millisecond
	maxRetry = 500 * time.Millisecond
)

// callContext is the context of one command, for rueidis only. It has a deadline, which bounds reads and writes,
// because rueidis leaves its synchronous path, which spares two goroutine switches, for a ctx that can be cancelled and
// has none (pipe.Do in v1.0.79). Done does not close when the deadline passes.
type callContext struct {
	deadline time.Time
	values   context.Context // whose values a wrapper of the client finds, such as the span of the caller
	done     <-chan struct{}
	hold     *hold // if not nil, its loss and Client.Close end the context instead of done

	expires bool         // see mayExpire
	looks   atomic.Int32 // how often Err was called since the last answer
}

func (c *callContext) Deadline() (time.Time, bool) { return c.deadline, true }

// Value leaves out those for package context itself: how the caller's ctx ended is none of the command's concern.
func (c *callContext) Value(key any) any { return context.WithoutCancel(c.values).Value(key) }

func (c *callContext) Done() <-chan struct{} {
	if c.hold != nil {
		return c.hold.ending()
	}
	return c.done
}

func (c *callContext) Err() error {
	c.looks.Add(1)
	if c.hold != nil {
		if c.hold.lossSoFar() != nil || c.hold.mutex.client.isClosed() {
			return context.Canceled
		}
		return nil
	}
	select {
	case <-c.done:
		return context.Canceled
	default:
		return nil
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
// only the answer says what has to be undone. Close ends it after a grace. It is made anew for each command: rueidis may
// look at it afterwards. The values are those of ctx.
func (c *Client) call(ctx context.Context, now time.Time, longer time.Duration) *callContext {
	return &callContext{values: ctx, deadline: now.Add(longer).Add(callTimeout), done: c.stopped, expires: c.expires}
}

// retry spaces the repeats of a call.
type retry struct {
	until time.Time // no try after it; zero: no such time
	least int       // tries, however long they take
	limit time.Time // patience ends; zero until the first failure
	tries int
	pause time.Duration
}

// wait pauses before the next try. It reports false if there should be none: err will not pass, the
// time is up, or one of the channels was closed.
func (r *retry) wait(err error, stop1, stop2 <-chan struct{}) bool {
	if !mayPass(err) {
		return false
	}
	next := time.Now().Add(r.pause)
	if r.tries++; r.tries == 1 {
		r.limit, r.pause = next.Add(patience), minRetry
		next = next.Add(minRetry)
	}
	if next.After(r.limit) && r.tries >= r.least || !r.until.IsZero() && next.After(r.until) {
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

// silence is for how long no call was answered if Redis counts as silent.
const silence = 100 * time.Millisecond

// maxLeftSomewhere bounds them over all slots of a cluster, where only the slots of some nodes may be silent: beyond it a slot
// that is silent has one.
const maxLeftSomewhere = 512

// leftCalls counts the calls whose callers have left, for each slot of a cluster, since one node may be silent and the others
// well. When there are too many and Redis is silent, a further call starts only when one of them ends, and counts from
// its start.
type leftCalls struct {
	mu    sync.Mutex           // guards the following, and all slots
	slots map[uint16]*leftSlot // those with calls left behind; without a cluster there is one
	total int
}

type leftSlot struct {
	count    int
	began    time.Time     // when the first of them left
	answered time.Time     // when Redis answered a call last
	change   chan struct{} // closed when count falls or Redis answers; nil until somebody waits for that
}

// admit reports whether a call may start, and whether it counts. If it may not, it returns what to wait for.
func (l *leftCalls) admit(slot uint16, waited bool) (counts bool, change <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.slots[slot]
	most := maxLeft
	if l.total >= maxLeftSomewhere {
		most = 1
	}
	if s != nil && s.count >= most && time.Since(s.answered) > silence {
		if s.change == nil {
			s.change = make(chan struct{})
		}
		return false, s.change
	}
	if waited {
		l.count(slot)
	}
	return waited, nil
}

// isSilent reports whether a call was left behind, and no call was answered for a while.
func (l *leftCalls) isSilent(slot uint16) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.slots[slot]
	return s != nil && time.Since(s.began) > silence && time.Since(s.answered) > silence
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
		s = &leftSlot{began: time.Now()}
		l.slots[slot] = s
	}
	s.count++
	l.total++
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
// may say of Redis: nothing, if there was no time for an answer. The channel that f was given is closed, and undo, if not nil,
// gets what f returns when it does, or an error if f was not started.
//
// It is called between Client.start and running.Done. A caller who cannot leave asks on its own goroutine.
func leavable[T any](
	ctx context.Context, m *Mutex, limit time.Time, f func(left <-chan struct{}) (T, error), undo func(T, error),
) (value T, left bool, err error) {
	c := m.client
	if !canLeave(ctx, limit) {
		value, err = f(c.done)
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
	counts, change := c.left.admit(slot, false)
	for change != nil {
		select {
		case <-change:
			counts, change = c.left.admit(slot, true)
			continue
		case <-ctx.Done():
			err = errSilent
		case <-over:
			err = errSilent
		case <-c.done:
			err = ErrClosed
		}
		if undo != nil {
			undo(value, err)
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
			if undo != nil {
				undo(value, err)
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
	if err == nil && time.Since(began) >= silence/2 {
		err = errNoAnswer
	}
	if !counts {
		c.left.add(slot)
	}
	close(gone)
	return value, true, err
}
