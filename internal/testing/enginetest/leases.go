package enginetest

import (
	"reflect"
	"time"

	"github.com/go-rlock/rlock/internal/tenure"
)

// long is the lease of a lock that another process has handed over, and of a place in the queue of a fair lock, in tests on real servers: with
// the two and five seconds of users, a machine that stands still loses them. What depends on those is tested in virtual time.
const long = 10 * time.Second

// LongLeases gives a new *rlock.Client such leases. It must not have been used.
func LongLeases(client any) {
	engine := (*tenure.Client)(reflect.ValueOf(client).Elem().FieldByName("engine").UnsafePointer())
	engine.GrantLease = min(long, engine.Options.WatchdogTimeout)
	engine.PlaceLease = engine.GrantLease
}
