// Package counter has the semaphores and latches of a Client: numbers in Redis without an owner. All calls for one of them go through its
// combiner, which makes one call at a time, for all waiters of the process.
package counter

import (
	"context"
	"errors"
	"fmt"
	"sync"
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
	engine    *tenure.Client
	combiners combiners
	own       sync.Map // of a permit's id: the *heldPermit, if this process holds it
}

// New returns the counters of the engine's Client.
func New(c *tenure.Client) *Counters { return &Counters{engine: c} }

// get returns the counter with that key. name is the user's name for it.
func (all *Counters) get(key string, kind *kinds.Kind, name string, t tenure.Terms) Counter {
	return Counter{all.engine.NewLock(key, kind, name, t), all}
}

// begin starts a call. If it returns no error, the caller must call Calls.Ended.
func (m Counter) begin(ctx context.Context, limit time.Time) error {
	if err := m.StartCall(); err != nil {
		return err
	}
	c := m.Client
	if c.Cluster == nil {
		return nil
	}
	known, err := true, error(nil)
	if c.Cluster.IsUnknown() {
		if known, err = c.Cluster.Learn(ctx, limit, m.Lock); !known {
			err = m.left(ctx, err)
		}
	}
	if fits := m.fits(); known && fits != nil {
		err = m.Fail(fits)
	}
	if err != nil {
		c.Calls.Ended()
	}
	return err
}

// fits reports an error for a counter that a cluster cannot have.
func (m Counter) fits() error {
	err := m.Fits()
	if err != nil && m.Kind == kinds.Latch {
		return fmt.Errorf("on a cluster the name of a latch may have no braces: Redisson puts it in braces, as in %q, for its channel, "+
			"which would be in another slot than the latch", m.Channel)
	}
	return err
}

// change makes a change. at is the index of back, permits to be given back, in the call. The caller has started a call, which change ends.
func (m Counter) change(ctx context.Context, what lua.Change, n int64, back ...lua.PermitID) (call *counterChange, at int, err error) {
	began, c := time.Now(), m.Client
	defer c.Calls.Ended()
	if ctx.Err() != nil {
		return nil, 0, m.notSent(ctx)
	}
	failed, closed := m.failed, c.Calls.Done()
	if adds(what) {
		failed, closed = m.FailUnreachable, nil // the call is made even so, and Close waits for it
	}
	leaves := calls.CanLeave(ctx, time.Time{})
	counted, err := c.Calls.Admit(ctx, m.Slot(), time.Time{})
	if err != nil {
		return nil, 0, m.notAdmitted(ctx, err)
	}
	how := admission{leaves: leaves, counted: counted, done: ctx.Done(), closed: closed}
	switch call, at, err = m.of.combiners.change(ctx, m, how, what, n, back...); {
	case err != nil:
		return nil, 0, m.changeFailed(adds(what), failed(err))
	case call == nil:
		return nil, 0, m.changeFailed(stays(what), m.left(ctx, calls.Silence(ctx, began, time.Time{})))
	case call.err != nil:
		return nil, 0, m.changeFailed(call.pending, failed(call.err))
	}
	return call, at, nil
}

// Change makes a change, and returns the script's result.
func (m Counter) Change(ctx context.Context, what lua.Change, n int64) (int64, error) {
	if err := m.begin(ctx, time.Time{}); err != nil {
		return 0, err
	}
	call, _, err := m.change(ctx, what, n)
	if err != nil {
		return 0, err
	}
	return call.done, nil
}

// await waits for what w wants.
func (m Counter) await(who tenure.Caller, w *counterWaiter) error {
	if err := m.begin(who.Ctx, who.Limit); err != nil {
		return err
	}
	c := m.Client
	defer c.Calls.Ended()
	w.ctx, w.once, w.refused, w.ended = who.Ctx, who.Once, make(chan struct{}), make(chan struct{})
	switch {
	case c.IsShut():
		return m.FailClosed()
	case who.Ctx.Err() != nil:
		return m.waitedInVain(who, w)
	}
	counted, err := c.Calls.Admit(who.Ctx, m.Slot(), who.Limit)
	if err != nil {
		return m.waitedInVain(who, w)
	}
	made, err := m.of.combiners.come(m, w, counted)
	if err != nil {
		return m.failed(err)
	}
	if made != nil {
		made.start(calls.CanLeave(who.Ctx, who.Limit), w.ended)
	}
	if !m.stay(who, w.refused, w.ended) && !m.of.combiners.leave(m, w) {
		return m.waitedInVain(who, w)
	}
	if w.err != nil {
		return m.failed(w.err)
	}
	return nil
}

// waitedInVain returns the error of a waiter that left.
func (m Counter) waitedInVain(who tenure.Caller, w *counterWaiter) error {
	c := m.Client
	if c.Calls.IsClosed() {
		return m.FailClosed()
	}
	u := tenure.NotAcquired{Ctx: who.Ctx, Name: m.Name, Began: who.Began, Counter: tenure.Permits, Count: w.count, Wanted: w.n, Seen: w.seen}
	if m.Kind == kinds.Latch {
		u.Counter = tenure.LatchCounter
	}
	if err := calls.Silence(who.Ctx, who.Began, who.Limit); err != nil && !w.seen {
		u.Causes = []error{c.Errors.Unreachable(err)}
	}
	return c.Errors.NotAcquired(u)
}

// stay reports whether a caller's wait has ended, or else that the caller must leave. The first answer closes refused, unless it ends the wait:
// from then on the caller waits, or leaves if it only asks once.
func (m Counter) stay(who tenure.Caller, refused, ended <-chan struct{}) bool {
	var over <-chan time.Time
	var timer *time.Timer
	if !who.Limit.IsZero() {
		timer = time.NewTimer(time.Until(who.Limit))
		defer timer.Stop()
		over = timer.C
	}
	for {
		select {
		case <-ended:
			return true
		case <-refused:
			if !who.Once {
				if refused = nil; timer != nil {
					timer.Reset(time.Until(who.Wait)) // Limit was for the first answer
				}
				who.Waits("")
				continue
			}
		case <-over:
		case <-who.Ctx.Done():
		case <-who.Stopped():
		case <-m.Client.Calls.Done():
		}
		return false
	}
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
	switch {
	case ctx.Err() == nil:
		return m.failed(err)
	case err != nil:
		return m.Fail(m.Client.Errors.Unreachable(err), ctx.Err())
	}
	return m.Fail(ctx.Err())
}

// changeFailed adds to the error of a change whether it may have been made, or may yet be.
func (m Counter) changeFailed(pending bool, err error) error {
	if pending {
		return m.Fail(m.Client.Errors.Pending, err)
	}
	return err
}

// notSent returns the error for a caller whose ctx was done before its change.
func (m Counter) notSent(ctx context.Context) error { return m.Fail(tenure.ErrNotSent, ctx.Err()) }

// notAdmitted returns the error of a change for which Redis was not asked, because too many calls have no answer.
func (m Counter) notAdmitted(ctx context.Context, err error) error {
	if m.Client.Calls.IsClosed() {
		return m.FailClosed()
	}
	return m.Fail(tenure.ErrNotSent, m.Client.Errors.Unreachable(err), ctx.Err())
}
