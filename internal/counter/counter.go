// Package counter has the semaphores and latches of a Client: numbers in Redis without an owner. All calls for one of them go through its
// combiner, which makes one call at a time, for all waiters of the process.
package counter

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/internal/tenure"
	"github.com/go-rlock/rlock/lua"
)

// Counter is a number in Redis without a holder: the free permits of a semaphore, or the count of a latch. The calls of this process that
// change it, or wait for it, go through its combiner (combiner.go).
type Counter struct {
	*tenure.Lock
	of *Counters
}

// Counters are a Client's semaphores and latches.
type Counters struct {
	engine   *tenure.Client
	own      sync.Map // of a permit's id: the *heldPermit, if this process holds it
	began    time.Time
	requests atomic.Int64 // the number of the last call

	mu        sync.Mutex // guards the following and all that is reachable from it; the left calls' and the hub's are taken under it
	combiners map[combinerKey]*combiner
	slept     time.Time // when waiters for any of them last left the hub, where subscriptions linger
}

// New returns the counters of the engine's Client.
func New(c *tenure.Client) *Counters {
	return &Counters{engine: c, began: time.Now(), combiners: make(map[combinerKey]*combiner)}
}

// number returns a number for a call: at least the microseconds since the beginning. A Client makes fewer than a million calls a second, so
// after each second it is higher by a million, see lua.SemaphoreArgs.
func (all *Counters) number() int64 {
	for {
		last := all.requests.Load()
		n := max(last+1, time.Since(all.began).Microseconds())
		if all.requests.CompareAndSwap(last, n) {
			return n
		}
	}
}

// Get returns the counter with that key. name is the user's name for it.
func (all *Counters) Get(key string, kind *kinds.Kind, name string, t tenure.Terms) Counter {
	return Counter{all.engine.NewLock(key, kind, name, t), all}
}

// begin starts a call. If it returns no error, the caller must call Calls.Ended.
func (m Counter) begin(ctx context.Context, limit time.Time) error {
	if err := m.StartCall(); err != nil {
		return err
	}
	known, err := m.Client.Cluster.Learn(ctx, limit, m.Lock)
	if !known {
		err = m.left(ctx, err)
	} else if err = m.Fits(); err != nil {
		err = m.Fail(err)
	}
	if err != nil {
		m.Client.Calls.Ended()
	}
	return err
}

// Count returns the number: of free permits, or of count-downs that are left. It may be below 0.
func (m Counter) Count(ctx context.Context) (int64, error) {
	return tenure.Query(ctx, m.Lock, func(ctx context.Context) (int64, error) { return lua.LatchCount(ctx, m.Client.RDB, m.Key) })
}

// Delete deletes a semaphore, and reports whether it existed.
func (m Counter) Delete(ctx context.Context) (bool, error) {
	return tenure.Ask(ctx, m.Lock, true, func(ctx context.Context) (bool, error) { return lua.DeleteSemaphore(ctx, m.Client.RDB, m.Key) })
}

// Change makes a change, and gives permits back.
func (m Counter) Change(ctx context.Context, what lua.Change, n int64, back ...lua.PermitID) (Outcome, error) {
	if err := m.begin(ctx, time.Time{}); err != nil {
		return Outcome{}, err
	}
	began, c := time.Now(), m.Client
	defer c.Calls.Ended()
	if ctx.Err() != nil {
		return Outcome{}, m.Fail(tenure.ErrNotSent, ctx.Err())
	}
	counted, err := c.Calls.Admit(ctx, m.Slot(), time.Time{})
	switch {
	case err == nil:
	case c.Calls.IsClosed():
		return Outcome{}, m.FailClosed()
	default: // too many calls have no answer
		return Outcome{}, m.Fail(tenure.ErrNotSent, c.Errors.Unreachable(err), ctx.Err())
	}
	o, left := m.make(ctx, counted, false, what, n, back...)
	switch {
	case left:
		err = m.left(ctx, calls.Silence(ctx, began, time.Time{}))
	case o.err == nil:
		return o, nil
	case adds(what):
		err = m.FailUnreachable(o.err)
	default:
		err = m.failed(o.err)
	}
	if o.pending {
		err = m.Fail(c.Errors.Pending, err)
	}
	return Outcome{}, err
}

// Release is Change, even after Close.
func (m Counter) Release(ctx context.Context, what lua.Change, n int64, back ...lua.PermitID) (Outcome, error) {
	o, err := m.Change(ctx, what, n, back...)
	if errors.Is(err, m.Client.Errors.Closed) {
		return m.last(what, n, back...)
	}
	return o, err
}

// last makes a change after Close.
func (m Counter) last(what lua.Change, n int64, back ...lua.PermitID) (Outcome, error) {
	args := m.args()
	args.Client += ":" + strconv.FormatInt(args.Request, 10) // the combiner may have a call under way
	args.Change, args.N, args.Release = what, n, back
	ctx, cancel := m.Client.Calls.Last()
	defer cancel()
	reply, err := m.use(ctx, args)
	switch {
	case err == nil:
		return Outcome{Done: reply.Done, given: reply.Released}, nil
	case calls.MayHaveRun(err):
		return Outcome{}, m.FailPending(err)
	}
	return Outcome{}, m.FailUnreachable(err)
}

// giveBack gives permits back, those with ids and n others, and waits for the reply up to until. The combiner goes on after that, and even
// after a refusal.
func (m Counter) giveBack(values context.Context, until time.Time, n int64, ids ...lua.PermitID) ([]lua.Given, error) {
	c := m.Client
	if n == 0 && len(ids) == 0 {
		return nil, nil
	}
	if !c.Calls.Start() { // after Close
		o, err := m.last(lua.Add, n, ids...)
		return o.given, err
	}
	defer c.Calls.Ended()
	ctx, cancel := context.WithDeadline(context.WithoutCancel(values), until)
	defer cancel()
	o, left := m.make(ctx, false, true, lua.Add, n, ids...)
	if left {
		o.err = calls.ErrNoAnswer
	}
	if o.err != nil {
		return nil, m.FailPending(o.err)
	}
	return o.given, nil
}

// failed returns the error of an unanswered or refused call, or of a wait that Shutdown has ended.
func (m Counter) failed(err error) error {
	if m.Client.Calls.IsClosed() || errors.Is(err, m.Client.Errors.Closed) {
		return m.FailClosed()
	}
	return m.FailUnreachable(err)
}

// left returns the error for a caller that left before the answer. err is the known reason.
func (m Counter) left(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return m.failed(err)
	}
	return m.Fail(m.Client.Errors.Unreachable(err), ctx.Err())
}
