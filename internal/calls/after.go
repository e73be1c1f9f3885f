package calls

import (
	"sync"
	"time"
)

// grain is how late a channel of After may close.
const grain = 50 * time.Millisecond

// moments are channels that close at given times. Calls with about the same limit share a channel, because most end long before: a
// timer for each would cost more than the rest of its bookkeeping here.
type moments struct {
	mu sync.Mutex // guards the following
	at time.Time
	c  <-chan struct{} // closed then
}

// After returns a channel that closes at that time, or up to 50 ms later.
func (c *Calls) After(at time.Time) <-chan struct{} { return c.moments.after(at) }

func (m *moments) after(at time.Time) <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.at.Before(at) || m.at.After(at.Add(grain)) {
		c := make(chan struct{})
		m.at, m.c = at.Add(grain), c
		time.AfterFunc(time.Until(m.at), func() { close(c) })
	}
	return m.c
}
