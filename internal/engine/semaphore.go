package engine

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/lua"
)

// Semaphore is a number of permits. They have no owners in Redis, so there is no tenure and no lease. All calls of this process go through
// its pool (pool.go).
type Semaphore struct {
	counter
	of *Semaphores
}

// Semaphores are a Client's semaphores of both kinds.
type Semaphores struct {
	engine *Engine
	pools  pools
	own    ownPermits
}

// NewSemaphores returns the semaphores of the engine's Client.
func NewSemaphores(c *Engine) *Semaphores { return &Semaphores{engine: c} }

// Semaphore returns the semaphore with that key. name is the user's name for it.
func (all *Semaphores) Semaphore(key, name string) Semaphore {
	return Semaphore{counter{all.engine.NewSpec(key, kinds.Semaphore, name)}, all}
}

// Available returns the number of free permits.
func (m Semaphore) Available(ctx context.Context) (int64, error) {
	return query(ctx, m.Spec, func(ctx context.Context) (int64, error) {
		n, _, err := lua.FreePermits(ctx, m.Engine.rdb, m.Key)
		return n, err
	})
}

// Delete deletes the semaphore, and reports whether it existed.
func (m Semaphore) Delete(ctx context.Context) (bool, error) {
	return ask(ctx, m.Spec, true, func(ctx context.Context) (bool, error) { return lua.DeleteSemaphore(ctx, m.Engine.rdb, m.Key) })
}

// Change changes the number of permits, and returns the script's result.
func (m Semaphore) Change(ctx context.Context, what lua.Change, n int64) (int64, error) {
	if err := m.begin(ctx, time.Time{}, m.Fits()); err != nil {
		return 0, err
	}
	call, _, err := m.change(ctx, what, n)
	if err != nil {
		return 0, err
	}
	return call.done, nil
}

// change is Change after begin. It also gives back the permits in back; at is their index in the call.
func (m Semaphore) change(ctx context.Context, what lua.Change, n int64, back ...lua.PermitID) (call *permitChange, at int, err error) {
	began, c := time.Now(), m.Engine
	defer c.Calls.Ended()
	if ctx.Err() != nil {
		return nil, 0, m.notSent(ctx)
	}
	failed, closed := m.failed, c.Calls.Done()
	if adds(what) {
		failed, closed = m.unreachable, nil // the call is made even so, and Close waits for it
	}
	leaves := calls.CanLeave(ctx, time.Time{})
	counted, err := c.Calls.Admit(ctx, m.Slot, time.Time{})
	if err != nil {
		return nil, 0, m.notAdmitted(ctx, err)
	}
	call, at, err = m.of.pools.change(ctx, m, admission{leaves: leaves, counted: counted}, what, n, back...)
	if err != nil {
		return nil, 0, m.changeFailed(adds(what), failed(err))
	}
	select {
	case <-call.ended:
	case <-ctx.Done():
	case <-closed:
	}
	switch over := m.of.pools.isOver(call); {
	case !over:
		return nil, 0, m.changeFailed(stays(what), m.left(ctx, silence(began)))
	case call.err != nil:
		return nil, 0, m.changeFailed(call.pending, failed(call.err))
	}
	return call, at, nil
}

// Release gives n permits back by lua.Add or lua.AddIfExists, even after Close, and returns the script's result.
func (m Semaphore) Release(ctx context.Context, what lua.Change, n int64) (int64, error) {
	done, err := m.Change(ctx, what, n)
	if !errors.Is(err, m.Engine.errs.Closed) {
		return done, err
	}
	reply, pending, err := m.last(what, n)
	if err != nil {
		return 0, m.changeFailed(pending, m.unreachable(err))
	}
	return reply.Done, nil
}

// last makes a change after Close. pending: it failed, and may have been made all the same.
func (m Semaphore) last(what lua.Change, n int64, back ...lua.PermitID) (reply lua.PermitsReply, pending bool, err error) {
	args := m.args(m.of.pools.requests.Add(1))
	args.Client += ":" + strconv.FormatInt(args.Request, 10) // the pool may have a call under way
	args.Change, args.N, args.Release = what, n, back
	ctx, cancel := m.Engine.Calls.Last()
	defer cancel()
	reply, err = m.use(ctx, args)
	return reply, err != nil && calls.MayHaveRun(err), err
}

// giveBack gives permits back, those with ids and n others, and waits for the reply up to until. The pool goes on after that, and even
// after a refusal. pending: it failed, and they may go back all the same.
func (m Semaphore) giveBack(values context.Context, until time.Time, n int64, ids ...lua.PermitID) (given []lua.Given, pending bool, err error) {
	c := m.Engine
	if n == 0 && len(ids) == 0 {
		return nil, false, nil
	}
	if !c.Calls.Start() { // after Close
		reply, pending, err := m.last(lua.Add, n, ids...)
		return reply.Released, pending, err
	}
	defer c.Calls.Ended()
	call, at, err := m.of.pools.change(values, m, admission{leaves: true, goesOn: true}, lua.Add, n, ids...)
	if err != nil {
		return nil, true, err
	}
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-call.ended:
	case <-timer.C:
	}
	switch over := m.of.pools.isOver(call); {
	case !over:
		return nil, true, calls.ErrNoAnswer
	case call.err != nil:
		return nil, call.pending, call.err
	}
	return call.given[at : at+len(ids)], false, nil
}

// Acquire waits for n permits.
func (m Semaphore) Acquire(who Caller, n int64) error {
	if err := m.begin(who.Ctx, who.Limit, m.Fits()); err != nil {
		return err
	}
	defer m.Engine.Calls.Ended()
	return m.await(who, &permitWaiter{n: n})
}

// await waits for w's permits. The caller has started a call.
func (m Semaphore) await(who Caller, w *permitWaiter) error {
	c := m.Engine
	w.ctx, w.once, w.refused, w.ended = who.Ctx, who.Once, make(chan struct{}), make(chan struct{})
	switch {
	case c.IsShut():
		return m.closed()
	case who.Ctx.Err() != nil:
		return m.notGranted(who, w)
	}
	counted, err := c.Calls.Admit(who.Ctx, m.Slot, who.Limit)
	if err != nil {
		return m.notGranted(who, w)
	}
	made, err := m.of.pools.come(m, w, counted)
	if err != nil {
		return m.failed(err)
	}
	if made != nil {
		made.start(calls.CanLeave(who.Ctx, who.Limit), w.ended)
	}
	m.stay(who, w.refused, w.ended)
	if !m.of.pools.leave(m, w) {
		return m.notGranted(who, w)
	}
	if w.err != nil {
		return m.failed(w.err)
	}
	return nil
}

// notGranted returns the error of a waiter that left.
func (m Semaphore) notGranted(who Caller, w *permitWaiter) error {
	c := m.Engine
	if c.Calls.IsClosed() {
		return m.closed()
	}
	u := NotAcquired{Ctx: who.Ctx, Name: m.Name, Began: who.Began, Counter: Permits, Count: w.free, Wanted: w.n, Seen: w.seen}
	if !w.seen {
		if err := silence(who.Began); err != nil {
			u.Causes = []error{c.errs.Unreachable(err)}
		}
	}
	return c.errs.NotAcquired(u)
}

// queueKey returns the key of the process queue; "" if scripts cannot see whether a process listens.
func (m Semaphore) queueKey() string {
	if !m.seesProcesses() {
		return ""
	}
	return m.queue
}

func (m Semaphore) args(request int64) lua.PermitsArgs {
	c := m.Engine
	args := lua.PermitsArgs{SemaphoreArgs: lua.SemaphoreArgs{
		Semaphore: lua.Semaphore{
			Name: m.Key, Requests: kinds.SemaphoreRequests(m.Key), Queue: m.queueKey(), Publish: lua.Publish(c.KnownChannel(m.Spec)),
			Client: c.ID, Keep: c.grantLease(),
		},
		Request: request,
	}}
	if m.Kind == kinds.PermitSemaphore {
		args.Client += ofPermits
		args.Timeouts, args.Slots = kinds.PermitTimeouts(m.Key), kinds.PermitSlots(m.Key)
	}
	return args
}

// use makes one call. A plain semaphore's reply has only the SemaphoreReply.
func (m Semaphore) use(ctx context.Context, args lua.PermitsArgs) (reply lua.PermitsReply, err error) {
	if m.Kind == kinds.PermitSemaphore {
		return lua.UsePermits(ctx, m.Engine.rdb, args)
	}
	reply.SemaphoreReply, err = lua.UseSemaphore(ctx, m.Engine.rdb, args.SemaphoreArgs)
	return reply, err
}
