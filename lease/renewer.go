package lease

import (
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

// timeoutOf bounds a call with that ttl.
func (r *Renewer) timeoutOf(ttl time.Duration) time.Duration { return min(ttl/6, r.timeout) }
