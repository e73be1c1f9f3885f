package pubsub

import (
	"maps"
	"time"
)

// rivals are the processes that have had a lock without a queue in Redis lately, except this one.
type rivals struct {
	seen  map[string]time.Time // by the id of the client: when it last had the lock, as far as this process knows
	heard int                  // unlocks of others since this process had the lock
	vain  bool                 // its waiter has let them go first, and nobody is known to have come
}

const (
	lately     = 5 * time.Second
	mostRivals = 64
)

func (r *rivals) count() int { return len(r.seen) }

// has notes who has the lock.
func (r *rivals) has(client string) {
	now := time.Now()
	maps.DeleteFunc(r.seen, func(_ string, at time.Time) bool { return now.Sub(at) > lately })
	if r.seen == nil {
		r.seen = make(map[string]time.Time)
	}
	if _, known := r.seen[client]; known || len(r.seen) < mostRivals {
		r.seen[client] = now
	}
}

// stayedAway forgets those that the waiter who gets the lock has waited for in vain: they do not want it now.
func (r *rivals) stayedAway() {
	if r.vain {
		*r = rivals{}
	}
}

// othersCame notes that another process had the lock when w asked, or before. If w has let it go first, the next courtesy is due as soon.
func (t *topic) othersCame(w *Waiter) {
	t.rivals.vain = false
	if w != nil && w.yields {
		delete(t.hub.yields.of, t.queue)
	}
}
