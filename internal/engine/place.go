package engine

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

// placeKeeper keeps an owner's place through the renewer.
type placeKeeper struct {
	tenure *Tenure
	lease  lease.Lease
}

func (p *placeKeeper) Item() lease.Item {
	return lease.Item{Name: p.tenure.Lock.Key, Owner: p.tenure.Field()}
}
func (p *placeKeeper) Group() any { return p.tenure.Lock.Engine.Group(p.tenure.Lock) }

// Lost makes the waiter check its place.
func (p *placeKeeper) Lost(lease.Loss) {
	m := p.tenure.Lock
	m.Engine.Hub.Look(m.Waiters(), p.tenure.Field())
}

// Closed does nothing: the hub wakes the waiter.
func (p *placeKeeper) Closed() {}

// places returns the renewer of places. It runs from the first place until Close; nil if there was none before Close.
func (c *Engine) places() *lease.Renewer {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.placed == nil && !c.Calls.IsClosed() {
		c.placed = lease.NewRenewer(c.refresh, lease.Options{Watchdog: c.placeLease(), Timeout: calls.Timeout})
	}
	return c.placed
}

// keepsPlace records the reply's state of the waiter's place. It reports false if the place is gone.
func (l *Attempt) keepsPlace(a AcquireResult) bool {
	places := l.Lock.Engine.places()
	if !a.Joined || places == nil { // closed
		return a.Joined || l.place == nil
	}
	until := a.Sent.Add(l.Lock.Engine.placeLease())
	if l.place != nil {
		places.Update(&l.place.lease, until, l.Lock.Engine.placeLease())
		return true
	}
	l.place = &placeKeeper{tenure: l.Tenure}
	places.Keep(&l.place.lease, l.place, until, l.Lock.Engine.placeLease())
	if a.Behind {
		l.waiter.Hear()
	}
	return true
}

// leavePlace stops renewing the place.
func (l *Attempt) leavePlace() {
	if l.place != nil {
		l.Lock.Engine.places().Stop(&l.place.lease)
		l.place = nil
	}
}

// queuedAt returns the send time of the last call that a grant must have followed.
func (l *Attempt) queuedAt() time.Time {
	if l.place == nil || l.Tenure.Unresolved != nil && l.Tenure.Unresolved.Late {
		if l.Tenure.queued == nil {
			return time.Time{}
		}
		return *l.Tenure.queued
	}
	c := l.Lock.Engine
	return c.places().Until(&l.place.lease).Add(-c.placeLease())
}

// refresh renews places in Redis. All items are of one group.
func (c *Engine) refresh(ctx context.Context, group any, ttl time.Duration, items []lease.Item) ([]lease.Verdict, error) {
	k := group.(renewal).kind                                //nolint:errcheck // there are no other groups
	m := c.NewLock(items[0].Name, k, items[0].Name, Terms{}) // any item will do
	places := make([]lua.Place, len(items))
	for i, item := range items {
		places[i] = lua.Place{
			Name: item.Name, Owner: item.Owner,
			List: k.Queue(item.Name), Times: k.Timeouts(item.Name), Channel: k.Channel(item.Name),
		}
	}
	answers, err := lua.Refresh(ctx, c.RDB, m.fair(), lua.Publish(c.KnownChannel(m)), places)
	c.Calls.Answered(group.(renewal).slot, err) //nolint:errcheck // as above
	return verdicts(answers, err)
}
