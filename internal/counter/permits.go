package counter

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	"github.com/google/uuid"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/tenure"
	"github.com/go-rlock/rlock/lua"
)

// PermitSemaphore is a semaphore whose permits expire: an Acquire returns a PermitHold (permit_hold.go).
type PermitSemaphore struct{ Counter }

// errNoPermit is the cause of NotHeld.
var errNoPermit = errors.New("no such permit, or it has expired")

// Acquire waits for n permits. If it fails after a grant, it gives the permits back.
func (m PermitSemaphore) Acquire(who tenure.Caller, n int) (*PermitHold, error) {
	if err := m.StartCall(); err != nil {
		return nil, err
	}
	defer m.Client.Calls.Ended()
	w := &counterWaiter{n: int64(n), lease: m.Expiry(m.TTL), ids: make([]lua.PermitID, n), grants: n == 1 && m.Grants}
	client, _ := uuid.Parse(m.Client.ID) // always valid; an id begins with its first half, so that permits in Redis show their owner
	for i := range w.ids {
		id := &w.ids[i]
		_, _ = rand.Read(id[copy(id[:8], client[:]):]) // never fails
	}
	if err := m.await(who, w); err != nil {
		return nil, err
	}
	if w.first > 0 {
		who.Took(tenure.PathGrant)
	}
	h, err := m.admit(who.Parent(), w)
	if err != nil { // they go back in the background, or after Close in one call
		_, _ = m.giveBack(context.Background(), time.Time{}, 0, w.ids...)
		return nil, err
	}
	return h, nil
}

// Release gives a permit back, even if it belongs to another process. A hold of this process is lost first. Since ctx may be that hold's,
// UnlockTimeout bounds the call then.
func (m PermitSemaphore) Release(ctx context.Context, id lua.PermitID) error {
	var o Outcome
	var err error
	if own := m.own(id); own != nil && ctx.Err() == nil {
		own.hold.catchUp()
		own.lose(permitGone("the permit is given back by its id"))
		o.given, err = m.giveBack(ctx, time.Now().Add(m.Client.Options.UnlockTimeout), 0, id)
	} else {
		o, err = m.Counter.Release(ctx, lua.Add, 0, id)
	}
	if err == nil && o.given[0] != lua.PermitReleased {
		err = m.FailNotHeld(errNoPermit)
	}
	return err
}

// UpdateLease makes a permit expire d from now, even if it belongs to another process. A hold of this process ends by then and is no longer
// renewed; with Forever it does not end. Redis may run concurrent calls in any order, and unanswered ones at any time, so the hold ends
// with the shortest.
func (m PermitSemaphore) UpdateLease(ctx context.Context, id lua.PermitID, d time.Duration) error {
	own, trusted, lasts := m.own(id), longest, d
	if d != lua.Forever {
		trusted, lasts = d, tenure.Longer(d, m.Grace)
	}
	held, err := tenure.AskKeys(ctx, m.Lock, true, func(ctx context.Context) (bool, error) {
		if own != nil {
			own.updates(time.Now().Add(trusted)) // before the call is sent
		}
		held, err := lua.SetPermitLease(ctx, m.Client.RDB, m.keys(), id, lasts)
		if own != nil && (err == nil || !calls.MayHaveRun(err)) {
			own.updated(held, err)
		}
		return held, err
	})
	switch {
	case err != nil:
		return err
	case held:
		return nil
	case own != nil:
		own.hold.catchUp()
		own.gone()
	}
	return m.FailNotHeld(errNoPermit)
}

// LeaseTime returns a permit's remaining lease, or Forever.
func (m PermitSemaphore) LeaseTime(ctx context.Context, id lua.PermitID) (time.Duration, error) {
	info, err := m.Look(ctx, &id)
	if err == nil && !info.Found {
		err = m.FailNotHeld(errNoPermit)
	}
	return info.Left, err
}

// Look returns how many permits are free and held, and what becomes of the one with that id, if it is not nil.
func (m PermitSemaphore) Look(ctx context.Context, id *lua.PermitID) (lua.PermitsInfo, error) {
	return tenure.AskKeys(ctx, m.Lock, false, func(ctx context.Context) (lua.PermitsInfo, error) {
		return lua.LookPermits(ctx, m.Client.RDB, m.keys(), id)
	})
}

// Delete deletes the semaphore and its permits, and reports whether it existed. Holds of this process that Redis forgets notice at their
// next renewal.
func (m PermitSemaphore) Delete(ctx context.Context) (bool, error) {
	return tenure.AskKeys(ctx, m.Lock, true, func(ctx context.Context) (bool, error) {
		return lua.DeletePermits(ctx, m.Client.RDB, m.keys())
	})
}

func (m PermitSemaphore) keys() lua.PermitSemaphore {
	args := m.args()
	return lua.PermitSemaphore{Semaphore: args.Semaphore, Timeouts: args.Timeouts, Slots: args.Slots}
}
