package pubsub

import "fmt"

// subscription is what is known of a channel. Its queues share it. Hub.mu guards it.
type subscription struct {
	hub     *Hub
	channel Channel
	topics  []*topic // the queues for its messages, also the empty ones until it is idle

	on     bool  // the server confirmed it
	link   *link // which has it, or is asked to have it
	queued bool  // the link will look at it
	op     op    // the link's command about it that is under way
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

// want reports whether a queue needs the subscription.
func (s *subscription) want() bool {
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
