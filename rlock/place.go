package rlock

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

// placeLease is for how long a place lasts unless it is refreshed, and with that how long a waiter keeps others waiting that was
// stopped, or died unseen.
const placeLease = 5 * time.Second

func (c *engine) placeLease() time.Duration { return min(placeLease, c.options.WatchdogTimeout) }

// placeKeeper is what the renewer knows of the placeKeeper of an owner.
type placeKeeper struct {
	tenure *tenure
	lease  lease.Lease
}

func (p *placeKeeper) Item() lease.Item {
	return lease.Item{Name: p.tenure.spec.key, Owner: p.tenure.field()}
}
func (p *placeKeeper) Group() any { return p.tenure.spec.engine.group(p.tenure.spec) }

// Lost has the waiter look after its place.
func (p *placeKeeper) Lost(lease.Loss) {
	m := p.tenure.spec
	m.engine.hub.Look(m.waiters(), p.tenure.field())
}

// Closed has nothing to do: the hub tells the waiter.
func (p *placeKeeper) Closed() {}

// places returns the renewer of places, which runs from the first one on until Close; nil if there was none before that.
func (c *engine) places() *lease.Renewer {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.placed == nil && !c.calls.IsClosed() {
		c.placed = lease.NewRenewer(c.refresh, lease.Options{Watchdog: c.placeLease(), Timeout: calls.Timeout})
	}
	return c.placed
}

// keepsPlace notes what the answer says of the place of a waiter. It reports false if the place is gone.
func (l *locking) keepsPlace(a acquireResult) bool {
	places := l.spec.engine.places()
	if !a.Joined || places == nil { // closed
		return a.Joined || l.place == nil
	}
	until := a.sent.Add(l.spec.engine.placeLease())
	if l.place != nil {
		places.Update(&l.place.lease, until, true)
		return true
	}
	l.place = &placeKeeper{tenure: l.tenure}
	places.Keep(&l.place.lease, l.place, until, true)
	if a.Behind {
		l.waiter.Hear()
	}
	return true
}

// leavePlace ends the care for the place.
func (l *locking) leavePlace() {
	if l.place != nil {
		l.spec.engine.places().Stop(&l.place.lease)
		l.place = nil
	}
}

// queuedAt is when the last call was sent that a grant must have come after.
func (l *locking) queuedAt() time.Time {
	if l.place == nil || l.tenure.unresolved != nil && l.tenure.unresolved.Late {
		if l.tenure.queued == nil {
			return time.Time{}
		}
		return *l.tenure.queued
	}
	c := l.spec.engine
	return c.places().Until(&l.place.lease).Add(-c.placeLease())
}

// refresh is the renewer's way to Redis.
func (c *engine) refresh(ctx context.Context, group any, ttl time.Duration, items []lease.Item) ([]lease.Verdict, error) {
	k := group.(renewal).kind                       //nolint:errcheck // there are no other groups
	m := c.newSpec(items[0].Name, k, items[0].Name) // any of them
	places := make([]lua.Place, len(items))
	for i, item := range items {
		places[i] = lua.Place{
			Name: item.Name, Owner: item.Owner,
			List: k.Queue(item.Name), Times: k.Timeouts(item.Name), Channel: k.Channel(item.Name),
		}
	}
	answers, err := lua.Refresh(ctx, c.rdb, m.fair(), lua.Publish(c.knownChannel(m)), places)
	c.calls.Answered(group.(renewal).slot, err) //nolint:errcheck // as above
	return verdicts(answers, err)
}
