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
	call, at, err = m.of.pools.change(ctx, m, calls.CanLeave(ctx, time.Time{}), what, n, back...)
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
	c := m.Engine
	done, err := m.Change(ctx, what, n)
	if !errors.Is(err, c.errs.Closed) {
		return done, err
	}
	args := m.lastArgs()
	args.Change, args.N = what, n
	last, cancel := c.Calls.Last()
	defer cancel()
	reply, err := m.use(last, args)
	if err != nil {
		return 0, m.changeFailed(calls.MayHaveRun(err), m.unreachable(err))
	}
	return reply.Done, nil
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
	made, err := m.of.pools.come(m, w)
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

// lastArgs returns the arguments of a call after Close. The pool may have a call under way, so this one has a client id of its own.
func (m Semaphore) lastArgs() lua.PermitsArgs {
	args := m.args(m.of.pools.requests.Add(1))
	args.Client += ":" + strconv.FormatInt(args.Request, 10)
	return args
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
