package deadlock

import (
	"strings"
	"sync/atomic"

	"github.com/go-rlock/rlock/internal/tenure"
)

// listen starts the ears of the Clients that have the holds in the Lock's ctx.
func (b *blocked) listen() {
	for l := tenure.LevelOf(b.who.Ctx); l != nil; l = l.Enclosing() {
		if c := of(l.Hold.Tenure.Lock); c != nil && c.ear.Calls.Start() {
			c.ear.Listen() // the cluster is known: it has a hold there
			c.ear.Calls.Ended()
		}
	}
}

// Say sends a message to the Client of an owner in the way, and returns at once because there may be many. If the user lacks the right,
// nobody hears it.
func (b *blocked) Say(owner, text string) {
	e := b.client.ear
	if id, _, _ := strings.Cut(owner, ":"); id != e.ID {
		e.Calls.Background(func() { _, _ = e.Say(id, Kind, text) }) // ends when Redis has answered, or does not
	}
}

// mostHandled bounds the probes in work, and the questions. Further ones are dropped: probes are sent again, and people ask again.
const mostHandled = 32

// handle runs f, unless as much of its kind is in work or the Client is closed. It returns at once.
func (c *Client) handle(working *atomic.Int32, f func()) {
	if working.Add(1) > mostHandled || !c.ear.Calls.Start() {
		working.Add(-1)
		return
	}
	go func() { // ends with f, which sends messages, and asks Redis; Close waits for it
		defer c.ear.Calls.Ended()
		defer working.Add(-1)
		f()
	}()
}

// describe answers a question for the long waits of the Client. It returns at once.
func (c *Client) describe(text string) {
	id, ok := ReadQuestion(text)
	if !ok {
		return
	}
	c.handle(&c.describing, func() { // beside others: the asker may have an answer, and ask again, before Redis confirms it here
		for _, answer := range c.Graph.Answers(c.ear.ID) {
			if _, err := c.ear.Say(id, SeenKind, answer); err != nil {
				return
			}
		}
	})
}
