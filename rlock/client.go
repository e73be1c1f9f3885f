package rlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/lease"
	"github.com/go-rlock/rlock/lua"
	"github.com/go-rlock/rlock/pubsub"
)

// Client makes locks. A process needs one for each Redis: a hold of one Client is not re-entered through another. All of its
// methods are safe for concurrent use.
//
// It runs these goroutines, and [Client.Close] ends all of them:
//
//   - one that keeps the leases;
//   - one that keeps the places of waiters, once a FairMutex was waited for;
//   - one for each Redis node on which something is waited for, with a connection of its own;
//   - when needed, one that undoes what calls without an answer may have done; on a cluster, one for each slot;
//   - one for each call in flight whose caller may leave, or for which nobody waits;
//   - one each that calls the Logger and the Trace, while they have something to be told.
type Client struct {
	rdb     rueidis.Client
	calls   *calls.Calls // done with when Close begins; stopped after closeGrace
	id      string       // the client part of its owner fields
	options Options
	hub     *pubsub.Hub
	leases  *lease.Renewer
	cluster *topology // nil unless rdb is a cluster client

	noQueues    atomic.Bool     // the user may not use those of processes
	noMarks     atomic.Bool     // nor the marks of writers
	connections lua.Connections // for Options.Replicas
	sweepers    sweepers
	stats       counters
	tellers     tellers
	insiders    insiders

	shutting, emptied sync.Once
	shut              chan struct{} // closed by Shutdown at once: no new holds
	empty             chan struct{} // closed when there is no hold any more after that

	telling          sync.Once
	holdersCancelled chan struct{} // closed before the holders are told of the end: nothing is renewed after that

	closing sync.Once
	over    chan struct{} // closed at the end of Close, for which others that close wait

	mu     sync.Mutex     // guards the following; no other lock is taken under it
	placed *lease.Renewer // see places; nil until something waited for a fair lock
}

const (
	// closeGrace is how long Close waits for the replies of commands in flight, so that what they acquire can be given back.
	closeGrace = calls.Timeout
	// closeLimit is how long Close waits in all: there is time for one more call after the grace. What is still in flight then
	// waits for rueidis to take a command or to give it a connection, which no ctx can end.
	closeLimit = closeGrace + 2*lastCallTimeout
)

// New returns a Client that keeps its locks in the Redis of rdb: a standalone, sentinel or cluster client of rueidis. It sends
// nothing. The caller closes rdb, after the Client.
//
// While something waits for a lock, and for a few seconds more, one connection of rdb's blocking pool is in use for each node
// concerned (see BlockingPoolSize of [rueidis.ClientOption]). With Options.Replicas, each acquire in flight needs one more. With
// ConnLifetime, rueidis repeats commands by itself; the Client allows for that.
//
// New fails if rdb is nil or an option is out of range.
func New(rdb rueidis.Client, o Options) (*Client, error) {
	if rdb == nil {
		return nil, errors.New("rlock: rueidis client is nil")
	}
	o, err := o.validate()
	if err != nil {
		return nil, err
	}
	id, err := uuid.NewRandom()
	if err != nil {
		return nil, fmt.Errorf("rlock: client id: %w", err)
	}
	c := &Client{
		rdb:              rdb,
		calls:            calls.New(rdb, ErrClosed),
		id:               id.String(),
		options:          o,
		shut:             make(chan struct{}),
		empty:            make(chan struct{}),
		holdersCancelled: make(chan struct{}),
		over:             make(chan struct{}),
	}
	c.newTellers()
	c.hub = pubsub.New(rdb, c.id)
	c.hub.Run = openRunFor
	if rdb.Mode() == rueidis.ClientModeCluster {
		c.cluster = &topology{known: o.PlainPubSub}
	}
	leases := lease.Options{Watchdog: o.WatchdogTimeout, Timeout: calls.Timeout}
	if o.Logger != nil || o.Trace != nil && o.Trace.Renewed != nil {
		leases.Renewed = c.renewed
	}
	c.leases = lease.NewRenewer(c.renew, leases)
	return c, nil
}

// Close ends everything that the Client does. Waiting calls return [ErrClosed], and the contexts of sections are cancelled with a
// [LostError] that satisfies ErrClosed. Calls after it return ErrClosed.
//
// Close waits for all calls in flight, even for a Lock that cannot be cancelled, and gives back what they get. That takes no time
// if Redis answers, and about five seconds if it does not. Then Close gives [Options].Logger and Trace up to a second for what is
// still queued, and drops the rest.
//
// When Close returns, no subscription is left. No goroutine is left either, except
//
//   - a bounded number that wait for rueidis to give them a connection;
//   - those that wait for rueidis to take a command that it has no room for;
//   - those in which a function of the Logger or the Trace has not returned.
//
// Close may be called more than once, and concurrently with everything. It does not release holds, since their sections may still
// be running: an unlock after Close releases as before, and a hold that is not unlocked ends with its lease.
func (c *Client) Close() {
	if c == nil || c.rdb == nil {
		panic("rlock: a Client that was not made by New")
	}
	first := false
	c.closing.Do(func() { first = true })
	if first {
		c.close()
		close(c.over)
	}
	<-c.over
}

func (c *Client) close() {
	c.calls.Close()
	c.shutting.Do(func() { close(c.shut) })
	grace := time.AfterFunc(closeGrace, c.calls.Stop)
	defer grace.Stop()
	c.hub.Stop() // tells the waiters
	c.tellHolders()
	ended := make(chan struct{})
	go func() { // ends with all that it waits for
		defer close(ended)
		var all sync.WaitGroup
		all.Go(c.leases.Close)
		if places := c.places(); places != nil {
			all.Go(places.Close)
		}
		all.Go(c.hub.Close)
		all.Wait()
		c.calls.Wait()
	}()
	limit := time.NewTimer(closeLimit)
	defer limit.Stop()
	select {
	case <-ended:
	case <-limit.C:
	}
	c.tellers.flush()
}

// ID returns the Client's part of its owner fields in Redis, a UUID: see [Owner].
func (c *Client) ID() string { return c.id }

// handsOff reports whether an unlock gives the lock to a waiter, here or in another process. Replicas do not confirm such a
// grant.
func (c *Client) handsOff() bool { return c.options.HandOff.Most > 0 && c.options.Replicas == 0 }

// isOwn reports whether an owner field belongs to this client.
func (c *Client) isOwn(field string) bool { return kinds.IsOf(c.id, field) }

// renew sends renewals to Redis for the renewer.
func (c *Client) renew(ctx context.Context, group any, ttl time.Duration, items []lease.Item) ([]lease.Verdict, error) {
	g := group.(renewal) //nolint:errcheck // there are no other groups
	holds := make([]lua.Hold, len(items))
	for i, item := range items {
		if holds[i] = lua.Hold(item); item.Lease > 0 {
			holds[i].Lease = longer(item.Lease, g.grace)
		}
	}
	answers, err := g.kind.Renew(ctx, c.rdb, longer(ttl, g.grace), holds)
	c.calls.Answered(g.slot, err)
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

func (c *Client) group(m *Mutex) any { return renewal{kind: m.kind, grace: m.grace, slot: m.slot} }
