package engine

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/pubsub"
)

// A Client that accepts messages has an ear: one subscription for all its locks, on a channel of its own. The owner tags it listens for
// carry a mark (kinds.Mark). A waiter sees the mark in the refusal and sends its message while it waits (asking.go). Locks without a mark
// cost nothing.
//
//	state     event                             next
//	none      a hold begins that wants an ear   asked for
//	asked for the server confirms it            live: whoever relies on it looks once for what was missed
//	          the server refuses it             refused
//	live      the connection is lost            asked for
//	any       Close                             over
//
// A message is a hint (pubsub.Spoken): it may be lost, doubled, late or forged. It may cost a command or a wake-up, but decides nothing. If
// the server refuses the ear, the Client does without: its later owners do not say that it has one.

// ear is the ear of a Client. Its listeners are set before anything asks for it.
type ear struct {
	asked   sync.Once
	refused atomic.Bool
	of      []listener
}

// listener is a feature that relies on the ear. Its methods run on goroutines that others need, so they return at once.
type listener struct {
	kind string // of what it is told
	// heard gets the payload of each message of that kind, on the goroutine that reads the connection.
	heard func(payload string)
	// live is called when the ear becomes live, also after each lost connection: earlier messages may have been missed. nil: not needed.
	live func()
	// lost is called when the ear is no longer live. nil: not needed.
	lost func()
	// deaf is called once, if the ear is refused. nil: not needed.
	deaf func()
}

// listen subscribes, unless that was done before. It returns at once. The cluster is known.
func (c *Engine) listen() {
	c.ear.asked.Do(func() {
		ch := c.earOf(c.ID)
		sub := c.Hub.Listen(ch, c.hear)
		c.inBackground(func() { c.attend(sub, ch) }) // ends with Close
	})
}

// inBackground runs f, unless the Client is closed. f ends with Close, which waits for it.
func (c *Engine) inBackground(f func()) {
	if c.Calls.Start() {
		c.Calls.Go(f)
		c.Calls.Ended()
	}
}

// earOf returns the channel of the ear of the Client with that id.
func (c *Engine) earOf(id string) pubsub.Channel {
	return pubsub.Channel{Name: pubsub.EarChannel(id), Sharded: c.Cluster != nil && c.Cluster.IsSharded()}
}

// hear passes a message to the listeners of its kind.
func (c *Engine) hear(text string) {
	said, ok := pubsub.ReadSpoken(text)
	if !ok {
		return
	}
	for _, l := range c.ear.of {
		if l.kind == said.Kind {
			l.heard(said.Payload)
		}
	}
}

// attend tells the listeners of changes of the ear, until it is refused or the Client is closed.
func (c *Engine) attend(sub *pubsub.Ear, ch pubsub.Channel) {
	confirmed := 0
	for {
		select {
		case <-sub.News():
		case <-c.Calls.Done():
			return
		}
		switch s := sub.State(); {
		case s.Refusal != nil:
			c.deafened(s.Refusal)
			return
		case s.Live && s.Confirmed > confirmed: // not if it was lost since
			confirmed = s.Confirmed
			for _, l := range c.ear.of {
				if l.live != nil {
					l.live()
				}
			}
		case !s.Live:
			for _, l := range c.ear.of {
				if l.lost != nil {
					l.lost()
				}
			}
			if !ch.Sharded {
				continue
			}
			// The client may not know the node, see link.down. What it sends to the slot has it find that.
			_, _ = c.publish(ch, pubsub.Spoken{Kind: "found"}.String())
		}
	}
}

// deafened handles the refusal of the ear.
func (c *Engine) deafened(why error) {
	c.ear.refused.Store(true)
	for _, l := range c.ear.of {
		if l.deaf != nil {
			l.deaf()
		}
	}
	if !c.Calls.IsClosed() && !errors.Is(why, rueidis.ErrClosing) {
		c.Options.Tell.Warn("rlock: other processes cannot ask this Client for its locks; the user needs the right to subscribe to "+
			pubsub.EarChannel("*"), "client", c.ID, "err", why)
	}
}

// mark returns the mark for owners that Locks of m create.
func (m *Spec) mark() kinds.Mark {
	mark := m.Engine.labelMark()
	if (m.Mark != 0 || m.Linger > 0) && !m.Engine.ear.refused.Load() {
		mark = mark.With(m.Mark)
		if m.Linger > 0 {
			mark = mark.With(kinds.Lingers)
		}
	}
	return mark
}

// canHave reports whether an existing tenure is renewed as a Lock of m wants, and its mark covers all that this wants.
func (m *Spec) canHave(t *Tenure) bool {
	want := m.mark()
	return m.WatchdogIn(m.Engine) == t.Spec.WatchdogIn(m.Engine) && (want == 0 || kinds.MarkOfTag(t.Tag).Wants(want))
}
