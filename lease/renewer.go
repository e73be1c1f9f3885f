package lease

import (
	"cmp"
	"context"
	"sync"
	"time"
)

// RenewFunc extends the expiry of all items (all of one group) to ttl from now. It must not shorten an expiry that is
// later than that. It returns one Verdict per item, or an error that stands for Failed on all: [ErrRefused] if the store
// answered, so that the items should be tried one by one, any other if it did not.
//
// It is called on a goroutine of its own, several at a time, and must return when ctx ends. It must not change items.
type RenewFunc func(ctx context.Context, group any, ttl time.Duration, items []Item) ([]Verdict, error)

// Options set up a [Renewer].
type Options struct {
	Watchdog time.Duration // the usual ttl, and that of leases that are not renewed but guarded; must be positive
	Batch    int           // most items in one call; 0: 100

	// Timeout is the most that one call may take, and that Close waits for calls that do not heed their ctx; 0: a sixth of Watchdog. No call
	// may take more than a sixth of its ttl: a lease needs time for further tries.
	Timeout time.Duration

	// Renewed, if it is set, is told of the leases that a call has renewed, on the goroutine of that call. It may call any
	// method except Close.
	Renewed func([]Renewal)
}

// Renewal is the success of a renewal.
type Renewal struct {
	Keeper Keeper
	Left   time.Duration // of the time that the lease was trusted for before, when the store had answered
	TTL    time.Duration // of the renewal
	Short  bool          // that was the shorter time of KeepShort
}

// Renewer keeps leases: it renews the ones that are to be renewed and reports the ones that are lost. Its methods are
// safe for concurrent use. None but Close waits for a call, and none but Close and CatchUp for a callback.
type Renewer struct {
	renew   RenewFunc
	renewed func([]Renewal) // nil: nobody wants to know
	batch   int
	ttl     time.Duration        // Options.Watchdog
	timeout time.Duration        // see timeoutOf
	clock   func() time.Duration // time since epoch; replaced by benchmarks only

	// epoch is the origin of all instants inside the package: a Duration since epoch takes a third of the room of a Time,
	// and is always monotonic.
	epoch time.Time

	ctx    context.Context // ended by Close; parent of every call's
	cancel context.CancelFunc
	wake   chan struct{}  // holds one token when the loop shall look again
	wg     sync.WaitGroup // the loop and the calls

	// mu guards the following, all leases kept here, and groups. It is the only lock of the package, and a leaf: no
	// method of a Keeper but Item and Group is called under it, nor is the renew function, so callers may hold their
	// own locks when they call in.
	mu      sync.Mutex
	closed  bool
	ends    heap                // every lease kept, by its end of trust
	dues    heap                // renewals, first and further tries, by due time
	horizon time.Duration       // collect up to here; 0 unless the loop is collecting
	telling int                 // losses that are being passed on
	told    sync.Cond           // telling is 0 again
	groups  map[groupKey]*group // of leases that have been due once
	ready   []*group            // those that leases were queued in since the loop last started calls

	// wakeAt is the instant at which the loop looks again; past while it works. It stays if what it was for has gone:
	// most holds end long before they are due, and waking once for nothing is cheaper than being woken by each hold
	// that is the only one (TestLoopIsNotWokenByEachHold).
	wakeAt time.Duration
}

// NewRenewer starts a renewer; Close ends it. It panics when renew is nil or the options are out of range.
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

// Shut is the part of Close that waits for nothing: it stops renewals and the reporting of losses, cancels the calls in flight, and tells
// the keepers of all leases that are kept.
func (r *Renewer) Shut() {
	r.mu.Lock()
	kept := r.ends.entries
	if !r.closed {
		r.closed = true
		r.cancel() // ends the loop's sleep, too
		// From here on every method looks at closed first, so nobody misses these; the leases are free for the collector.
		r.ends, r.dues, r.groups, r.ready = heap{}, heap{}, nil, nil
	}
	r.mu.Unlock()
	for _, e := range kept {
		e.l.keeper.Closed()
	}
}

// Close shuts the renewer, and returns when all goroutines are gone. It may be called again, but not from a Lost, for whose
// return it waits. For a call that does not heed its ctx it waits up to Options.Timeout; what such a call says
// later is dropped.
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

// Keep starts tracking l for k: it is trusted until `until`, and renewed for ttl every third of that, or of fixed length if ttl is 0. A ttl is in
// whole milliseconds.
//
// A Lease is kept once: Keep panics when it is called with l again. After Close, Keep tracks nothing and reports
// false; only Until will answer.
func (r *Renewer) Keep(l *Lease, k Keeper, until time.Time, ttl time.Duration) bool {
	return r.keep(l, k, until, ttl, ttl)
}

// KeepShort is Keep for a lease that is renewed for ttl, and was given for the time first, which may be less: its first renewal is due a third
// of that after it was sent for.
func (r *Renewer) KeepShort(l *Lease, k Keeper, until time.Time, first, ttl time.Duration) bool {
	return r.keep(l, k, until, first, ttl)
}

// Limit bounds the trusted time of l, which is not kept yet: it ends then, whatever renews it. When the trusted time has come to
// the limit there are no more renewals.
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

// Update sets for how long l is renewed, see [Renewer.Keep], and moves the trusted time to `until` if that is later (never earlier). It does
// nothing when l is lost, stopped or being released.
//
// It works at any time. When l is in a call in flight and ttl is 0, a success of that call does not move the
// trusted time any more.
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
		by = r.dueOf(l) // it does no harm, and must not be put off again and again
	}
	r.unschedule(l)
	if ttl > 0 || l.guarded {
		r.scheduleFor(l, newJitter(), r.ttlOf(l), by)
	}
}

// Releasing is for an owner that is about to release the name for good, and will call Stop when it knows what became
// of that. No new renewal includes l, Update does nothing any more, and what a call in flight says of l does not count:
// Gone would be said also if the release got to the store first, and is no loss then. The end of the trusted time is.
func (r *Renewer) Releasing(l *Lease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || !l.isKept() {
		return
	}
	l.state = releasing
	r.unschedule(l)
}

// CatchUp returns when the keepers of all leases that have ended by now were told, even if the renewer's goroutine has
// not been scheduled in time; it tells them itself. It is for whoever got a name that may have been another keeper's.
// After an outage that was longer than the leases, those may be many.
func (r *Renewer) CatchUp() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for now := r.clock(); r.ends.first() <= now; {
		r.tell()
	}
	r.awaitTold()
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

// Stop ends the tracking of l: no renewal that starts after it includes l, and Lost is not called any more. It waits
// for nothing. A loss that is being told in this moment may cross with it, and a renewal in flight may still reach
// the store, where it changes nothing once the name is released: the store compares owners, and an owner is used
// for one hold only.
//
// It may be called at any time and again, also after Close.
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

// timeoutOf is the most that a call with that ttl may take.
func (r *Renewer) timeoutOf(ttl time.Duration) time.Duration { return min(ttl/6, r.timeout) }

// at converts a time.
func (r *Renewer) at(t time.Time) time.Duration { return t.Sub(r.epoch) }
