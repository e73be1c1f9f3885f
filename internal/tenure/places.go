package tenure

import (
	"context"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/lease"
	"github.com/go-rlock/rlock/lua"
)

// In a fair lock's queue each waiter has a place, as in Redisson: an owner in a list, and a time after which it counts as dead. A
// [lease.Renewer] keeps places alive as it does holds: one call for up to 100 of them, every third of placeLease. It also notices missing
// places: the grant's message was lost, somebody deleted the queue, or Redisson dropped the place. Then the waiter asks.
//
// An owner joins the queue once. If its place is gone and it does not hold the lock, the waiter joins again as a new owner. So a place
// seen in Redis has been there since it was joined, and no grant came before it was seen. A grant can be trusted from the time when the
// last call that saw the place was sent (I5).
//
// The exception is a joining call that may still run, or may have run twice (Tenure.Unresolved). A late copy may have queued the owner
// again, after a grant whose message is still on its way. Such a grant counts from the first call, as for a plain lock.

// PlaceKeeper keeps an owner's place through the renewer.
type PlaceKeeper struct {
	Tenure *Tenure
	Lease  lease.Lease
}

// Item identifies the place in a refresh.
func (p *PlaceKeeper) Item() lease.Item {
	return lease.Item{Name: p.Tenure.Lock.Key, Owner: p.Tenure.Field()}
}

// Group returns the key by which places share a refresh.
func (p *PlaceKeeper) Group() any { return p.Tenure.Lock.Group() }

// Lost makes the waiter check its place.
func (p *PlaceKeeper) Lost(lease.Loss) {
	m := p.Tenure.Lock
	m.Client.Hub.Look(m.Waiters(), p.Tenure.Field())
}

// Closed does nothing: the hub wakes the waiter.
func (p *PlaceKeeper) Closed() {}

// Places returns the renewer of places. It runs from the first place until Close; nil if there was none before Close.
func (c *Client) Places() *lease.Renewer {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.placed == nil && !c.Calls.IsClosed() {
		c.placed = lease.NewRenewer(c.refresh, lease.Options{Watchdog: c.PlaceLease, Timeout: calls.Timeout})
	}
	return c.placed
}

// refresh renews places in Redis. All items are of one group.
func (c *Client) refresh(ctx context.Context, group any, ttl time.Duration, items []lease.Item) ([]lease.Verdict, error) {
	k := group.(Renewal).Kind                                //nolint:errcheck // there are no other groups
	m := c.NewLock(items[0].Name, k, items[0].Name, Terms{}) // any item will do
	places := make([]lua.Place, len(items))
	for i, item := range items {
		places[i] = lua.Place{
			Name: item.Name, Owner: item.Owner,
			List: k.Queue(item.Name), Times: k.Timeouts(item.Name), Channel: k.Channel(item.Name),
		}
	}
	answers, err := lua.Refresh(ctx, c.RDB, m.Fair(), lua.Publish(c.KnownChannel(m)), places)
	c.Calls.Answered(group.(Renewal).Slot, err) //nolint:errcheck // as above
	return Verdicts(answers, err)
}
