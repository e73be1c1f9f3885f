package pubsub

// Queue names the lock that its waiters want, and the channel on which its unlocks are published. Two locks may have
// one channel: Redisson's naming rule maps x and {x} to the same.
type Queue struct {
	Lock    string
	Channel Channel
	Places  bool // waiters get the process's place in Redis's queue, so they need no messages to all
	Each    bool // each waiter has a place of its own in Redis's queue, not one per process
	Shared  bool // waiters may want a share, and the first to get one lets others in, so a message to all is for the first
	Counts  bool // waiters want permits, and messages carry their number; a leading zero marks those for processes without a place
}
