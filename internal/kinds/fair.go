package kinds

import "github.com/go-rlock/rlock/lua"

// Fair is Redisson's getFairLock.
var Fair = &Kind{
	Name:     "fair",
	Channel:  prefixed("redisson_lock__channel"),
	Queue:    prefixed("redisson_lock_queue"),
	Queueing: PerWaiter,
	Timeouts: prefixed("redisson_lock_timeout"),
	Extra:    prefixed("redisson_lock_timeout"),
	prefix:   "0", // marks this library's entries: Redisson writes no such number
	Renew:    lua.Renew, Force: lua.ForceFair, IsLocked: exists,
}
