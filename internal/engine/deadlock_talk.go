package engine

import (
	"strings"

	"github.com/go-rlock/rlock/internal/deadlock"
	"github.com/go-rlock/rlock/pubsub"
)

// listen starts the ears of the Clients that have the holds in the Lock's ctx.
func (b *blocked) listen() {
	for l := levelOf(b.who.Ctx); l != nil; l = l.enclosing() {
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

// mostProbing bounds the probes in work; further ones are dropped, because they are sent again.
const mostProbing = 32

// probed handles a probe. It returns at once.
func (c *Engine) probed(text string) {
	if !c.Calls.Start() {
		return
	}
	if c.probing.Add(1) > mostProbing {
		c.probing.Add(-1)
		c.Calls.Ended()
		return
	}
	go func() { // ends when it has sent others, and asked Redis; Close waits for it
		defer c.Calls.Ended()
		defer c.probing.Add(-1)
		c.Options.Deadlock.Graph.Hear(text)
	}()
}

// describe answers a question for the long waits of the Client. It returns at once.
func (c *Engine) describe(text string) {
	id, ok := deadlock.ReadQuestion(text)
	if !ok || !c.Calls.Start() {
		return
	}
	if c.describing.Swap(true) { // a question while one is answered is dropped
		c.Calls.Ended()
		return
	}
	go func() { // ends with its answers; Close waits for it
		defer c.Calls.Ended()
		defer c.describing.Store(false)
		for _, answer := range c.Options.Deadlock.Graph.Answers(c.ID) {
			if _, err := c.publish(c.earOf(id), pubsub.Spoken{Kind: deadlock.SeenKind, Payload: answer}.String()); err != nil {
				return
			}
		}
	}()
}
