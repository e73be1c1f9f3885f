package pubsub

import (
	"fmt"
	"time"
)

// linger is how long a subscription stays after the last of those who had to wait got the lock. Who got a lock that
// others want will often want it again soon, and a subscription that stands already spares three commands: it
// itself, the attempt after it, and its end. Longer would not spare much more, and each unlock means a message;
// so whoever did not have to wait does not prolong it.
const linger = 500 * time.Millisecond

// subscription is what is known of a channel. Its queues share it. Hub.mu guards it.
type subscription struct {
	hub     *Hub
	channel Channel
	topics  []*topic // the queues for its messages, also the empty ones until it is idle

	on     bool   // the server confirmed it
	since  uint64 // Hub.clock then
	link   *link  // which has it, or is asked to have it
	queued bool   // the link will look at it
	op     op     // the link's command about it that is under way

	lingers bool      // it stands, and may stay until then though no queue needs it
	until   time.Time // at the least
	timer   *time.Timer
}

// subscription returns the one of a channel. Hub.mu is held.
func (h *Hub) subscription(ch Channel) *subscription {
	s := h.subs[ch]
	if s == nil {
		s = &subscription{hub: h, channel: ch}
		h.subs[ch] = s
	}
	return s
}

type op int8

const (
	noOp op = iota
	subscribing
	unsubscribing
)

// want reports whether a queue needs the subscription, or is likely to need it soon.
func (s *subscription) want() bool {
	if s.lingers {
		return true
	}
	for _, t := range s.topics {
		if t.need {
			return true
		}
	}
	return false
}

// reconcile brings the link to look at the subscription if what is differs from what is wanted. A
// command under way is waited for: its end comes here again.
func (s *subscription) reconcile() {
	want := s.want()
	if want == s.on || s.queued || s.op != noOp || s.hub.closed {
		return
	}
	if want {
		if s.link = s.hub.route(s.channel); s.link == nil {
			return // the router comes here again when it knows the node
		}
	}
	s.queued = true
	s.link.enqueue(s)
}

// stands reports whether all messages from now on arrive.
func (s *subscription) stands() bool { return s.on && s.op != unsubscribing }

// stay has a subscription that stands linger.
func (s *subscription) stay() {
	if !s.on || s.hub.closed {
		return
	}
	s.until = time.Now().Add(linger)
	switch {
	case s.lingers:
		return // the timer looks at until
	case s.timer == nil:
		s.timer = time.AfterFunc(linger, s.leave)
	default:
		s.timer.Reset(linger)
	}
	s.lingers = true
}

// leave gives back a subscription that has lingered, unless it is needed again. The timer calls it.
func (s *subscription) leave() {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	if !s.lingers || s.hub.closed {
		return
	}
	if rest := time.Until(s.until); rest > 0 {
		s.timer.Reset(rest)
		return
	}
	s.stayNoLonger()
}

// stayNoLonger gives back a subscription that lingers, unless a queue needs it.
func (s *subscription) stayNoLonger() {
	s.lingers = false
	s.stopTimer()
	s.reconcile()
}

// stand notes that the server has the subscription: who waits for it asks now.
func (s *subscription) stand() {
	s.hub.clock++
	s.on, s.since = true, s.hub.clock
	s.wakeFirst()
}

// off notes that the server does not have the subscription any more.
func (s *subscription) off() {
	s.on, s.lingers = false, false
	s.stopTimer()
}

func (s *subscription) stopTimer() {
	if s.timer != nil {
		s.timer.Stop()
	}
}

// settle drops the subscription and its queues when nobody needs them.
func (s *subscription) settle() {
	if s.on || s.queued || s.op != noOp {
		return
	}
	for _, t := range s.topics {
		if t.first != nil {
			return
		}
	}
	for _, t := range s.topics {
		s.hub.drop(t)
	}
	s.topics = nil
	delete(s.hub.subs, s.channel)
}

// wakeFirst wakes the first waiter of each queue that needs the subscription.
func (s *subscription) wakeFirst() {
	for _, t := range s.topics {
		if t.need {
			t.wakeFirst()
		}
	}
}

// refuse gives up on a subscription: all that wait now are told, who joins later asks anew.
func (s *subscription) refuse(err error) {
	for _, t := range s.topics {
		t.fail(fmt.Errorf("subscribe to channel %q: %w", s.channel.Name, err))
		t.need = false
	}
}
