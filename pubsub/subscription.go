package pubsub

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

// linger is how long a subscription stays after the last waiter that slept got the lock. A lock that others want will
// often be wanted again soon, and a live subscription saves three commands: itself, the attempt after it, and its
// end. A longer time would not save much more, and each unlock means a message; so waiters that did not sleep do not
// prolong it.
const linger = 500 * time.Millisecond

// subscription is the subscription of this process to a channel, for all who listen there. connections.mu guards it.
type subscription struct {
	conns   *connections
	channel Channel
	names   []string // of the channel, and of those beside it; one command is for all of them
	shares  []*share // never changed in place: readers keep it without a lock
	alone   bool     // without the channels beside it, which nobody needs
	bare    bool     // without them, for another reason: the server refuses them, or they are in other slots

	confirmed bool  // by the server, all channels, and none was lost since
	link      *link // that has it, or should get it; nil if it is not wanted, or the node not known
	queued    bool  // the link will look at it
	op        op    // the link's command for it that is under way

	lookAt time.Time // when its listeners look after a failure, see overdue.go; zero: it has not failed

	lingers bool        // it is confirmed, and stays though nobody needs it
	timer   *time.Timer // ends that
}

type op int8

const (
	noOp op = iota
	subscribing
	unsubscribing
)

// share is a listener's share in a subscription. Its methods may be called under Hub.mu.
type share struct {
	sub      *subscription
	listener listener
	needed   bool
	inLine   bool // it needs no message to listeners out of line
}

// listen adds a listener to a channel, which it does not need yet. With alone, it does not listen to the channels
// beside it. On a cluster, neither a command nor a script can use a channel in another slot beside it. So a channel
// without a hash tag in braces goes without others.
func (c *connections) listen(ch Channel, l listener, alone, inLine bool) *share {
	defer c.lock().Unlock()
	s := c.subs[ch]
	if s == nil {
		s = &subscription{conns: c, channel: ch, alone: alone}
		s.bare = alone || c.grants == "" || ch.Sharded && c.slot(ch.beside(c.grants)) != c.slot(ch)
		c.subs[ch] = s
	}
	sh := &share{sub: s, listener: l, inLine: inLine}
	s.shares = append(slices.Clip(s.shares), sh)
	s.update() // it may be wrong now
	return sh
}

func (sh *share) lock() *sync.Mutex { return sh.sub.conns.lock() }

// need requests the subscription, and reports whether it is live. Otherwise listener.live follows.
func (sh *share) need() (live bool) {
	defer sh.lock().Unlock()
	sh.needed = true
	sh.sub.update()
	return sh.sub.live()
}

// needIfLive needs the subscription if it is live, and reports whether it is.
func (sh *share) needIfLive() bool {
	defer sh.lock().Unlock()
	sh.needed = sh.sub.live()
	return sh.needed
}

// release ends the need. With linger, a confirmed subscription stays for a while.
func (sh *share) release(linger bool) {
	defer sh.lock().Unlock()
	sh.needed = false
	if linger {
		sh.sub.startLinger()
	}
	sh.sub.update()
}

// endLinger gives back a subscription that lingers.
func (sh *share) endLinger() {
	defer sh.lock().Unlock()
	sh.sub.endLinger()
}

// setInLine says whether the listener does without messages to listeners out of line.
func (sh *share) setInLine(inLine bool) {
	defer sh.lock().Unlock()
	sh.inLine = inLine
	sh.sub.update()
}

func (sh *share) leave() {
	defer sh.lock().Unlock()
	s := sh.sub
	sh.needed = false
	s.shares = slices.DeleteFunc(slices.Clone(s.shares), func(x *share) bool { return x == sh })
	s.update()
}

// reach says which messages arrive.
type reach struct {
	live      bool // all from now on
	confirmed bool // the server has the subscription, though it may be about to end; listener.lost follows
	told      bool // those to this process, too, if it is live
}

func (sh *share) reach() reach {
	defer sh.lock().Unlock()
	return reach{live: sh.sub.live(), confirmed: sh.sub.confirmed, told: !sh.sub.bare}
}

// listeners returns the shares, also of nil.
func (s *subscription) listeners() []*share {
	if s == nil {
		return nil
	}
	return s.shares
}

// choose sets the channels to subscribe to. The one for messages to this process is the last.
func (s *subscription) choose() {
	s.names = append(s.names[:0], s.channel.Name)
	if s.bare {
		return
	}
	if s.inLine() {
		s.names = append(s.names, InLine(s.channel).Name)
	}
	s.names = append(s.names, s.channel.beside(s.conns.grants).Name)
}

// inLine reports whether all who listen to the channel are in line for their locks, or will be.
func (s *subscription) inLine() bool {
	return !slices.ContainsFunc(s.shares, func(sh *share) bool { return !sh.inLine })
}

// wrong reports whether the server counts this process as in line, though not all listeners here are. Then the
// subscription ends, and begins anew: waiters ask after that, and so miss no message to listeners out of line.
func (s *subscription) wrong() bool { return len(s.names) > 2 && !s.inLine() }

// wanted reports whether a listener needs the subscription, or is likely to need it soon.
func (s *subscription) wanted() bool {
	return s.lingers || slices.ContainsFunc(s.shares, func(sh *share) bool { return sh.needed })
}

func (s *subscription) live() bool { return s.confirmed && s.op != unsubscribing }

// update makes the link subscribe or unsubscribe if that is due, and drops an unneeded subscription. While the link
// is busy with it, nothing happens: the end of the command comes here again.
func (s *subscription) update() {
	wanted := s.wanted()
	if (wanted != s.confirmed || s.confirmed && s.wrong()) && !s.queued && s.op == noOp && !s.conns.closed {
		if wanted {
			s.link = s.conns.route(s.channel)
		}
		if s.link != nil { // otherwise the router comes here again when it knows the node
			s.queued = true
			s.link.dirty = append(s.link.dirty, s)
			s.link.wake()
		}
	}
	s.dropIdle()
}

// dropIdle drops the subscription if it is over and nobody listens.
func (s *subscription) dropIdle() {
	if s.confirmed || s.queued || s.op != noOp || s.wanted() {
		return
	}
	s.link = nil
	if len(s.shares) == 0 {
		delete(s.conns.subs, s.channel)
	}
}

// confirm notes that the server has the subscription: its waiters ask now.
func (s *subscription) confirm() {
	if s.op == subscribing {
		s.op = noOp
	}
	s.confirmed, s.lookAt = true, time.Time{}
	if s.link != nil {
		delete(s.conns.told, s.link.addr)
	}
	s.notify(listener.live)
	s.update()
}

// lose notes that the server does not have the subscription any more, or not all of it.
func (s *subscription) lose() {
	s.confirmed, s.lingers = false, false
	s.stopTimer()
	s.notify(listener.lost)
}

// notify tells all listeners once connections.mu is released.
func (s *subscription) notify(event func(listener)) {
	for _, sh := range s.shares {
		s.conns.notices = append(s.conns.notices, func() { event(sh.listener) })
	}
}

func (s *subscription) refuse(err error) {
	err = fmt.Errorf("subscribe to %q: %w", s.channel.Name, err)
	for _, sh := range s.shares {
		sh.needed = false
	}
	s.notify(func(l listener) { l.refused(err) })
}

// startLinger makes a confirmed subscription linger, from now on.
func (s *subscription) startLinger() {
	if !s.confirmed || s.conns.draining || s.conns.closed {
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
	defer s.conns.lock().Unlock()
	s.endLinger()
}

// endLinger gives back a subscription that lingers, unless a listener needs it.
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
