package kinds

// Latch is Redisson's RCountDownLatch. It is no lock: nobody holds it, and of what a kind has it needs the names alone. Redisson always adds
// braces, also to a name that brings its own.
var Latch = &Kind{
	Name:    "latch",
	Channel: braced("redisson_countdownlatch__channel__"),
	Queue:   braced("rlock_latch:"), // the record of calls, see lua/latch_set.lua
	Extra:   braced("rlock_latch:"),
}

func braced(prefix string) func(string) string {
	return func(name string) string { return prefix + "{" + name + "}" }
}
