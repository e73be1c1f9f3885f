package enginetest

import (
	"reflect"
	"time"

	"github.com/go-rlock/rlock/internal/tenure"
)

// long is the lease of a lock that another process has handed over, and of a place in the queue of a fair lock, and the least time of a TryLock,
// in tests on real servers: a machine that stands still takes the two, the five and the one second of users. What depends on those is tested
// in virtual time.
const long = 10 * time.Second

// Patient gives a new *rlock.Client such times. It must not have been used.
func Patient(client any) {
	engine := (*tenure.Client)(reflect.ValueOf(client).Elem().FieldByName("engine").UnsafePointer())
	engine.GrantLease = min(long, engine.Options.WatchdogTimeout)
	engine.PlaceLease = engine.GrantLease
	engine.Attempt = long
}
