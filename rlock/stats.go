package rlock

// Stats are figures about a [Client], see [Client.Stats]. The counters that only grow start when the Client is made.
type Stats struct {
	Holds   int // of locks, not unlocked yet, and sections of permits; a hold of a quorum counts for each of its Clients
	Waiting int // goroutines that wait for a lock; of those that wait for a quorum, one at most
	Idle    int // locks kept for the next Lock with nobody inside, once a look has found no waiters, see [WithLinger]

	Acquired uint64 // holds so far; re-entries are not among them
	HandOffs uint64 // of these, handed over by an unlock in this process
	Shared   uint64 // of these, of readers that joined others of this process without asking Redis
	Grants   uint64 // of these, given by an unlock in another process and used without asking Redis
	Kept     uint64 // of these, of locks that this process had kept, see [WithLinger]
	Lost     uint64 // holds that were lost, see [LostError]

	Exported uint64 // holds that [Export] turned into tickets
	Adopted  uint64 // holds that [Client.Adopt] made of tickets; Acquired includes them
}

// Stats returns figures about the locks of the Client. It asks no server, and takes microseconds, or a millisecond with many thousands of
// waiters.
func (c *Client) Stats() Stats {
	c.check()
	return Stats(c.engine.Stats())
}
