package pubsub

import (
	"maps"
	"slices"
	"time"
)

// rivals are this library's processes that have had a lock without a queue in Redis lately, except this one.
type rivals struct {
	seen   map[string]time.Time // by the id of the client: when it last had the lock, as far as this process knows
	holder string               // the client that has the lock, if anybody asked
	heard  int                  // turns of others since this process had the lock
	vain   bool                 // its waiter has let them go first, and nobody is known to have come
}

const (
	lately     = 5 * time.Second
	mostRivals = 64
)

// before returns how many of them have had no turn since this process had one.
func (r *rivals) before() int { return max(0, len(r.seen)-r.heard) }

// hadTurn notes that the holder has unlocked. ours means that it is one of them.
func (r *rivals) hadTurn(ours bool) {
	if ours && r.holder != "" {
		r.add(r.holder)
	}
	r.holder = ""
}

func (r *rivals) add(client string) {
	now := time.Now()
	maps.DeleteFunc(r.seen, func(_ string, at time.Time) bool { return now.Sub(at) > lately })
	if r.seen == nil {
		r.seen = make(map[string]time.Time)
	}
	if _, known := r.seen[client]; known || len(r.seen) < mostRivals {
		r.seen[client] = now
	}
}

// stayedAway forgets those that the waiter who gets the lock has waited for in vain: they do not want it now. It is for a wait in vain.
func (r *rivals) stayedAway() {
	eldest := slices.SortedFunc(maps.Keys(r.seen), func(a, b string) int { return r.seen[a].Compare(r.seen[b]) })
	for _, client := range eldest[:r.before()] {
		delete(r.seen, client)
	}
	r.vain = false
}
