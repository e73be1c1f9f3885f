package engine

import (
	"strings"
	"sync/atomic"

	"github.com/go-rlock/rlock/internal/deadlock"
	"github.com/go-rlock/rlock/pubsub"
)

// listen starts the ears of the Clients that have the holds in the Lock's ctx.
func (b *blocked) listen() {
	for l := LevelOf(b.who.Ctx); l != nil; l = l.Enclosing() {
		if c := l.spec.Engine; c.Options.Deadlock.After > 0 && c.Calls.Start() {
			c.listen() // the cluster is known: it has a hold there
			c.Calls.Ended()
		}
	}
}

// Say sends a message to the Client of an owner in the way, and returns at once because there may be many. If the user lacks the right,
// nobody hears it.
func (b *blocked) Say(owner, text string) {
	c := b.spec.Engine
	if id, _, _ := strings.Cut(owner, ":"); id != c.ID {
		c.inBackground(func() { // ends when Redis has answered, or does not
			_, _ = c.publish(c.earOf(id), pubsub.Spoken{Kind: deadlock.Kind, Payload: text}.String())
		})
	}
}

// mostHandled bounds the probes in work, and the questions. Further ones are dropped: probes are sent again, and people ask again.
const mostHandled = 32

// handle runs f, unless as much of its kind is in work or the Client is closed. It returns at once.
func (c *Engine) handle(working *atomic.Int32, f func()) {
	if working.Add(1) > mostHandled || !c.Calls.Start() {
		working.Add(-1)
		return
	}
	go func() { // ends with f, which sends messages, and asks Redis; Close waits for it
		defer c.Calls.Ended()
		defer working.Add(-1)
		f()
	}()
}

// probed handles a probe. It returns at once.
func (c *Engine) probed(text string) {
	c.handle(&c.probing, func() { c.Options.Deadlock.Graph.Hear(text) })
}

// describe answers a question for the long waits of the Client. It returns at once.
func (c *Engine) describe(text string) {
	id, ok := deadlock.ReadQuestion(text)
	if !ok {
		return
	}
	c.handle(&c.describing, func() { // beside others: the asker may have an answer, and ask again, before Redis confirms it here
		for _, answer := range c.Options.Deadlock.Graph.Answers(c.ID) {
			if _, err := c.publish(c.earOf(id), pubsub.Spoken{Kind: deadlock.SeenKind, Payload: answer}.String()); err != nil {
				return
			}
		}
	})
}
