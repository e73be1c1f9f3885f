package rlock

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/go-rlock/rlock/internal/tenure"
)

// Trace receives the events of a Client's locks, for metrics, spans and logs. Any of its functions may be nil. They are called concurrently,
// must return at once, and not lock. The ctx of Acquired, Released and Lost is that of the section.
//
// [All], [Quorum] and [Upgradeable] report themselves to the Trace of their first lock's Client, and not their members. But Lost and Deadlock
// report the single lock, and All also a Quorum or an Upgradeable in it. A [PermitSemaphore] is reported as a lock.
//
// Waiting, Acquired, Passed, Failed and Released delay only their caller, which gets their panics; these leave no lock held. Lost, Deadlock and
// Renewed are called on a goroutine of the Client, one after the other. If they are slow, some calls are dropped; the Logger gets their number,
// and their panics.
type Trace struct {
	// Waiting is called on its own goroutine when a Lock, Await or Acquire begins to wait, and returns before Acquired, Passed or Failed is called.
	Waiting func(context.Context, WaitingInfo)
	// Acquired is called before a Lock or Adopt succeeds.
	Acquired func(context.Context, AcquiredInfo)
	// Passed is called before an Await of a latch or an Acquire of a [Semaphore] succeeds.
	Passed func(context.Context, PassedInfo)
	// Failed is called before one of these calls fails.
	Failed func(context.Context, FailedInfo)
	// Released is called before the first call of an unlock, or Export, returns.
	Released func(context.Context, ReleasedInfo)
	// Lost is called when a hold is lost, perhaps after Released.
	Lost func(context.Context, LostInfo)
	// Deadlock is called for [DeadlockReport], with the victim's ctx.
	Deadlock func(context.Context, DeadlockInfo)
	// Renewed is called for each renewal of a hold or a kept lock.
	Renewed func(RenewedInfo)
}

// WaitingInfo is the argument of [Trace].Waiting.
type WaitingInfo struct {
	Name, Kind string
	Names      []string // as in AcquiredInfo
	// Holder is the lock's owner, as in Redis; "" for a counter, and if this Lock did not ask because others were in line before it.
	Holder string
}

// AcquiredInfo is the argument of [Trace].Acquired.
type AcquiredInfo struct {
	Name, Kind string
	Names      []string // of an [All], not to be changed; otherwise nil
	Path       Path
	Waited     time.Duration // from the call of Lock
	WasWaiting bool          // Waiting was called for it
	Tried      bool          // it was a TryLock that would not have waited
	// By is the ctx of the section that handed the lock over, with PathHandOff.
	By context.Context
}

// PassedInfo is the argument of [Trace].Passed.
type PassedInfo struct {
	Name, Kind string
	Waited     time.Duration // from the call of Await or Acquire
	WasWaiting bool          // Waiting was called for it
}

// FailedInfo is the argument of [Trace].Failed.
type FailedInfo struct {
	Name, Kind string
	Names      []string      // as in AcquiredInfo
	Waited     time.Duration // from the call of Lock, Await or Acquire
	WasWaiting bool          // Waiting was called for it
	Err        error
}

// ReleasedInfo is the argument of [Trace].Released.
type ReleasedInfo struct {
	Name, Kind string
	Names      []string      // as in AcquiredInfo
	Path       Path          // as in its AcquiredInfo: a PathReentry ends no hold
	Held       time.Duration // from when Lock returned until unlock was called
	Exported   bool          // [Export] ended it; Err is the error of Export
	Err        error         // of the unlock
}

// LostInfo is the argument of [Trace].Lost.
type LostInfo struct {
	Kind string
	Err  *LostError
}

// DeadlockInfo is the argument of [Trace].Deadlock.
type DeadlockInfo struct {
	Kind string // of the lock that is waited for
	Err  *DeadlockError
}

// RenewedInfo is the argument of [Trace].Renewed.
type RenewedInfo struct {
	Name, Kind string
	// Left is how much longer the hold would have been trusted without it: usually two thirds of the watchdog time.
	Left time.Duration
	// Watchdog is the watchdog time of the hold, see [WithWatchdog].
	Watchdog time.Duration
	// Granted is set for the first renewal of a hold that another process handed over, trusted until then for two seconds at most.
	Granted bool
}

// Path is how a Lock got the lock.
type Path int8

const (
	// PathFree: the lock was free, or let a reader into its own writer's section.
	PathFree Path = iota + 1
	// PathReentry: the ctx carried a hold of the lock.
	PathReentry
	// PathHandOff: a goroutine of the same Client handed it over with its unlock.
	PathHandOff
	// PathGrant: another process handed it over with its unlock.
	PathGrant
	// PathWoken: Redis was asked after a wait.
	PathWoken
	// PathShared: others of the same Client were reading.
	PathShared
	// PathKept: the process had kept the lock, see [WithLinger].
	PathKept
	// PathAdopted: it came from a ticket, see [Client.Adopt].
	PathAdopted
)

// String returns free, reentry, handoff, grant, woken, shared, kept or adopted.
func (p Path) String() string {
	names := [...]string{
		PathFree: "free", PathReentry: "reentry", PathHandOff: "handoff", PathGrant: "grant", PathWoken: "woken", PathShared: "shared",
		PathKept: "kept", PathAdopted: "adopted",
	}
	if p < PathFree || int(p) >= len(names) {
		return "unknown"
	}
	return names[p]
}

// tracing follows a traced Lock, and then its section. On a nil *tracing, all methods but those that the engine calls do nothing.
type tracing struct {
	to         *Trace
	name, kind string
	names      []string
	tried      bool            // it does not wait
	ctx        context.Context // of the Lock, then of the section
	at         time.Time       // when Lock was called, then when it returned
	waiting    bool
	told       chan any      // gets what Waiting panicked with, or nil, when it has returned; nil if it is not called
	panicked   chan struct{} // closed when Waiting has panicked
	path       Path
	by         context.Context
	untaken    atomic.Bool // a function of the Trace has panicked: the caller does not get the lock
}

// tracer returns t for the engine; nil if t is nil.
func (t *tracing) tracer() tenure.Tracer {
	if t == nil {
		return nil
	}
	return t
}

// follow begins to trace a Lock for to, of an All's locks with these names; it returns nil if to is nil.
func (to *Trace) follow(who *tenure.Caller, name, kind string, names ...string) *tracing {
	if to == nil {
		return nil
	}
	return &tracing{to: to, name: name, kind: kind, names: names, ctx: who.Ctx, at: who.Began, tried: who.Once}
}

// Waits reports that the Lock begins to wait. Only the first call counts. It does not wait for the function, because the Lock is in a
// queue and may be about to get the lock.
func (t *tracing) Waits(holder string) {
	if t.waiting {
		return
	}
	t.waiting = true
	if f := t.to.Waiting; f != nil {
		ctx, info := t.ctx, WaitingInfo{Name: t.name, Kind: t.kind, Names: t.names, Holder: holder}
		t.told, t.panicked = make(chan any, 1), make(chan struct{})
		go func(told chan<- any, panicked chan<- struct{}) { // ends with the function; the Lock waits for it
			defer func() {
				v := recover()
				told <- v
				if v != nil {
					close(panicked)
				}
			}()
			f(ctx, info)
		}(t.told, t.panicked)
	}
}

// Over is closed when there is a panic for the caller, so that the Lock stops waiting.
func (t *tracing) Over() <-chan struct{} { return t.panicked }

// Took records how the Lock got the lock, unless that follows from the wait.
func (t *tracing) Took(p tenure.Path) {
	t.path, t.by = Path(p), nil
}

// HandedBy records that the end of that section handed the lock over.
func (t *tracing) HandedBy(section context.Context) { t.path, t.by = PathHandOff, section }

// forget discards how single locks of an All were acquired.
func (t *tracing) forget() {
	if t != nil {
		t.path, t.by = 0, nil
	}
}

// ended ends the Lock. Without an error, ctx is that of the section, and begins, if not nil, lets released follow it. It calls giveBack if a
// function of the Trace panics, since the caller then does not get the lock.
func (t *tracing) ended(ctx context.Context, err error, begins, giveBack func()) {
	if t == nil {
		return
	}
	now, returned := time.Now(), false
	defer func() {
		if err == nil && !returned {
			t.untaken.Store(true)
			giveBack()
		}
	}()
	t.awaitWaiting()
	switch {
	case err != nil:
		t.failed(ctx, now, err)
		return
	case t.path != 0:
	case t.waiting:
		t.path = PathWoken
	default:
		t.path = PathFree
	}
	info := AcquiredInfo{
		Name: t.name, Kind: t.kind, Names: t.names, Path: t.path, Waited: now.Sub(t.at), WasWaiting: t.waiting, Tried: t.tried, By: t.by,
	}
	t.ctx, t.at, t.by = ctx, now, nil
	if begins != nil {
		begins() // before anybody has ctx: with it the section can be ended, by Export
	}
	if t.to.Acquired != nil {
		t.to.Acquired(ctx, info)
	}
	returned = true
}

// passed ends an Await or Acquire.
func (t *tracing) passed(err error) {
	if t == nil {
		return
	}
	now := time.Now()
	t.awaitWaiting()
	switch {
	case err != nil:
		t.failed(t.ctx, now, err)
	case t.to.Passed != nil:
		t.to.Passed(t.ctx, PassedInfo{Name: t.name, Kind: t.kind, Waited: now.Sub(t.at), WasWaiting: t.waiting})
	}
}

// awaitWaiting waits until the function Waiting has returned, and passes its panic on to the caller.
func (t *tracing) awaitWaiting() {
	if t.told != nil {
		if v := <-t.told; v != nil {
			panic(v)
		}
	}
}

func (t *tracing) failed(ctx context.Context, now time.Time, err error) {
	if t.to.Failed != nil {
		t.to.Failed(ctx, FailedInfo{Name: t.name, Kind: t.kind, Names: t.names, Waited: now.Sub(t.at), WasWaiting: t.waiting, Err: err})
	}
}

// released ends the section.
func (t *tracing) released(unlock func() error) error {
	if t == nil || t.to.Released == nil || t.untaken.Load() {
		return unlock()
	}
	held := time.Since(t.at)
	err := unlock()
	if errors.Is(err, tenure.ErrUnlockedBefore) {
		return err
	}
	l, ok := t.ctx.(*tenure.Level)
	t.to.Released(t.ctx, ReleasedInfo{
		Name: t.name, Kind: t.kind, Names: t.names, Path: t.path, Held: held, Exported: ok && l.IsExported(), Err: err,
	})
	return err
}
