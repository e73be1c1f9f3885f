package lease

import (
	"cmp"
	"context"
	"sync"
	"time"
)

// RenewFunc extends the expiry of all items (all of one group) to ttl from now. It must not shorten a later expiry.
// It returns one Verdict per item, or an error, which stands for Failed on all: [ErrRefused] if the store answered,
// so that the items are tried one by one; any other error if it did not.
//
// The Renewer makes several calls at a time, each on its own goroutine. A RenewFunc must return when ctx ends and
// must not change items.
type RenewFunc func(ctx context.Context, group any, ttl time.Duration, items []Item) ([]Verdict, error)

// Options configure a [Renewer].
type Options struct {
	Watchdog time.Duration // the usual ttl, also of guarded leases that are not renewed; must be positive
	Batch    int           // most items in one call; 0: 100

	// Timeout bounds one call, and Close's wait for calls that ignore their ctx; 0: a sixth of Watchdog. A call never
	// takes more than a sixth of its ttl, since a lease needs time for retries.
	Timeout time.Duration

	// Renewed, if set, gets the leases that a call has renewed, on that call's goroutine. It may call any method
	// except Close.
	Renewed func([]Renewal)
}

// Renewal is a successful renewal.
type Renewal struct {
	Keeper Keeper
	Left   time.Duration // of the previous trusted time, when the store had answered
	TTL    time.Duration // of the renewal
	Short  bool          // the previous time was the shorter one of KeepShort
}

// Renewer renews leases and reports lost ones. Its methods are safe for concurrent use. Only Close waits for a call,
// and only Close and CatchUp for a callback.
type Renewer struct {
	renew   RenewFunc
	renewed func([]Renewal) // may be nil
	batch   int
	ttl     time.Duration        // Options.Watchdog
	timeout time.Duration        // see timeoutOf
	clock   func() time.Duration // time since epoch; replaced by benchmarks only

	// epoch is the origin of all instants inside the package: a Duration since epoch takes a third of the room of a
	// Time, and is always monotonic.
	epoch time.Time

	ctx    context.Context // ended by Close; parent of every call's ctx
	cancel context.CancelFunc
	wake   chan struct{}  // holds one token when the loop must look again
	wg     sync.WaitGroup // the loop and the calls

	// mu guards the fields below, all leases kept here, and groups. It is the package's only lock, and a leaf: of a
	// Keeper only Item and Group are called under it, and never the renew function, so callers may hold their own
	// locks when they call in.
	mu      sync.Mutex
	closed  bool
	ends    heap                // every lease kept, by its end of trust
	dues    heap                // renewals and retries, by due time
	horizon time.Duration       // collect up to here; 0 unless the loop is collecting
	telling int                 // calls of Lost in progress
	told    sync.Cond           // telling is 0 again
	groups  map[groupKey]*group // of leases that have been due once
	ready   []*group            // groups with leases queued since the loop last started calls

	// wakeAt is the instant at which the loop looks again; past while it works. It stays if its reason has gone: most
	// holds end long before they are due, and one idle wake-up is cheaper than a wake-up by each hold that is alone
	// (TestLoopIsNotWokenByEachHold).
	wakeAt time.Duration
}

// NewRenewer starts a renewer; Close ends it. It panics if renew is nil or the options are out of range.
func NewRenewer(renew RenewFunc, o Options) *Renewer {
	r := newRenewer(renew, o)
	r.wg.Go(r.loop) // ended by Close
	return r
}

func newRenewer(renew RenewFunc, o Options) *Renewer {
	if renew == nil || o.Watchdog <= 0 || o.Batch < 0 || o.Timeout < 0 {
		panic("lease: NewRenewer needs a renew function, a positive Watchdog, and a Batch and a Timeout that are not negative")
	}
	r := &Renewer{
		renew:   renew,
		renewed: o.Renewed,
		batch:   o.Batch,
		ttl:     o.Watchdog,
		timeout: o.Timeout,
		epoch:   time.Now(),
		wake:    make(chan struct{}, 1),
		ends:    heap{pos: 0},
		dues:    heap{pos: 1},
		groups:  make(map[groupKey]*group),
	}
	if r.batch == 0 {
		r.batch = 100
	}
	if r.timeout == 0 {
		r.timeout = o.Watchdog / 6
	}
	r.told.L = &r.mu
	r.clock = func() time.Duration { return time.Since(r.epoch) }
	r.ctx, r.cancel = context.WithCancel(context.Background())
	return r
}

// Shut is the part of Close that does not wait. It stops renewals and the reporting of losses, cancels the calls in
// flight, and calls Closed for each lease kept.
func (r *Renewer) Shut() {
	r.mu.Lock()
	kept := r.ends.entries
	if !r.closed {
		r.closed = true
		r.cancel() // also ends the loop's sleep
		// From here on every method checks closed first, so these are not needed; the collector can free the leases.
		r.ends, r.dues, r.groups, r.ready = heap{}, heap{}, nil, nil
	}
	r.mu.Unlock()
	for _, e := range kept {
		e.l.keeper.Closed()
	}
}

// Close shuts the renewer, and returns when all its goroutines have ended. It may be called again, but not from a
// Lost, since it waits for that to return. It waits up to Options.Timeout for a call that ignores its ctx, whose
// later result is dropped.
func (r *Renewer) Close() {
	r.Shut()
	gone := make(chan struct{})
	go func() { // ends with the last call
		r.wg.Wait()
		close(gone)
	}()
	select {
	case <-gone:
	case <-time.After(r.timeoutOf(r.ttl)):
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.awaitTold() // by the loop or by callers of CatchUp
}

// Keep starts tracking l for k: l is trusted until `until`. It is renewed for ttl every third of that, or has a fixed
// length if ttl is 0. ttl counts in whole milliseconds.
//
// A Lease is kept once: Keep panics on a second call with l. After Close, Keep tracks nothing and returns false; only
// Until still answers.
func (r *Renewer) Keep(l *Lease, k Keeper, until time.Time, ttl time.Duration) bool {
	return r.keep(l, k, until, ttl, ttl)
}

// KeepShort is Keep for a lease renewed for ttl but first granted for the time first, which may be shorter: its first
// renewal is due a third of that after the grant was requested.
func (r *Renewer) KeepShort(l *Lease, k Keeper, until time.Time, first, ttl time.Duration) bool {
	return r.keep(l, k, until, first, ttl)
}

// Limit bounds the trusted time of l, which is not kept yet: it ends at limit, whatever renews it. Once the trusted
// time reaches the limit, renewals stop.
func (r *Renewer) Limit(l *Lease, limit time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l.limit = max(r.at(limit), 1) // 0 is none
}

func (r *Renewer) keep(l *Lease, k Keeper, until time.Time, first, ttl time.Duration) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l.state != idle {
		panic("lease: Keep of a lease that was kept before")
	}
	l.until = l.upTo(r.at(until))
	if r.closed {
		l.state = ended
		return false
	}
	l.keeper, l.ttl, l.state = k, toMillis(ttl), kept
	if first < ttl {
		l.state = given
	}
	if ttl > 0 || l.guarded {
		r.scheduleFor(l, newJitter(), cmp.Or(first, r.ttl), never)
	}
	r.ends.push(l, l.until)
	r.wakeBy(l.until)
	return true
}

// Update sets the ttl of l's renewals, see [Renewer.Keep], and moves the trusted time to `until` if that is later
// (never earlier). It does nothing if l is lost, stopped or being released.
//
// It works at any time. If l is in a call in flight and ttl is 0, a success of that call no longer moves the trusted
// time.
func (r *Renewer) Update(l *Lease, until time.Time, ttl time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || !l.isKept() {
		return
	}
	at := l.upTo(r.at(until))
	moved := at > l.until
	if moved {
		l.until = at
		r.ends.move(l, at)
	}
	if !moved && l.ttl == toMillis(ttl) {
		return
	}
	l.ttl = toMillis(ttl)
	// A later end means that the expiry was extended by other means (a re-entry), which is as good as a renewal.
	l.tries = 0
	if l.place == inCall {
		return // finish decides what comes next
	}
	by := never
	if l.guarded {
		by = r.dueOf(l) // must not be put off again and again
	}
	r.unschedule(l)
	if ttl > 0 || l.guarded {
		r.scheduleFor(l, newJitter(), r.ttlOf(l), by)
	}
}

// Releasing is for an owner that is about to release the name for good, and calls Stop once it knows the outcome.
// From then on renewals exclude l, Update does nothing, and a call in flight no longer counts for l: its Gone may be
// due to the release itself, which is no loss. The end of the trusted time still is.
func (r *Renewer) Releasing(l *Lease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || !l.isKept() {
		return
	}
	l.state = releasing
	r.unschedule(l)
}

// CatchUp returns when every lease that has ended by now was reported to its keeper, even if the renewer's goroutine
// was not scheduled in time; it calls Lost itself. Call it after acquiring a name that another keeper may have had.
// After an outage longer than the leases, there may be many losses.
func (r *Renewer) CatchUp() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for now := r.clock(); r.ends.first() <= now; {
		r.tell()
	}
	r.awaitTold()
}

// awaitTold returns when no Lost is running. Called under mu, which it releases meanwhile.
func (r *Renewer) awaitTold() {
	for r.telling > 0 {
		r.told.Wait()
	}
}

// Until returns the trusted time of l, also after it was lost or stopped; the zero Time if it was never kept.
func (r *Renewer) Until(l *Lease) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l.state == idle {
		return time.Time{}
	}
	return r.epoch.Add(l.until)
}

// Stop ends the tracking of l: no later renewal includes l, and Lost is not called any more. It does not wait. It may
// cross with a Lost in progress. A renewal in flight may still reach the store, where it changes nothing once the
// name is released: the store compares owners, and an owner is used for one hold only.
//
// It may be called at any time and repeatedly, also after Close.
func (r *Renewer) Stop(l *Lease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l.state == idle || l.state == ended {
		return
	}
	l.state = ended
	if !r.closed {
		r.ends.remove(l)
		r.leave(l)
	}
}

// timeoutOf bounds a call with that ttl.
func (r *Renewer) timeoutOf(ttl time.Duration) time.Duration { return min(ttl/6, r.timeout) }

// at converts t to an instant since epoch.
func (r *Renewer) at(t time.Time) time.Duration { return t.Sub(r.epoch) }
