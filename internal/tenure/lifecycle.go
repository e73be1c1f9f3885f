package tenure

import (
	"context"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/internal/sweep"
	"github.com/go-rlock/rlock/lease"
	"github.com/go-rlock/rlock/pubsub"
)

const (
	// closeGrace is how long Close waits for replies to commands in flight, to give back locks they acquire.
	closeGrace = calls.Timeout
	// closeLimit bounds Close as a whole, with time for one more call after the grace. Calls still in flight then wait for rueidis to
	// accept a command or to provide a connection, which no ctx can interrupt.
	closeLimit = closeGrace + 2*calls.LastTimeout
)

// New returns a Client for locks in the Redis of rdb. id must be unused. New sends no command.
func New(rdb rueidis.Client, id string, o Options) *Client {
	c := &Client{
		RDB:               calls.Joint(rdb),
		Calls:             calls.New(rdb, o.Errors.Closed),
		ID:                id,
		Options:           o,
		GrantLease:        GrantLease(o.WatchdogTimeout),
		PlaceLease:        min(placeLease, o.WatchdogTimeout),
		Attempt:           Attempt,
		HandsOff:          o.HandOff.Most > 0 && o.Replicas == 0,
		Shut:              make(chan struct{}),
		empty:             make(chan struct{}),
		cancellingHolders: make(chan struct{}),
		over:              make(chan struct{}),
	}
	c.sweepers = sweep.New(c.Calls, rdb)
	c.Errors = &c.Options.Errors
	c.Foreign.Panicked = o.Tell.Panicked
	c.Hub = pubsub.New(rdb, c.ID)
	c.Hub.Aside = aside
	c.Hub.WarnDeaf(c.warnDeaf)
	c.Cluster = newTopology(rdb, o.PlainPubSub)
	c.Leases = lease.NewRenewer(c.renew, lease.Options{Watchdog: o.WatchdogTimeout, Timeout: calls.Timeout, Renewed: o.Renewed})
	return c
}

// Close ends the Client. All calls of Close return when it has ended; then no command is in flight, unless rueidis blocked beyond
// closeLimit.
func (c *Client) Close() {
	first := false
	c.closing.Do(func() { first = true })
	if first {
		c.end()
		close(c.over)
	}
	<-c.over
}

func (c *Client) end() {
	c.shutting.Do(func() { close(c.Shut) }) // first: callers whose calls are ended by Close check it
	c.FreeAllKept()
	c.Calls.Close()
	grace := time.AfterFunc(closeGrace, c.Calls.Stop)
	defer grace.Stop()
	c.Hub.Stop() // tells the waiters
	c.tellHolders()
	ended := make(chan struct{})
	go func() { // ends with everything it waits for
		defer close(ended)
		var all sync.WaitGroup
		all.Go(c.Leases.Close)
		c.mu.Lock()
		places := c.placed // final: no more are made
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
	var last sync.WaitGroup // foreign code gets a moment
	last.Go(c.Options.Tell.Flush)
	last.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), lastWait)
		defer cancel()
		c.Foreign.Flush(ctx)
	})
	last.Wait()
}

// lastWait is how long Shutdown waits for unlocks after it has cancelled the sections' contexts, and Close for what that has called.
const lastWait = time.Second

// Shutdown closes the Client when its sections have ended or ctx is done. Until then sections continue, and no other work begins.
func (c *Client) Shutdown(ctx context.Context) error {
	c.shutting.Do(func() { close(c.Shut) })
	c.FreeAllKept()
	if c.Counts.holds.Load() == 0 {
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

// awaitEmpty waits until all sections have unlocked, ctx is done, or Close is called.
func (c *Client) awaitEmpty(ctx context.Context) error {
	select {
	case <-c.empty:
	case <-c.Calls.Done():
	case <-ctx.Done():
		if !calls.IsClosed(c.empty) && !c.Calls.IsClosed() {
			return ctx.Err()
		}
	}
	return nil
}

// tellHolders cancels the contexts of all sections and stops the renewals.
func (c *Client) tellHolders() {
	c.telling.Do(func() { close(c.cancellingHolders) })
	c.Leases.Shut()
}

// warnDeaf reports that no message reaches this Client, though the server answers commands.
func (c *Client) warnDeaf(node string, err error) {
	c.Options.Tell.Warn("rlock: Redis answers, but takes no subscription; until it does, nobody is woken, and waiters look once a second"+
		calls.Cure(err), "client", c.ID, "node", node, "err", err)
}
