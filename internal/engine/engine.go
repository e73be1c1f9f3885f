package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/internal/sweep"
	"github.com/go-rlock/rlock/lease"
	"github.com/go-rlock/rlock/lua"
	"github.com/go-rlock/rlock/pubsub"
)

// Engine is what the locks of a Client have in common.
type Engine struct {
	rdb     rueidis.Client
	Calls   *calls.Calls // done with when Close begins; stopped after closeGrace
	ID      string       // the client part of its owner fields
	Options Options
	errs    *Errors
	Hub     *pubsub.Hub
	Leases  *lease.Renewer
	Cluster *Topology // nil unless rdb is a cluster client

	noQueues    atomic.Bool     // the user may not use those of processes
	noMarks     atomic.Bool     // nor the marks of writers
	connections lua.Connections // for Options.Replicas
	sweepers    *sweep.Sweepers
	stats       counters
	insiders    insiders

	shutting, emptied sync.Once
	Shut              chan struct{} // closed by Shutdown at once: no new holds
	empty             chan struct{} // closed when there is no hold any more after that

	telling          sync.Once
	holdersCancelled chan struct{} // closed before the holders are told of the end: nothing is renewed after that

	closing sync.Once
	over    chan struct{} // closed at the end of Close, for which others that close wait

	mu     sync.Mutex     // guards the following; no other lock is taken under it
	placed *lease.Renewer // see places; nil until something waited for a fair lock
}

// Options are those of an engine. They are valid: Errors, Tell and the times are set.
type Options struct {
	Errors          Errors
	Tell            Teller
	WatchdogTimeout time.Duration // the lease of what is renewed
	UnlockTimeout   time.Duration // for how long an unlock keeps its caller waiting
	HandOff         RunBound
	Replicas        int                   // that have to confirm an acquire
	ReplicaTimeout  time.Duration         // for how long it waits for them, if there are any
	Renewed         func([]lease.Renewal) // hears of confirmed renewals, whose keepers are About a lock; nil: nobody does
	PlainPubSub     bool                  // on a cluster: unlocks are published to all nodes
}

const (
	// closeGrace is how long Close waits for the replies of commands in flight, so that what they acquire can be given back.
	closeGrace = calls.Timeout
	// closeLimit is how long Close waits in all: there is time for one more call after the grace. What is still in flight then
	// waits for rueidis to take a command or to give it a connection, which no ctx can end.
	closeLimit = closeGrace + 2*calls.LastTimeout
)

// New begins one for the locks in the Redis of rdb. id is to be new. It sends nothing.
func New(rdb rueidis.Client, id string, o Options) *Engine {
	c := &Engine{
		rdb:              rdb,
		Calls:            calls.New(rdb, o.Errors.Closed),
		ID:               id,
		Options:          o,
		Shut:             make(chan struct{}),
		empty:            make(chan struct{}),
		holdersCancelled: make(chan struct{}),
		over:             make(chan struct{}),
	}
	c.sweepers = sweep.New(c.Calls, rdb)
	c.errs = &c.Options.Errors
	c.Hub = pubsub.New(rdb, c.ID)
	c.Hub.Run = openRunFor
	if rdb.Mode() == rueidis.ClientModeCluster {
		c.Cluster = &Topology{known: o.PlainPubSub}
	}
	c.Leases = lease.NewRenewer(c.renew, lease.Options{Watchdog: o.WatchdogTimeout, Timeout: calls.Timeout, Renewed: o.Renewed})
	return c
}

// Close ends the engine; all calls of it return when it has ended. So no call of it is under way, unless rueidis keeps it for too long.
func (c *Engine) Close() {
	first := false
	c.closing.Do(func() { first = true })
	if first {
		c.end()
		close(c.over)
	}
	<-c.over
}

func (c *Engine) end() {
	c.shutting.Do(func() { close(c.Shut) }) // first: who is told of the end by a call looks there
	c.Calls.Close()
	grace := time.AfterFunc(closeGrace, c.Calls.Stop)
	defer grace.Stop()
	c.Hub.Stop() // tells the waiters
	c.tellHolders()
	ended := make(chan struct{})
	go func() { // ends with all that it waits for
		defer close(ended)
		var all sync.WaitGroup
		all.Go(c.Leases.Close)
		c.mu.Lock()
		places := c.placed // no other comes any more
		c.mu.Unlock()
		if places != nil {
			all.Go(places.Close)
		}
		all.Go(c.Hub.Close)
		all.Wait()
		c.Calls.Wait()
	}()
	limit := time.NewTimer(closeLimit)
	defer limit.Stop()
	select {
	case <-ended:
	case <-limit.C:
	}
	c.Options.Tell.Flush()
}

// lastWait is how long shutdown waits for the unlocks of sections whose ctx it has cancelled.
const lastWait = time.Second

// Shutdown closes the engine when its sections have ended, or ctx is done. Until then sections go on, and nothing else begins.
func (c *Engine) Shutdown(ctx context.Context) error {
	c.shutting.Do(func() { close(c.Shut) })
	if c.stats.holds.Load() == 0 {
		c.emptied.Do(func() { close(c.empty) })
	}
	c.Hub.Drain() // tells the waiters
	err := c.awaitEmpty(ctx)
	if err != nil {
		c.tellHolders()
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastWait)
		defer cancel()
		_ = c.awaitEmpty(last)
	}
	c.Close()
	return err
}

// awaitEmpty waits until all sections have unlocked, or the Client is closed by somebody else.
func (c *Engine) awaitEmpty(ctx context.Context) error {
	select {
	case <-c.empty:
		return nil
	case <-c.Calls.Done():
		return nil
	default:
	}
	select {
	case <-c.empty:
	case <-c.Calls.Done():
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// tellHolders ends the contexts of all sections, and the renewals.
func (c *Engine) tellHolders() {
	c.telling.Do(func() { close(c.holdersCancelled) })
	c.Leases.Shut()
}

// IsTold reports whether the holders have been told, or are being told.
func (c *Engine) IsTold() bool {
	select {
	case <-c.holdersCancelled:
		return true
	default:
		return false
	}
}

// IsShut reports whether no new hold may begin but within a section.
func (c *Engine) IsShut() bool {
	select {
	case <-c.Shut:
		return true
	default:
		return false
	}
}

// handsOff reports whether an unlock gives the lock to a waiter, here or in another process. Replicas do not confirm such a
// grant.
func (c *Engine) handsOff() bool { return c.Options.HandOff.Most > 0 && c.Options.Replicas == 0 }

// maxGrantLease bounds for how long a lock is given to another process, until that renews it: it may have died.
const maxGrantLease = 2 * time.Second

func (c *Engine) grantLease() time.Duration { return GrantLease(c.Options.WatchdogTimeout) }

// GrantLease is for how long a lock is given to another process that has that watchdog time.
func GrantLease(watchdog time.Duration) time.Duration { return min(maxGrantLease, watchdog) }

// placeLease is for how long a place lasts unless it is refreshed, and with that how long a waiter keeps others waiting that was
// stopped, or died unseen.
const placeLease = 5 * time.Second

func (c *Engine) placeLease() time.Duration { return min(placeLease, c.Options.WatchdogTimeout) }

// IsOwn reports whether an owner field belongs to this client.
func (c *Engine) IsOwn(field string) bool { return kinds.IsOf(c.ID, field) }

// renew sends renewals to Redis for the renewer.
func (c *Engine) renew(ctx context.Context, group any, ttl time.Duration, items []lease.Item) ([]lease.Verdict, error) {
	g := group.(renewal) //nolint:errcheck // there are no other groups
	holds := make([]lua.Hold, len(items))
	for i, item := range items {
		if holds[i] = lua.Hold(item); item.Lease > 0 {
			holds[i].Lease = longer(item.Lease, g.grace)
		}
	}
	answers, err := g.kind.Renew(ctx, c.rdb, longer(ttl, g.grace), holds)
	c.Calls.Answered(g.slot, err)
	return verdicts(answers, err)
}

// verdicts translates the answers of Redis for the renewer.
func verdicts(answers []lua.Renewal, err error) ([]lease.Verdict, error) {
	var redisErr *rueidis.RedisError
	// TRYAGAIN passes only when the slot has moved; until then it is the answer to any call for
	// both a key that has moved and one that has not.
	if errors.As(err, &redisErr) && (!calls.MayPass(err) || redisErr.IsTryAgain()) {
		return nil, fmt.Errorf("%w: %w", lease.ErrRefused, err)
	}
	if err != nil {
		return nil, err
	}
	verdicts := make([]lease.Verdict, len(answers))
	for i, a := range answers {
		switch a {
		case lua.Renewed:
			verdicts[i] = lease.Renewed
		case lua.Gone:
			verdicts[i] = lease.Gone
		default:
			verdicts[i] = lease.Failed
		}
	}
	return verdicts, nil
}

// renewal is what all holds renewed by one call have in common: the script, how much longer than trusted they last in Redis, and
// on a cluster the slot.
type renewal struct {
	kind  *kinds.Kind
	grace time.Duration
	slot  uint16
}

func (c *Engine) group(m *Spec) any { return renewal{kind: m.Kind, grace: m.Grace, slot: m.Slot} }

// ReleaseOnce sends a release that is to arrive even if the client is closing.
func (c *Engine) ReleaseOnce(m *Spec, args lua.ReleaseArgs) (held bool, err error) {
	ctx, cancel := c.Calls.Last()
	defer cancel()
	reply, err := c.release(ctx, m, args)
	return reply.Status != lua.NotHeld, err
}

func (c *Engine) release(ctx context.Context, m *Spec, args lua.ReleaseArgs) (lua.ReleaseReply, error) {
	reply, err := lua.Release(ctx, c.rdb, args)
	c.Calls.Answered(m.Slot, err)
	if reply.NoQueue && err == nil {
		c.forbidden(args.Side).Store(true)
	}
	return reply, err
}
