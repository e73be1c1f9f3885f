package pubsub

import "sync"

// wakings are the queues to wake for callers that must not wait for Hub.mu: a renewer that did would let leases end.
type wakings struct {
	mu      sync.Mutex // guards the following; a leaf, and held for moments only
	queues  []Queue
	running bool // a goroutine wakes them
	closed  bool // nobody waits any more
}

// WakeSoon is [Hub.Wake] that does not wait for anything: another goroutine wakes the waiter.
func (h *Hub) WakeSoon(q Queue) {
	s := &h.wakings
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.queues = append(s.queues, q)
	if !s.running {
		s.running = true
		h.wg.Go(h.wakeThose) // ends when no queue is left; Close waits for it
	}
}

func (h *Hub) wakeThose() {
	s := &h.wakings
	for {
		s.mu.Lock()
		queues := s.queues
		s.queues = nil
		s.running = len(queues) > 0
		s.mu.Unlock()
		if len(queues) == 0 {
			return
		}
		for _, q := range queues {
			h.Wake(q)
		}
	}
}

// close makes later calls do nothing.
func (s *wakings) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
}
