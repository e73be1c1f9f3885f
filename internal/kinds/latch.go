package kinds

// Latch is Redisson's RCountDownLatch. It is not a lock, has no holder, and needs only the names. Redisson always adds braces, even to
// names that contain them.
var Latch = &Kind{
	Name:    "latch",
	Channel: braced("redisson_countdownlatch__channel__"),
	Queue:   braced("rlock_latch:"), // the record of calls, see lua/latch_set.lua
	Extra:   braced("rlock_latch:"),
	Unfit: "on a cluster the name of a latch may have no braces: Redisson puts it in braces, as in %q, for its channel, " +
		"which would be in another slot than the latch",
}

func braced(prefix string) func(string) string {
	return func(name string) string { return prefix + "{" + name + "}" }
}
