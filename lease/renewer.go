package lease

import (
	"context"
	"math"
	"math/rand/v2"
	"sync"
	"time"
)

// RenewFunc extends the expiry of all items (all of one group) to ttl from
// now. It returns one Verdict per item, or an error that stands for Failed on
// all: [ErrRefused] if the store answered, so that the items should be tried one
// by one, any other if it did not. It must not shorten an expiry that is later
// than that.
//
// It's called on a goroutine of its own, several at a time, and must return
// when ctx ends. It must not change items.
type RenewFunc func(ctx context.Context, group any, ttl time.Duration, items []Item) ([]Verdict, error)

// Options set up a [Renewer].
type Options struct {
	Watchdog time.Duration // ttl of every renewal; renewals are due every third of it; must be positive
	Batch    int           // most items in one call; 0: 100
}

// Renewer keeps leases: it renews the ones that are to be renewed and reports
// the ones that are lost. Its methods are safe for concurrent use. None but
// Close waits for a call, and none but Close and CatchUp for a callback.
type Renewer struct {
	renew RenewFunc
	batch int
	clock func() time.Duration // time since epoch; replaced by benchmarks only

	// All derived from Options.Watchdog.
	ttl      time.Duration // of every renewal
	period   time.Duration // from one renewal to the next, on average
	interval time.Duration // from one renewal to the next, at most: the jitter makes it a period
	slack    time.Duration // how much earlier a lease's first renewal may go, to fill a batch
	timeout  time.Duration // of one call
	retryMin time.Duration // first backoff
	retryMax time.Duration // last backoff
	spareMax time.Duration // the same of a store that refuses everything

	// epoch is the origin of all instants inside the package: a Duration since
	// epoch takes a third of the room of a Time, and is always monotonic.
	epoch time.Time

	ctx    context.Context // ended by Close; parent of every call's
	cancel context.CancelFunc
	wake   chan struct{}  // holds one token when the loop shall look again
	wg     sync.WaitGroup // the loop and the calls

	// mu guards the following, all leases kept here, groups and calls. It is
	// the only lock of the package, and a leaf: neither the renew function nor
	// Lost is called under it, so a caller may hold its own locks
	// when it calls in.
	mu      sync.Mutex
	closed  bool
	ends    heap           // every lease kept, by its end of trust
	dues    heap           // renewals by due time
	retries heap           // renewals after a failure; apart from dues as no slack applies to a backoff
	telling int            // losses that are being passed on
	told    sync.Cond      // telling is 0 again
	groups  map[any]*group // of leases that have been due once
	ready   []*group       // the ones that may be able to start a call
	horizon time.Duration  // take renewals due up to here; 0 unless the loop is taking
	sleep   time.Duration  // the loop sleeps until then; awake while it works
	// plan is the next instant at which the loop looks again in any case. It stays if what it was for has gone:
	// most holds end long before they are due, and waking once for nothing is cheaper than being woken by each
	// hold that is the only one.
	plan time.Duration
}

// awake is the value of Renewer.sleep while the loop works: earlier than any
// instant, so nobody wakes it.
const awake = time.Duration(math.MinInt64)

// NewRenewer starts a renewer; Close ends it. It panics when renew is nil or
// the options are out of range.
func NewRenewer(renew RenewFunc, o Options) *Renewer {
	r := newRenewer(renew, o)
	r.wg.Go(r.loop) // ended by Close
	return r
}

func newRenewer(renew RenewFunc, o Options) *Renewer {
	if renew == nil || o.Watchdog <= 0 || o.Batch < 0 {
		panic("lease: NewRenewer needs a renew function, a positive Watchdog and a Batch that is not negative")
	}
	r := &Renewer{
		renew:    renew,
		batch:    o.Batch,
		ttl:      o.Watchdog,
		period:   o.Watchdog / 3,
		interval: o.Watchdog/3 + o.Watchdog/3/18, // not /19, so that there are never more calls than n/batch
		slack:    o.Watchdog / 20,
		timeout:  o.Watchdog / 6,
		retryMin: max(o.Watchdog/100, 10*time.Millisecond),
		epoch:    time.Now(),
		wake:     make(chan struct{}, 1),
		ends:     heap{pos: 0},
		dues:     heap{pos: 1},
		retries:  heap{pos: 1}, // shares no lease with dues, see place
		groups:   make(map[any]*group),
		sleep:    awake,
	}
	if r.batch == 0 {
		r.batch = 100
	}
	// Short, since whoever waits longer sleeps through a store that recovers only for a moment. It costs
	// little: while there are no answers a group has few calls under way, of a whole batch each.
	r.retryMax = max(o.Watchdog/30, r.retryMin)
	r.spareMax = max(o.Watchdog/6, r.retryMin)
	r.told.L = &r.mu
	r.clock = func() time.Duration { return time.Since(r.epoch) }
	r.ctx, r.cancel = context.WithCancel(context.Background())
	return r
}

// Close stops renewals and the reporting of losses, cancels the calls in
// flight, tells the keepers of all leases that are kept, and returns when all
// goroutines are gone. It may be called again, but not from a Lost, for whose
// return it waits.
func (r *Renewer) Close() {
	r.mu.Lock()
	kept := r.ends.entries
	if !r.closed {
		r.closed = true
		r.cancel() // ends the loop's sleep, too
		// From here on every method looks at closed first, so nobody misses
		// these; the leases are free for the collector.
		r.ends, r.dues, r.retries, r.groups, r.ready = heap{}, heap{}, heap{}, nil, nil
	}
	r.mu.Unlock()
	for _, e := range kept {
		e.l.keeper.Closed()
	}
	r.wg.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.awaitTold() // by callers of CatchUp
}

// Keep starts tracking l for k: it is trusted until `until`, and renewed or of fixed
// length.
//
// A Lease is kept once: Keep panics when it is called with l again. After Close,
// Keep tracks nothing and reports false; only Until will answer.
func (r *Renewer) Keep(l *Lease, k Keeper, until time.Time, renewed bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l.state != idle {
		panic("lease: Keep of a lease that was kept before")
	}
	l.until = r.at(until)
	if r.closed {
		l.state = stopped
		return false
	}
	l.state = kept
	l.keeper, l.renewed = k, renewed
	r.ends.push(l, l.until)
	r.poke(l.until)
	if renewed {
		r.schedule(l, newJitter())
	}
	return true
}

// Update sets whether l is renewed, and moves the trusted time to `until` if
// that is later (never earlier). It does nothing when l is lost or stopped.
//
// It works at any time. When l is in a call in flight and renewed is false, a
// success of that call doesn't move the trusted time any more.
func (r *Renewer) Update(l *Lease, until time.Time, renewed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || l.state != kept {
		return
	}
	at := r.at(until)
	moved := at > l.until
	if moved {
		l.until = at
		r.ends.move(l, at)
	}
	if !moved && l.renewed == renewed {
		return
	}
	l.renewed = renewed
	if l.place == inCall {
		return // finish decides what comes next
	}
	r.unplace(l)
	if renewed {
		// A later end means that the expiry was extended by other means (a
		// re-entry), which is as good as a renewal.
		l.tries = 0
		r.schedule(l, newJitter())
	}
}

// Releasing is for an owner who is about to release the name for good, and will
// call Stop when it knows what became of that. No new renewal includes l, and
// what a call in flight says of it doesn't count any more: Gone would be said
// also if the release got to the store first, and isn't a loss then. The end of
// the trusted time is.
func (r *Renewer) Releasing(l *Lease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || l.state != kept {
		return
	}
	l.renewed, l.releasing = false, true
	r.unplace(l)
}

// CatchUp returns when the keepers of all leases that have ended by now were told, even if the renewer's
// goroutine has not been scheduled in time; it tells them itself. It's for whoever got a name that may have been another
// keeper's. After an outage that was longer than the leases, those may be many.
func (r *Renewer) CatchUp() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for now := r.clock(); r.ends.first() <= now; {
		r.tell()
	}
	r.awaitTold()
}

// Until returns the trusted time of l, also after it was lost or stopped; the
// zero Time if it was never kept.
func (r *Renewer) Until(l *Lease) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l.state == idle {
		return time.Time{}
	}
	return r.epoch.Add(l.until)
}

// Stop ends the tracking of l: after it returns, no new renewal includes l and
// Lost isn't called. Should the renewer be at calling Lost in this moment, Stop
// doesn't wait for it: the caller must bear that a loss and Stop cross.
//
// It returns nil, or, when a renew call that includes l is in flight, a
// channel that is closed when that call has ended. A caller that waits for it
// before it releases the name knows that no renewal is sent after. What a call
// that was given up had already sent may still be on its way to the store,
// which must therefore compare owners.
//
// It may be called at any time and again, also after Close.
func (r *Renewer) Stop(l *Lease) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l.state == kept || l.state == gone {
		l.state = stopped
		if !r.closed {
			r.ends.remove(l)
			r.leave(l)
		}
	}
	if l.call == nil {
		return nil
	}
	if l.call.done == nil {
		l.call.done = make(chan struct{})
	}
	return l.call.done
}

// at converts a time.
func (r *Renewer) at(t time.Time) time.Duration { return t.Sub(r.epoch) }

// jitter is what to multiply a wait with to shorten it by up to a tenth, so that
// processes don't march in step.
type jitter float64

func newJitter() jitter { return jitter(1 - rand.Float64()/10) }

func (j jitter) of(d time.Duration) time.Duration { return time.Duration(float64(j) * float64(d)) }

// poke makes the loop look again if it would sleep past at. Called under mu.
func (r *Renewer) poke(at time.Duration) {
	if at >= r.sleep {
		return
	}
	r.sleep = awake // one token is enough
	r.plan = min(r.plan, at)
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// schedule puts a lease that is nowhere among the renewals due, a period after
// its last success was sent. Called under mu.
//
// The time of that success is taken from the end of trust. That is the same
// for a lease that was acquired for, or renewed to, the watchdog time. For one
// with more time left it is what the rule "never shorten an expiry" asks for:
// no renewal before it would gain something.
func (r *Renewer) schedule(l *Lease, j jitter) {
	due := l.until - r.ttl + j.of(r.interval)
	l.place = inDues
	r.dues.push(l, due)
	if l.g != nil {
		l.g.resting.push(l)
	}
	r.poke(due)
}

// unplace takes a lease from where it waits for its renewal. Called under mu.
func (r *Renewer) unplace(l *Lease) {
	switch l.place {
	case inDues:
		r.dues.remove(l)
		if l.g != nil {
			l.g.resting.remove(l)
		}
	case inRetries:
		r.retries.remove(l)
	case inQueue:
		l.g.queue(l).remove(l)
	case inCall:
		return // ended by finish only
	case nowhere:
	}
	l.place = nowhere
}

// leave ends the renewal of a lease that is lost or stopped. Called under mu.
func (r *Renewer) leave(l *Lease) {
	r.unplace(l)
	if g := l.g; g != nil {
		l.g = nil
		g.members--
		r.forget(g)
	}
}

// forget drops a group that nobody uses. Called under mu.
func (r *Renewer) forget(g *group) {
	if g.members == 0 && g.calls == 0 {
		delete(r.groups, g.key)
	}
}
