package kinds

import (
	"context"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/lua"
)

// Semaphore is Redisson's RSemaphore. Like a latch it is not a lock, and needs only the names.
var Semaphore = &Kind{
	Name:    "semaphore",
	Channel: prefixed("redisson_sc"),
	Queue:   Own("rlock_sem_queue"),
	Extra:   SemaphoreRequests,
	Permits: true,
}

// PermitSemaphore is Redisson's RPermitExpirableSemaphore. Its permits are renewed as locks are, but are not locks otherwise.
var PermitSemaphore = &Kind{
	Name:    "permits",
	Channel: Semaphore.Channel,
	Queue:   Semaphore.Queue,
	Extra:   Semaphore.Extra,
	Permits: true,
	Beside:  ":permits",
	Renew:   renewPermits,
}

// SemaphoreRequests names the key of the record of requests, see lua/line.lua.
var SemaphoreRequests = Own("rlock_sem_requests")

// PermitSlots names the key of the permits' numbers.
var PermitSlots = Own("rlock_sem_slots")

// PermitTimeouts names the key of a semaphore's permits and their expiry times.
func PermitTimeouts(name string) string {
	if strings.Contains(name, "{") {
		return name + ":timeout"
	}
	return "{" + name + "}:timeout"
}

// renewPermits renews permits, each of which is a hold whose owner is its id.
func renewPermits(ctx context.Context, c rueidis.Client, lease time.Duration, holds []lua.Hold) ([]lua.Renewal, error) {
	var all []lua.PermitsToRenew
	at := make(map[string]int) // indexes of semaphores in all
	of := make([]int, len(holds))
	for i, h := range holds {
		which, known := at[h.Name]
		if !known {
			which = len(all)
			at[h.Name] = which
			all = append(all, lua.PermitsToRenew{Timeouts: PermitTimeouts(h.Name)})
		}
		of[i] = which
		all[which].IDs = append(all[which].IDs, lua.PermitID([]byte(h.Owner)))
	}
	answers, err := lua.RenewPermits(ctx, c, lease, all)
	if err != nil {
		return nil, err
	}
	next := make([]int, len(all)) // the answers are in the order of the semaphores
	for i := 1; i < len(all); i++ {
		next[i] = next[i-1] + len(all[i-1].IDs)
	}
	verdicts := make([]lua.Renewal, len(holds))
	for i, which := range of {
		verdicts[i] = answers[next[which]]
		next[which]++
	}
	return verdicts, nil
}
