package engine

import (
	"context"
	"time"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/lease"
	"github.com/go-rlock/rlock/lua"
)

// In the queue of a fair lock each waiter has a place, as Redisson's have: an owner in a list, and a time after which it
// counts as dead. Idle waiters keep their places by the same means as holders their holds, a [lease.Renewer]: one call for up to 100 of
// them, every third of placeLease. It also finds out if a place is gone: the lock was granted and the message lost, somebody
// deleted the queue, or Redisson dropped it. Then the waiter asks.
//
// An owner joins the queue once. If its place is gone, and it does not hold the lock, the waiter joins again as another
// one. So a place that was seen in Redis has been there since it was joined, no grant was made before it was seen, and a grant can be
// trusted from the moment when the last call that saw it was sent (I5). That is not so if the call that joined may still run, or may
// have run twice (tenure.unresolved): then a late copy may have put the owner in the queue again, after a grant whose message is still
// on its way. Such a grant counts from the first call, as that of a plain lock.

// placeKeeper is what the renewer knows of the placeKeeper of an owner.
type placeKeeper struct {
	tenure *Tenure
	lease  lease.Lease
}

func (p *placeKeeper) Item() lease.Item {
	return lease.Item{Name: p.tenure.Spec.Key, Owner: p.tenure.Field()}
}
func (p *placeKeeper) Group() any { return p.tenure.Spec.Engine.group(p.tenure.Spec) }

// Lost has the waiter look after its place.
func (p *placeKeeper) Lost(lease.Loss) {
	m := p.tenure.Spec
	m.Engine.Hub.Look(m.waiters(), p.tenure.Field())
}

// Closed has nothing to do: the hub tells the waiter.
func (p *placeKeeper) Closed() {}

// places returns the renewer of places, which runs from the first one on until Close; nil if there was none before that.
func (c *Engine) places() *lease.Renewer {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.placed == nil && !c.Calls.IsClosed() {
		c.placed = lease.NewRenewer(c.refresh, lease.Options{Watchdog: c.placeLease(), Timeout: calls.Timeout})
	}
	return c.placed
}

// keepsPlace notes what the answer says of the place of a waiter. It reports false if the place is gone.
func (l *attempt) keepsPlace(a AcquireResult) bool {
	places := l.Spec.Engine.places()
	if !a.Joined || places == nil { // closed
		return a.Joined || l.place == nil
	}
	until := a.Sent.Add(l.Spec.Engine.placeLease())
	if l.place != nil {
		places.Update(&l.place.lease, until, l.Spec.Engine.placeLease())
		return true
	}
	l.place = &placeKeeper{tenure: l.Tenure}
	places.Keep(&l.place.lease, l.place, until, l.Spec.Engine.placeLease())
	if a.Behind {
		l.waiter.Hear()
	}
	return true
}

// leavePlace ends the care for the place.
func (l *attempt) leavePlace() {
	if l.place != nil {
		l.Spec.Engine.places().Stop(&l.place.lease)
		l.place = nil
	}
}

// queuedAt is when the last call was sent that a grant must have come after.
func (l *attempt) queuedAt() time.Time {
	if l.place == nil || l.Tenure.Unresolved != nil && l.Tenure.Unresolved.Late {
		if l.Tenure.queued == nil {
			return time.Time{}
		}
		return *l.Tenure.queued
	}
	c := l.Spec.Engine
	return c.places().Until(&l.place.lease).Add(-c.placeLease())
}

// refresh is the renewer's way to Redis.
func (c *Engine) refresh(ctx context.Context, group any, ttl time.Duration, items []lease.Item) ([]lease.Verdict, error) {
	k := group.(renewal).kind                       //nolint:errcheck // there are no other groups
	m := c.NewSpec(items[0].Name, k, items[0].Name) // any of them
	places := make([]lua.Place, len(items))
	for i, item := range items {
		places[i] = lua.Place{
			Name: item.Name, Owner: item.Owner,
			List: k.Queue(item.Name), Times: k.Timeouts(item.Name), Channel: k.Channel(item.Name),
		}
	}
	answers, err := lua.Refresh(ctx, c.rdb, m.fair(), lua.Publish(c.KnownChannel(m)), places)
	c.Calls.Answered(group.(renewal).slot, err) //nolint:errcheck // as above
	return verdicts(answers, err)
}
