package engine

import (
	"context"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/deadlock"
	"github.com/go-rlock/rlock/internal/sweep"
	"github.com/go-rlock/rlock/lease"
	"github.com/go-rlock/rlock/pubsub"
)

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
	c.askables.due = make(chan struct{}, 1)
	c.askings.underWay = make(chan struct{}, mostAsking)
	c.ear.of = []listener{
		{kind: saidAsked, heard: c.askables.heard, live: c.askables.mayHaveMissed},
		{kind: saidAsked, heard: c.askedIdle, live: c.hearsIdle, lost: c.missesIdle, deaf: c.missesIdle},
		{kind: saidTried, heard: c.triedIdle},
		{kind: deadlock.SeenKind, heard: c.describe},
	}
	if o.Deadlock.After > 0 {
		c.ear.of = append(c.ear.of, listener{kind: deadlock.Kind, heard: c.probed}) // who looks does so again
	}
	c.sweepers = sweep.New(c.Calls, rdb)
	c.idle.timer = time.AfterFunc(time.Hour, func() { c.releaseIdle(time.Now()) })
	c.idle.timer.Stop()
	c.errs = &c.Options.Errors
	c.Hub = pubsub.New(rdb, c.ID)
	c.Hub.Aside = aside
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
	c.releaseIdle(time.Time{})
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
	c.releaseIdle(time.Time{})
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
