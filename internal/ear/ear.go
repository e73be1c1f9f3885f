// Package ear lets Clients speak to each other while their Locks wait. Each Client that accepts messages has an ear: one subscription for
// all its locks. What it hears are hints: yield_hear.go lists the other ways to find waiters. At least the last 10,000 tags without a hold
// here are remembered. Each kind of message has its [Listener]:
//
//   - yield_hear.go: a hold is told that somebody waits for its lock (WithAsked); yield_ask.go: a waiter says so; look.go: Redis is asked
//     who waits
//   - linger.go: tenures that are kept for the next Lock of the process (WithLinger), until another process asks for them
//   - label.go, labels.go: what people call a Client, in Redis
//   - package deadlock: searches across processes
//
// The features observe the engine (tenure.Observer, engine.Watcher), which does not know them.
package ear

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/engine"
	"github.com/go-rlock/rlock/internal/kinds"
	"github.com/go-rlock/rlock/internal/tenure"
	"github.com/go-rlock/rlock/pubsub"
)

// Ear is the ear of a Client, with what it hears for. The owner tags that it listens for carry a mark (kinds.Capability). A waiter sees the mark
// in the refusal and sends its message while it waits. Locks without a mark cost nothing.
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
type Ear struct {
	*tenure.Client

	begun     sync.Once
	refused   atomic.Bool
	listeners []Listener

	askables askables
	askings  askings
	kept     keptTenures
	label    ownLabel
	labels   labels
}

// Listener is a feature that relies on the ear. Its functions run on goroutines that others need, so they return at once.
type Listener struct {
	Kind string // of the messages it gets
	// Heard gets the payload of each message of that kind, on the goroutine that reads the connection.
	Heard func(payload string)
	// Live is called when the ear becomes live, also after each lost connection: earlier messages may have been missed. nil: not needed.
	Live func()
	// Deaf is called when the ear is no longer live, and if it is refused. nil: not needed.
	Deaf func()
}

// New returns the ear of c, which has no locks yet. label is for people; "": none.
func New(c *tenure.Client, label string) *Ear {
	e := &Ear{Client: c}
	e.label.text = label
	e.askables.due = make(chan struct{}, 1)
	e.kept.timer = time.AfterFunc(time.Hour, func() { e.releaseDue(time.Now()) })
	e.kept.timer.Stop()
	e.Hear(Listener{Kind: saidAsked, Heard: e.heardAsked, Live: e.lives, Deaf: e.keepsNone})
	e.Hear(Listener{Kind: saidTried, Heard: e.heardTried})
	c.Use(e)
	return e
}

// Of returns the ear of c.
func Of(c *tenure.Client) *Ear {
	e, _ := tenure.Feature[*Ear](c)
	return e
}

// Observes reports whether a handle on those terms wants its holds to be spoken to, or the owners of all have a label.
func (e *Ear) Observes(t *tenure.Terms) bool {
	return t.Wants != 0 || t.Linger > 0 || e.label.text != ""
}

// Mark says what the handle wants its owners to say, unless nobody could speak to the Client, and that there is a label.
func (e *Ear) Mark(m *tenure.Lock) kinds.Capability {
	mark := e.markLabel()
	if e.refused.Load() {
		return mark
	}
	if m.Linger > 0 {
		mark = mark.With(kinds.Lingers)
	}
	return mark.With(m.Wants)
}

// Began makes a hold askable.
func (e *Ear) Began(h *tenure.Hold, b tenure.Beginning) {
	m := h.First.Lock
	if m.Linger > 0 {
		e.Listen()
		if b == tenure.Granted {
			e.kept.markContended(m.Key)
		}
	}
	if m.Wants.Wants(kinds.WantsAsked) {
		newAskable(h, m.AskedAfter, m).begin(h.Tenure.Tag, b)
	}
}

// Waits tells the holds in the way of a Lock about it: here at once, and in other processes by a message.
func (e *Ear) Waits(l *engine.Attempt) (fails <-chan error) {
	e.tellHere(l.Lock, l.Within())
	if holder := l.Refusal().Holder; holder != "" {
		e.AskHolder(l.Ctx, l.Lock, holder)
		e.isContended(l)
	}
	return nil
}

// Refused tells an owner that may be kept that it caused a refusal of a Lock that does not wait.
func (e *Ear) Refused(l *engine.Attempt) {
	holder := l.Refusal().Holder
	if mark, _, _ := kinds.CapabilityOf(holder); mark.Wants(kinds.Lingers) {
		e.ask(l.Ctx, l.Lock, holder, saidTried)
	}
	e.isContended(l)
}

// WaitOver does nothing.
func (e *Ear) WaitOver(*engine.Attempt) {}

// Hear adds a listener. It is called before anything listens.
func (e *Ear) Hear(l Listener) { e.listeners = append(e.listeners, l) }

// Listen subscribes, unless that was done before. It returns at once. The cluster is known.
func (e *Ear) Listen() {
	e.begun.Do(func() {
		ch := e.Channel(e.ID)
		sub := e.Hub.Listen(ch, e.hear)
		e.Calls.Background(func() { e.attend(sub, ch) }) // ends with Close
	})
}

// Channel returns the channel of the ear of the Client with that id.
func (e *Ear) Channel(id string) pubsub.Channel {
	return pubsub.Channel{Name: pubsub.EarChannel(id), Sharded: e.Cluster.IsOne() && e.Cluster.IsSharded()}
}

// Say sends a message to the ear of the Client with that id, and returns the number of processes that heard it; on a cluster with plain
// channels, those at one node.
func (e *Ear) Say(id, kind, payload string) (heard int, err error) {
	return e.publish(e.Channel(id), pubsub.Spoken{Kind: kind, Payload: payload}.String())
}

func (e *Ear) publish(ch pubsub.Channel, text string) (heard int, err error) {
	n, err := e.RDB.Do(e.Calls.Context(context.Background()), ch.Publish(e.RDB.B(), text)).AsInt64()
	return int(n), err
}

// hear passes a message to the listeners of its kind.
func (e *Ear) hear(text string) {
	said, ok := pubsub.ReadSpoken(text)
	if !ok {
		return
	}
	for _, l := range e.listeners {
		if l.Kind == said.Kind {
			l.Heard(said.Payload)
		}
	}
}

// attend tells the listeners of changes of the ear, until it is refused or the Client is closed.
func (e *Ear) attend(sub *pubsub.Ear, ch pubsub.Channel) {
	confirmed := 0
	for {
		select {
		case <-sub.News():
		case <-e.Calls.Done():
			return
		}
		switch s := sub.State(); {
		case s.Refusal != nil:
			e.isRefused(s.Refusal)
			return
		case s.Live && s.Confirmed > confirmed: // not if it was lost since
			confirmed = s.Confirmed
			for _, l := range e.listeners {
				if l.Live != nil {
					l.Live()
				}
			}
		case !s.Live:
			e.isDeaf()
			if !ch.Sharded {
				continue
			}
			// The client may not know the node, see link.down. What it sends to the slot has it find that.
			_, _ = e.Say(e.ID, "found", "")
		}
	}
}

func (e *Ear) isDeaf() {
	for _, l := range e.listeners {
		if l.Deaf != nil {
			l.Deaf()
		}
	}
}

// isRefused handles the refusal of the ear.
func (e *Ear) isRefused(why error) {
	e.refused.Store(true)
	e.isDeaf()
	if !e.Calls.IsClosed() && !errors.Is(why, rueidis.ErrClosing) {
		e.Options.Tell.Warn("rlock: other processes cannot ask this Client for its locks; the user needs the right to subscribe to "+
			pubsub.EarChannel("*"), "client", e.ID, "err", why)
	}
}
