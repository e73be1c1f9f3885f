package engine

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/pubsub"
)

// A Client that wants to be spoken to has an ear: one subscription for all of its locks, on a channel of its own. The tags of the owners for
// which it listens have a mark (kinds.Mark). Whoever waits for such an owner sees that in the refusal, and speaks to it beside its wait
// (asking.go). Locks without a mark cost nothing of this.
//
//	state     event                             next
//	none      a hold begins that wants an ear   asked for
//	asked for the server confirms it            live: whoever relies on it looks once for what was missed
//	          the server refuses it             refused
//	live      the connection is lost            asked for
//	any       Close                             over
//
// What is said is a hint (pubsub.Spoken): it may be lost, doubled, late, or a lie. So it may cost a command or a wake-up, and decides nothing. A Client
// whose ear is refused does without one: its owners have no marks from then on.

// ear is that of a Client. The listeners are there before it is asked for.
type ear struct {
	asked   sync.Once
	refused atomic.Bool
	of      []listener
}

// listener is what relies on the ear. Its methods are called on goroutines that others need: they return at once.
type listener struct {
	kind string // of what it is told
	// heard is told what somebody says, on the goroutine that reads the connection.
	heard func(payload string)
	// live says that the ear is live, again after each connection that was lost: what was said before may have been missed. nil: it is
	// no concern.
	live func()
	// lost says that it is not live any more. nil: it is no concern.
	lost func()
	// deaf says that the ear is refused, once. nil: it is no concern.
	deaf func()
}

// listen asks for the ear, unless somebody has. It returns at once. The cluster is known.
func (c *Engine) listen() {
	c.ear.asked.Do(func() {
		ch := c.earOf(c.ID)
		sub := c.Hub.Listen(ch, c.hear)
		c.inBackground(func() { c.attend(sub, ch) }) // ends with Close
	})
}

// inBackground runs f, which ends with Close, unless that was called. Close waits for it.
func (c *Engine) inBackground(f func()) {
	if c.Calls.Start() {
		c.Calls.Go(f)
		c.Calls.Ended()
	}
}

// earOf is the channel on which a Client is spoken to.
func (c *Engine) earOf(id string) pubsub.Channel {
	return pubsub.Channel{Name: pubsub.EarChannel(id), Sharded: c.Cluster != nil && c.Cluster.isSharded()}
}

// hear passes on what was said.
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

// attend follows the ear until it is refused, or Close.
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
			_, _ = c.publish(ch, pubsub.Spoken{Kind: "found"})
		}
	}
}

// deafened is the end of the ear.
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

// mark is what the owner of a Lock tells others.
func (m *Spec) mark() kinds.Mark {
	switch {
	case m.Mark == 0 && m.Linger == 0, m.Engine.ear.refused.Load():
		return 0
	case m.Linger > 0:
		return m.Mark.With(kinds.Lingers)
	}
	return m.Mark
}

// canHave reports whether a tenure that is there already can be heard of as a Lock wants it.
func (m *Spec) canHave(t *Tenure) bool {
	want := m.mark()
	return want == 0 || kinds.MarkOfTag(t.Tag).Wants(want)
}
