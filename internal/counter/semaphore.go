package counter

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/internal/tenure"
	"github.com/go-rlock/rlock/lua"
)

// Semaphore is a number of permits, which have no owners in Redis. A section with some of them is a [PermitHold].
type Semaphore struct{ Counter }

// Semaphore returns the semaphore with that key. name is the user's name for it.
func (all *Counters) Semaphore(key, name string, t tenure.Terms) Semaphore {
	return Semaphore{all.get(key, kinds.Semaphore, name, t)}
}

// Available returns the number of free permits.
func (m Semaphore) Available(ctx context.Context) (int64, error) {
	return tenure.Query(ctx, m.Lock, func(ctx context.Context) (int64, error) {
		n, _, err := lua.FreePermits(ctx, m.Client.RDB, m.Key)
		return n, err
	})
}

// Delete deletes the semaphore, and reports whether it existed.
func (m Semaphore) Delete(ctx context.Context) (bool, error) {
	return tenure.Ask(ctx, m.Lock, true, func(ctx context.Context) (bool, error) { return lua.DeleteSemaphore(ctx, m.Client.RDB, m.Key) })
}

// Release gives n permits back by lua.Add or lua.AddIfExists, even after Close, and returns the script's result.
func (m Semaphore) Release(ctx context.Context, what lua.Change, n int64) (int64, error) {
	done, err := m.Change(ctx, what, n)
	if !errors.Is(err, m.Client.Errors.Closed) {
		return done, err
	}
	reply, pending, err := m.last(what, n)
	if err != nil {
		return 0, m.changeFailed(pending, m.FailUnreachable(err))
	}
	return reply.Done, nil
}

// last makes a change after Close. pending: it failed, and may have been made all the same.
func (m Semaphore) last(what lua.Change, n int64, back ...lua.PermitID) (reply lua.PermitsReply, pending bool, err error) {
	args := m.args(m.of.combiners.requests.Add(1))
	args.Client += ":" + strconv.FormatInt(args.Request, 10) // the combiner may have a call under way
	args.Change, args.N, args.Release = what, n, back
	ctx, cancel := m.Client.Calls.Last()
	defer cancel()
	answer, err := m.use(ctx, args)
	return answer.PermitsReply, err != nil && calls.MayHaveRun(err), err
}

// giveBack gives permits back, those with ids and n others, and waits for the reply up to until. The combiner goes on after that, and even
// after a refusal. pending: it failed, and they may go back all the same.
func (m Semaphore) giveBack(values context.Context, until time.Time, n int64, ids ...lua.PermitID) (given []lua.Given, pending bool, err error) {
	c := m.Client
	if n == 0 && len(ids) == 0 {
		return nil, false, nil
	}
	if !c.Calls.Start() { // after Close
		reply, pending, err := m.last(lua.Add, n, ids...)
		return reply.Released, pending, err
	}
	defer c.Calls.Ended()
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	call, at, err := m.of.combiners.change(values, m.Counter, admission{leaves: true, goesOn: true, over: timer.C}, lua.Add, n, ids...)
	switch {
	case err != nil:
		return nil, true, err
	case call == nil:
		return nil, true, calls.ErrNoAnswer
	case call.err != nil:
		return nil, call.pending, call.err
	}
	return call.given[at : at+len(ids)], false, nil
}

// Acquire waits for n permits.
func (m Semaphore) Acquire(who tenure.Caller, n int64) error {
	return m.await(who, &counterWaiter{n: n})
}
