package pubsub

import (
	"fmt"
	"time"
)

// linger is how long a subscription stays after the last waiter that slept got the lock. A lock that others want will
// often be wanted again soon, and a live subscription saves three commands: itself, the attempt after it, and its
// end. A longer time would not save much more, and each unlock means a message; so waiters that did not sleep do not
// prolong it.
const linger = 500 * time.Millisecond

// subscription is the share of this process in a channel, for all of its queues. Hub.mu guards it.
type subscription struct {
	hub     *Hub
	channel Channel
	names   []string // of the channel, and of those beside it; one command is for all of them
	topics  []*topic // the queues for its messages, also the empty ones until it is dropped
	waiter  *Waiter  // instead of topics, if it is to the waiter's own channel, until that leaves
	ear     *Ear     // instead of topics, if it is for messages to this process
	bare    bool     // the server refuses the channels beside it

	confirmed bool  // by the server, all channels, and none was lost since
	link      *link // that has it, or should get it; nil if it is not wanted, or the node not known
	queued    bool  // the link will look at it
	op        op    // the link's command for it that is under way

	lookAt time.Time // when its waiters look at their locks after a failure, see overdue.go; zero: it has not failed

	lingers bool        // it is confirmed, and stays though no queue needs it
	timer   *time.Timer // ends that
}

// subscription returns the subscription to a channel. On a cluster, neither a command nor a script can use a channel
// in another slot beside it. So a channel without a hash tag in braces goes without others.
func (h *Hub) subscription(ch Channel) *subscription {
	s := h.subs[ch]
	if s == nil {
		s = &subscription{hub: h, channel: ch}
		s.bare = h.grants == "" || ch.Sharded && h.slot(Channel{ch.Name + h.grants, true}) != h.slot(ch)
		h.subs[ch] = s
	}
	return s
}

// choose sets the channels to subscribe to. The one for grants is the last.
func (s *subscription) choose() {
	s.names = append(s.names[:0], s.channel.Name)
	if s.bare || s.waiter != nil || s.ear != nil {
		return
	}
	if s.inLine() {
		s.names = append(s.names, s.channel.Name+line)
	}
	s.names = append(s.names, s.channel.Name+s.hub.grants)
}

// inLine reports whether all waiters for messages of the channel are in line for their locks, or will be.
func (s *subscription) inLine() bool {
	for _, t := range s.topics {
		if !t.queue.Places || t.placeless {
			return false
		}
	}
	return true
}

// wrong reports whether the server counts this process as in line, though not all waiters here are. Then the
// subscription ends, and begins anew: waiters ask after that, and so miss no message to listeners out of line.
func (s *subscription) wrong() bool { return len(s.names) > 2 && !s.inLine() }

// grants reports whether the subscription includes grants.
func (s *subscription) grants() bool { return !s.bare && s.waiter == nil && s.ear == nil }

type op int8

const (
	noOp op = iota
	subscribing
	unsubscribing
)

// wanted reports whether a queue needs the subscription, or is likely to need it soon.
func (s *subscription) wanted() bool {
	if s.lingers || s.waiter != nil || s.ear != nil && s.ear.refusal == nil {
		return true
	}
	for _, t := range s.topics {
		if t.need {
			return true
		}
	}
	return false
}

// live reports whether all messages from now on arrive.
func (s *subscription) live() bool { return s.confirmed && s.op != unsubscribing }

// update makes the link subscribe or unsubscribe if that is due, and drops an unneeded subscription. While the link
// is busy with it, nothing happens: the end of the command comes here again.
func (s *subscription) update() {
	wanted := s.wanted()
	if (wanted != s.confirmed || s.confirmed && s.wrong()) && !s.queued && s.op == noOp && !s.hub.closed {
		if wanted {
			s.link = s.hub.route(s.channel)
		}
		if s.link != nil { // otherwise the router comes here again when it knows the node
			s.queued = true
			s.link.enqueue(s)
		}
	}
	s.dropIdle()
}

// dropIdle drops the subscription, and its queues, if nobody needs them.
func (s *subscription) dropIdle() {
	if s.confirmed || s.queued || s.op != noOp || s.wanted() {
		return
	}
	s.link = nil
	for _, t := range s.topics {
		if t.first != nil || t.stopped > 0 || t.apart > 0 {
			return
		}
	}
	for _, t := range s.topics {
		s.hub.drop(t)
	}
	s.topics = nil
	delete(s.hub.subs, s.channel)
}

// confirm notes that the server has the subscription: its waiters ask now.
func (s *subscription) confirm() {
	if s.op == subscribing {
		s.op = noOp
	}
	s.confirmed, s.lookAt = true, time.Time{}
	if s.link != nil {
		delete(s.hub.told, s.link.addr)
	}
	if s.ear != nil {
		s.ear.isConfirmed()
	}
	s.wakeFirst()
	s.update()
}

// lose notes that the server does not have the subscription any more, or not all of it.
func (s *subscription) lose() {
	s.confirmed, s.lingers = false, false
	s.stopTimer()
	if s.ear != nil {
		s.ear.signal()
	}
}

// wakeFirst wakes the first waiter of each queue that needs the subscription: a message may have been missed.
func (s *subscription) wakeFirst() {
	for _, t := range s.topics {
		t.freed()
		if t.need {
			t.confirmed()
		}
	}
	if w := s.waiter; w != nil {
		w.topic.wake(w)
	}
}

// refuse gives up on a subscription: all current waits fail. A waiter does without a channel of its own.
func (s *subscription) refuse(err error) {
	if s.waiter != nil {
		s.waiter.place.own, s.waiter = nil, nil
	}
	if s.ear != nil {
		s.ear.refuse(fmt.Errorf("subscribe to %q: %w", s.channel.Name, err))
	}
	for _, t := range s.topics {
		t.refuse(fmt.Errorf("subscribe to %q: %w", s.channel.Name, err))
	}
}

// startLinger makes a confirmed subscription linger, from now on.
func (s *subscription) startLinger() {
	if !s.confirmed || s.hub.draining || s.hub.closed {
		return
	}
	s.lingers = true
	if s.timer == nil {
		s.timer = time.AfterFunc(linger, s.lingered)
	} else {
		s.timer.Reset(linger)
	}
}

// lingered is called by the timer.
func (s *subscription) lingered() {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	if s.lingers {
		s.endLinger()
	}
}

// endLinger gives back a subscription that lingers, unless a queue needs it.
func (s *subscription) endLinger() {
	s.lingers = false
	s.stopTimer()
	s.update()
}

func (s *subscription) stopTimer() {
	if s.timer != nil {
		s.timer.Stop()
	}
}
