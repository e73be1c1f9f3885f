package rlock

import (
	"context"
	"errors"
	"time"

	"github.com/go-rlock/rlock/lease"
)

// Trace is told what becomes of the locks of a Client, for metrics, spans and logs: see [Options].Trace. Any of its functions may be
// nil. They are called on the goroutines of those who lock and unlock, and on those that keep the leases of all holds, several at the
// same time: they must be safe for concurrent use, return at once, and not lock.
//
// Each Lock and TryLock that succeeds is told of as Acquired, and its unlock as Released; the others are told of as Failed. So are those
// inside of Do. [All], [Quorum] and [Upgradeable] tell of themselves, not of the locks that they consist of, to the Trace of the
// Client of the first of those; but a loss is told of the lock that was lost. A Quorum or an Upgradeable given to All tells of
// itself, too.
type Trace struct {
	// Waiting is called when a Lock begins to wait, once at most. Acquired or Failed follows.
	Waiting func(context.Context, WaitingInfo)
	// Acquired is called before Lock returns. The ctx is that of the section.
	Acquired func(context.Context, AcquiredInfo)
	// Failed is called before Lock returns an error.
	Failed func(context.Context, FailedInfo)
	// Released is called before the first call of an unlock returns. The ctx is that of the section, which has ended.
	Released func(context.Context, ReleasedInfo)
	// Lost is called when a hold is lost, after the ctx of the section was cancelled, which is the ctx that it gets.
	Lost func(context.Context, LostInfo)
	// Renewed is called for each renewal of a hold, that is every third of the watchdog time.
	Renewed func(RenewedInfo)
}

// WaitingInfo is what [Trace].Waiting is told.
type WaitingInfo struct {
	Name, Kind string
	// Holder is the owner that has the lock, as it is written in Redis; "" if others of the process were asked before, so
	// that this Lock did not ask.
	Holder string
}

// AcquiredInfo is what [Trace].Acquired is told.
type AcquiredInfo struct {
	Name, Kind string
	Path       Path
	Waited     time.Duration // from the call of Lock
	// By is the ctx of the section that handed the lock over, if the Path is PathHandOff; otherwise nil.
	By context.Context
}

// FailedInfo is what [Trace].Failed is told.
type FailedInfo struct {
	Name, Kind string
	Waited     time.Duration // from the call of Lock
	WasWaiting bool          // Waiting was called for it; of an AcquiredInfo, Path says so
	Err        error
}

// ReleasedInfo is what [Trace].Released is told.
type ReleasedInfo struct {
	Name, Kind string
	Path       Path          // as in its AcquiredInfo: a PathReentry ends no hold
	Held       time.Duration // from when Lock returned until unlock was called
	Err        error         // of the unlock
}

// LostInfo is what [Trace].Lost is told.
type LostInfo struct {
	Kind string
	Err  *LostError
}

// RenewedInfo is what [Trace].Renewed is told.
type RenewedInfo struct {
	Name, Kind string
	// Left is the time for which the hold would have been trusted without this renewal, when that was confirmed. Two thirds of the
	// watchdog time are usual; the less it is, the nearer is a loss.
	Left time.Duration
	// Granted: it was the first renewal of a hold that another process had handed over, which is trusted for two seconds at first.
	Granted bool
}

// Path is how a Lock got the lock.
type Path int8

const (
	// PathFree: the lock was free when Redis was asked; or the ctx carried the write hold, and Downgrade ended that.
	PathFree Path = iota + 1
	// PathReentry: the ctx carried a hold of the lock, or of the other side of a read/write lock.
	PathReentry
	// PathHandOff: a goroutine of the same Client handed it over with its unlock.
	PathHandOff
	// PathGrant: another process gave it to this one with its unlock.
	PathGrant
	// PathWoken: Redis was asked again after a wait.
	PathWoken
)

// String returns free, reentry, handoff, grant or woken.
func (p Path) String() string {
	switch p {
	case PathFree:
		return "free"
	case PathReentry:
		return "reentry"
	case PathHandOff:
		return "handoff"
	case PathGrant:
		return "grant"
	case PathWoken:
		return "woken"
	}
	return "unknown"
}

// tracing is a Lock that is traced, and then its section. A nil one is not, and its methods do nothing.
type tracing struct {
	to         *Trace
	name, kind string
	ctx        context.Context // of the Lock, then of the section
	at         time.Time       // when Lock was called, then when it returned
	waiting    bool
	path       Path
	by         context.Context
}

func (c *Client) trace(ctx context.Context, name, kind string, at time.Time) *tracing {
	if c.options.Trace == nil {
		return nil
	}
	return &tracing{to: c.options.Trace, name: name, kind: kind, ctx: ctx, at: at}
}

// waits says that the Lock waits from here on. Of its calls only the first one counts.
func (t *tracing) waits(holder string) {
	if t == nil || t.waiting {
		return
	}
	t.waiting = true
	if t.to.Waiting != nil {
		t.to.Waiting(t.ctx, WaitingInfo{Name: t.name, Kind: t.kind, Holder: holder})
	}
}

// took says how the lock was got, unless that follows from the waiting.
func (t *tracing) took(p Path) {
	if t != nil {
		t.path, t.by = p, nil
	}
}

// handedBy says that the hold was handed over at the end of a section.
func (t *tracing) handedBy(h *hold) {
	if t != nil {
		t.path, t.by = PathHandOff, h.run.by
		h.run.by = nil
	}
}

// ended ends the Lock. If there is no error, ctx is that of the section.
func (t *tracing) ended(ctx context.Context, err error) {
	if t == nil {
		return
	}
	now := time.Now()
	switch {
	case err != nil:
		if t.to.Failed != nil {
			t.to.Failed(ctx, FailedInfo{Name: t.name, Kind: t.kind, Waited: now.Sub(t.at), WasWaiting: t.waiting, Err: err})
		}
		return
	case t.path != 0:
	case t.waiting:
		t.path = PathWoken
	default:
		t.path = PathFree
	}
	if t.to.Acquired != nil {
		t.to.Acquired(ctx, AcquiredInfo{Name: t.name, Kind: t.kind, Path: t.path, Waited: now.Sub(t.at), By: t.by})
	}
	t.ctx, t.at, t.by = ctx, now, nil
}

// released ends the section.
func (t *tracing) released(unlock func() error) error {
	if t == nil || t.to.Released == nil {
		return unlock()
	}
	held := time.Since(t.at)
	err := unlock()
	if errors.Is(err, errUnlockedBefore) {
		return err
	}
	t.to.Released(t.ctx, ReleasedInfo{Name: t.name, Kind: t.kind, Path: t.path, Held: held, Err: err})
	return err
}

// lost tells of the loss of a hold. ctx is that of its section.
func (c *Client) lost(ctx context.Context, kind string, e *LostError) {
	if e.Reason == LostClosed {
		return
	}
	c.stats.lost.Add(1)
	c.warn("rlock: lost", "name", e.Name, "kind", kind, "owner", e.Owner, "since", e.Since, "err", e)
	if t := c.options.Trace; t != nil && t.Lost != nil {
		t.Lost(ctx, LostInfo{Kind: kind, Err: e})
	}
}

// renewed is told of renewals that were confirmed.
func (c *Client) renewed(renewals []lease.Renewal) {
	least, late := c.options.WatchdogTimeout, 0
	for _, r := range renewals {
		h, kind := holdOf(r.Keeper)
		given := c.options.WatchdogTimeout
		if r.Short {
			given = c.grantLease()
		}
		if r.Left < given/3 {
			late++
			least = min(least, r.Left)
		}
		if t := c.options.Trace; t != nil && t.Renewed != nil {
			t.Renewed(RenewedInfo{Name: h.mutex.name, Kind: kind, Left: r.Left, Granted: r.Short})
		}
	}
	if late > 0 {
		c.warn("rlock: renewals are late", "holds", late, "left", least, "watchdog", c.options.WatchdogTimeout)
	}
}

// holdOf is what a lease is for.
func holdOf(k lease.Keeper) (h *hold, kind string) {
	if s, ok := k.(shareKeeper); ok {
		return s.held, "quorum"
	}
	h = k.(keeper).hold //nolint:errcheck // there are no other ones
	return h, h.mutex.kind.name
}

func (c *Client) warn(text string, args ...any) {
	if c.options.Logger != nil {
		c.options.Logger.Warn(text, args...)
	}
}
