package rlock

// Stats are figures about a [Client], see [Client.Stats]. Counters start when the Client is made.
type Stats struct {
	Holds   int // not unlocked yet, sections of permits included
	Waiting int // goroutines that wait for a lock; for a quorum one at most
	Idle    int // kept with nobody inside, see [WithLinger]

	Acquired uint64 // holds so far; re-entries are not among them
	HandOffs uint64 // of these, by an unlock in this process
	Shared   uint64 // of these, readers that joined others here
	Grants   uint64 // of these, by an unlock in another process, without asking Redis
	Kept     uint64 // of these, of kept locks
	Lost     uint64 // of these, lost

	Exported uint64 // holds that [Export] turned into tickets
	Adopted  uint64 // holds that [Client.Adopt] made of tickets; Acquired includes them
}

// Stats returns figures about the locks of the Client, without asking a server, in a millisecond at most.
func (c *Client) Stats() Stats {
	c.check()
	return Stats(c.engine.Stats())
}
