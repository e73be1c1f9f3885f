package calls

import (
	"sync"
	"time"
)

// grain is how late a channel of After may close.
const grain = 50 * time.Millisecond

// sharedTimers are channels that close at given times. Calls with about the same limit share a channel, because most end long before: a
// timer for each would cost more than the rest of its bookkeeping here.
type sharedTimers struct {
	mu    sync.Mutex                // guards the following
	epoch time.Time                 // of the grains
	at    map[int64]<-chan struct{} // by the number of the grain at whose end it closes; until then
}

func (m *sharedTimers) after(at time.Time) <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.at == nil {
		m.epoch, m.at = time.Now(), make(map[int64]<-chan struct{})
	}
	n := int64(max(at.Sub(m.epoch), 0) / grain)
	c := m.at[n]
	if c == nil {
		closes := make(chan struct{})
		c = closes
		m.at[n] = c
		time.AfterFunc(time.Until(m.epoch.Add(time.Duration(n+1)*grain)), func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			delete(m.at, n)
			close(closes)
		})
	}
	return c
}
